"""Optimizers, learning-rate schedules and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from sargnn.comm.group import Group
from sargnn.config.groups import OptimConfig
from sargnn.errors import ConfigError
from sargnn.models.base import Model
from sargnn.training.adam import Adam, AdamW


def check_decay(config: OptimConfig, model: Model) -> None:
    """The groups of parameters that have a weight decay of their own are the model's. Raises ``ConfigError``."""
    groups = model.decay_groups()
    for name in config.weight_decay_of or ():
        if name not in groups:
            raise ConfigError(
                "'optim.weight_decay_of' names a group of parameters that the model has not.",
                given=name,
                allowed=list(groups) or "null: this model has no groups",
            )


def make_optimizer(
    config: OptimConfig, parameters: Sequence[nn.Parameter], groups: Mapping[str, Sequence[nn.Parameter]]
) -> torch.optim.Optimizer | None:
    """Adam (weight decay added to the gradient) or AdamW (decoupled); None where there is nothing to train.

    Args:
        groups: of parameters that may have a weight decay of their own, by name (``Model.decay_groups``).
    """
    if not parameters:
        return None
    kinds: dict[str, type[torch.optim.Optimizer]] = {"adam": Adam, "adamw": AdamW}
    own = {id(p): decay for name, decay in (config.weight_decay_of or {}).items() for p in groups[name]}
    chosen: dict[float, list[nn.Parameter]] = {}
    for parameter in parameters:
        chosen.setdefault(own.get(id(parameter), config.weight_decay), []).append(parameter)
    settings = [{"params": some, "weight_decay": decay} for decay, some in chosen.items()]
    return kinds[config.name](settings, lr=config.lr)  # type: ignore[call-arg]


def learning_rate(config: OptimConfig, step: int, epochs: int, steps: int = 1) -> float:
    """The rate of optimizer step 0 <= ``step`` < ``epochs`` x ``steps``, of ``steps`` an epoch.

    With w steps of warm-up: lr (step + 1) / w while step < w. After that, t = step - w of the T steps that are left:
    lr (``constant``), lr (1 + cos(pi t / T)) / 2 (``cosine``) or lr ``step_factor`` ** floor(t / (``step_every`` epochs))
    (``step``).
    """
    warmup = config.warmup * steps
    if step < warmup:
        return config.lr * (step + 1) / warmup
    t = step - warmup
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1.0 + math.cos(math.pi * t / (epochs * steps - warmup)))
    if config.schedule == "step":
        return float(config.lr * config.step_factor ** (t // (config.step_every * steps)))
    return config.lr


def clip_gradients(group: Group, replicated: Sequence[nn.Parameter], sharded: Sequence[nn.Parameter], limit: float) -> float:
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
