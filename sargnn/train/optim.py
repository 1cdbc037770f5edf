"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from sargnn.config import OptimConfig


def make_optimizer(config: OptimConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Adam (weight decay added to the gradient) or AdamW (decoupled)."""
    kinds: dict[str, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[config.name](parameters, lr=config.lr, weight_decay=config.weight_decay)  # type: ignore[call-arg]


def learning_rate(config: OptimConfig, epoch: int, epochs: int) -> float:
    """The rate of epoch 0 <= ``epoch`` < ``epochs``: constant, or half a cosine from ``lr`` towards 0."""
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1.0 + math.cos(math.pi * epoch / epochs))
    return config.lr
