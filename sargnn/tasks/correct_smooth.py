"""Correct & Smooth (Huang et al., 2021): errors on training nodes, then labels, spread over the graph. Nothing is trained.

    correct   E_0 = Y - Z on training nodes, 0 elsewhere, Z = softmax(logits)
              autoscale    E = propagate(E_0), clamped to [-1, 1];  Z_i += s_i E_i,  s_i = m / |E_i|_1, m = mean of |E_0|_1
                           over the training nodes (s_i = 1 where that is not finite or above 1000)
              else         E = propagate(E_0), training rows put back to E_0 after every step;  Z_i += scale E_i
    smooth    G_0 = Y on training nodes, Z elsewhere;  G = propagate(G_0), clamped to [0, 1]

``engine.propagate`` has the steps and the three forms of the adjacency matrix. The graph is the data's own: self-loops that a
model adds for itself are not in it. Of a typed graph: the relations between nodes of the labelled type, together.

Memory: six tables [N, C] at most, whatever the halo. Letters: N own rows of the labelled type, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.config.groups import SmoothConfig
from sargnn.tasks.base import Targets

_LARGEST_SCALE = 1000.0


class Spread(Protocol):
    """Spreads rows over a graph: ``engine.propagate.propagate`` with an engine and a plan."""

    def __call__(
        self, start: Tensor, *, alpha: float, steps: int, adjacency: str, after: Callable[[Tensor], object]
    ) -> Tensor: ...


@torch.no_grad()
def correct_and_smooth(config: SmoothConfig, spread: Spread, group: Group, logits: Tensor, targets: Targets) -> Tensor:
    """Scores [N, C] from logits [N, C] and targets of the same rows, labelled nodes; all workers must call it."""
    rows = targets.rows["train"]
    scores = logits.softmax(1)
    wanted = torch.zeros(len(rows), scores.shape[1], dtype=scores.dtype, device=scores.device)
    wanted.scatter_(1, targets.labels[rows][:, None], 1.0)
    _correct(config, spread, group, scores, targets, wanted)
    scores[rows] = wanted
    return spread(
        scores,
        alpha=config.smooth_alpha,
        steps=config.smooth_steps,
        adjacency=config.smooth_adjacency,
        after=lambda x: x.clamp_(0, 1),
    )


def _correct(config: SmoothConfig, spread: Spread, group: Group, scores: Tensor, targets: Targets, wanted: Tensor) -> None:
    """Add the spread residuals to ``scores``, in place."""
    rows = targets.rows["train"]
    known = wanted - scores[rows]
    residuals = torch.zeros_like(scores)
    residuals[rows] = known

    def after(x: Tensor) -> None:
        if config.autoscale:
            x.clamp_(-1, 1)
        else:
            x[rows] = known

    errors = spread(
        residuals,
        alpha=config.correct_alpha,
        steps=config.correct_steps,
        adjacency=config.correct_adjacency,
        after=after,
    )
    if config.autoscale:
        total = float(group.sum_(known.double().abs().sum()))
        scale = (total / max(targets.global_counts["train"], 1)) / errors.abs().sum(1, keepdim=True)
        scale = torch.where(scale.isfinite() & (scale <= _LARGEST_SCALE), scale, 1.0)
        scores.addcmul_(errors, scale)
    else:
        scores.add_(errors, alpha=config.scale)
