"""PyTorch's Adam and AdamW, without its compiler, which nothing here uses.

PyTorch wraps an optimizer's methods in ones that import ``torch._dynamo`` when they are called first: 1.3 s and 80 MB of every
run. What they wrap is called here instead, so that every number is the same.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

_add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
_step = inspect.unwrap(torch.optim.Adam.step)


_NUMBERS_AT_ONCE = 1 << 18
"""Of a parameter that are updated at a time: PyTorch's formula makes two temporary tables of their size."""


class Adam(torch.optim.Adam):
    """``torch.optim.Adam``, a large table a run of rows at a time; every number is the same."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        _add_param_group(self, param_group)

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        """The tensors that are updated: parameters, gradients, two moments, the moments' maxima (none), steps."""
        group_lists: list[list[Tensor]] = [[] for _ in lists]
        has_complex: bool = super()._init_group(group, *group_lists)
        for *tables, steps in zip(*(tensors for tensors in group_lists if tensors), strict=True):
            rows = tables[0].shape[0] if tables[0].dim() == 2 else 0
            many = max(1, _NUMBERS_AT_ONCE // max(1, tables[0].shape[1])) if rows else 0
            runs = [tables] if rows <= many else list(zip(*(table.split(many) for table in tables), strict=True))
            for number, run in enumerate(runs):
                # Each run counts its own step; the first one counts the parameter's.
                row = iter((*run, steps if number == 0 else steps.clone()))
                for into, tensors in zip(lists, group_lists, strict=True):
                    if tensors:
                        into.append(next(row))
        return has_complex

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        _step(self, closure)


class AdamW(Adam, torch.optim.AdamW):
    """``torch.optim.AdamW``."""
