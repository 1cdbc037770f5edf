"""PyTorch's Adam and AdamW, without its compiler, which nothing here uses.

PyTorch wraps an optimizer's methods in ones that import ``torch._dynamo`` when they are called first: 1.3 s and 80 MB of every
run. What they wrap is called here instead, so that every number is the same.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

_add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
_step = inspect.unwrap(torch.optim.Adam.step)


class Adam(torch.optim.Adam):
    """``torch.optim.Adam``."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        _add_param_group(self, param_group)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        _step(self, closure)


class AdamW(Adam, torch.optim.AdamW):
    """``torch.optim.AdamW``."""
