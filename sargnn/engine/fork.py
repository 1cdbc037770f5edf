"""Rows with two readers, and sums of rows, without tables beyond those that hold results.

A tensor with two readers gets the sum of their gradients. Autograd adds the second gradient to the first in place only where
it can see that nothing else holds the first. It cannot see that for memory from a pool, because the pool holds it as well.
``fork`` asks the pool and adds in place where that is safe.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.backends.memory import Pool
from sargnn.engine.rebuild import rebuild_of, rebuilt_as, rebuilt_by, self_rows
from sargnn.plan.layer_plan import LayerPlan


def fork(pool: Pool, x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` [N, ...] for each of two readers; both are rebuilt in the way that ``x`` is."""
    if not (x.requires_grad and torch.is_grad_enabled() and pool.enabled):
        return x, x
    first, other = _Fork.apply(x, pool)
    return rebuilt_as(x, first), rebuilt_as(x, other)


def fork_own(pool: Pool, plan: LayerPlan, x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` [N, F] for one reader, and for another the rows of it that the output rows are, [M, F].

    Where these are some of all rows, their gradient is added to the first reader's, row by row: autograd would make a table
    [N, F] of it, zero everywhere else.
    """
    if plan.num_out == plan.num_rows or not (x.requires_grad and torch.is_grad_enabled() and pool.enabled):
        first, other = fork(pool, x)
        return first, self_rows(plan, other)
    first, own = _ForkOwn.apply(x, plan, pool)
    rebuild = rebuild_of(x)
    return rebuilt_as(x, first), own if rebuild is None else rebuilt_by(own, lambda: plan.self_rows(rebuild()))


def add(pool: Pool, first: Tensor, other: Tensor) -> Tensor:
    """``first + other``, [N, F] each, in memory from the pool."""
    total: Tensor = _Add.apply(first, other, pool)
    return total


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, other: Tensor, pool: Pool) -> Tensor:
        return torch.add(first, other, out=pool.empty_like(first))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return grad, grad, None


class _ForkOwn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: LayerPlan, pool: Pool) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.pool, ctx.width = plan, pool, x.shape[1]
        return x.detach(), plan.self_rows(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, of_own: Tensor | None) -> tuple[Tensor | None, None, None]:
        plan, pool = ctx.plan, ctx.pool
        if of_own is None:
            return grad, None, None
        if grad is None:
            grad = pool.zeros(plan.num_rows, ctx.width, of_own)
        elif not pool.is_only_holder(grad):
            grad = pool.empty_like(grad).copy_(grad)
        for at, first, count in plan.own_runs():
            grad[at : at + count] += of_own[first : first + count]
        return grad, None, None


class _Fork(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pool: Pool) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.pool = pool
        return x.detach(), x.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        first, other = grads
        pool: Pool = ctx.pool
        if first is None or other is None:
            return (other if first is None else first), None
        if pool.is_only_holder(first):
            return first.add_(other), None
        if pool.is_only_holder(other):
            return other.add_(first), None
        return torch.add(first, other, out=pool.empty(len(first), math.prod(first.shape[1:]), first).view(first.shape)), None
