"""Rows that two readers share, whose errors are added without a third table; and rows that are added up.

Autograd adds up the errors of a tensor's readers in place only where it can see that one of them is nobody else's, which
it cannot of a storage that the pool holds as well. Here the pool is asked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.engine.pool import POOL
from sargnn.engine.rebuild import rebuilt_as


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` [N, F] for either reader; rebuilt in the way that ``x`` is."""
    if not (x.requires_grad and torch.is_grad_enabled() and POOL.enabled):
        return x, x
    one, other = _Fork.apply(x)
    return rebuilt_as(x, one), rebuilt_as(x, other)


def added(one: Tensor, other: Tensor) -> Tensor:
    """``one + other``, [N, F] each."""
    total: Tensor = _Added.apply(one, other)
    return total


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor) -> Tensor:
        return torch.add(one, other, out=POOL.empty_like(one))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


class _Fork(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x.detach(), x.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        one, other = grads
        if one is None or other is None:
            return other if one is None else one
        if POOL.is_only_holder(one):
            return one.add_(other)
        if POOL.is_only_holder(other):
            return other.add_(one)
        return torch.add(one, other, out=POOL.empty_like(one))
