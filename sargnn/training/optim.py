"""Optimizers, learning-rate schedules and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from sargnn.comm.group import Group
from sargnn.config import OptimConfig


def make_optimizer(config: OptimConfig, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer | None:
    """Adam (weight decay added to the gradient) or AdamW (decoupled); None where there is nothing to train."""
    if not parameters:
        return None
    kinds: dict[str, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[config.name](parameters, lr=config.lr, weight_decay=config.weight_decay)  # type: ignore[call-arg]


def learning_rate(config: OptimConfig, epoch: int, epochs: int) -> float:
    """The rate of epoch 0 <= ``epoch`` < ``epochs``.

    With w warm-up epochs: lr (epoch + 1) / w while epoch < w. After that, t = epoch - w of the T = epochs - w that are left:
    lr (``constant``), lr (1 + cos(pi t / T)) / 2 (``cosine``) or lr ``step_factor`` ** floor(t / ``step_every``) (``step``).
    """
    if epoch < config.warmup:
        return config.lr * (epoch + 1) / config.warmup
    t = epoch - config.warmup
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1.0 + math.cos(math.pi * t / (epochs - config.warmup)))
    if config.schedule == "step":
        return float(config.lr * config.step_factor ** (t // config.step_every))
    return config.lr


def clip_gradients(
    group: Group, replicated: Sequence[nn.Parameter], sharded: Sequence[nn.Parameter], limit: float
) -> float:  # fmt: skip
    """Scale all gradients so that their norm, over all parameters and workers, is at most ``limit``; gives the norm before.

    Args:
        replicated: parameters whose gradients are the same on every rank. sharded: those of which each rank has its own rows.
    """

    def squares(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
        each = [p.grad.double().square().sum() for p in parameters if p.grad is not None]
        return torch.stack(each).sum() if each else torch.zeros((), dtype=torch.float64)

    norm = math.sqrt(float(squares(replicated)) + float(group.sum_(squares(sharded))))
    if norm > limit:
        for parameter in (*replicated, *sharded):
            if parameter.grad is not None:
                parameter.grad.mul_(limit / norm)
    return norm
