"""Rows with two readers, sums, products and dropout of rows, as autograd sees them: no tables beyond those that hold results.

A tensor with two readers gets the sum of their gradients. Autograd adds the second gradient to the first in place only where
it can see that nothing else holds the first. It cannot see that for memory from a pool, because the pool holds it as well.
``fork`` asks the pool and adds in place where that is safe.

Letters: N rows, F features.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.backends.base import Rows
from sargnn.backends.memory import Pool
from sargnn.bf16 import wide
from sargnn.engine.rebuild import keep, kept, rebuild_of, rebuilt_as, rebuilt_by, self_rows
from sargnn.engine.workspace import Workspace
from sargnn.plan.layer_plan import LayerPlan
from sargnn.profile import NODEWISE
from sargnn.rng import Draw

_CHUNK_ROWS = 8192


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


class Add(torch.autograd.Function):
    """``first + other``, [N, F] each, in memory from the pool; without one in the other's."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, other: Tensor, pool: Pool | None) -> Tensor:
        if pool is None:
            ctx.mark_dirty(other)
            return other.add_(first)
        return torch.add(first, other, out=pool.empty_like(first))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return grad, grad, None


class _AddBias(torch.autograd.Function):
    """``y = x + b``, ``dx = g``, ``db = sum of g's rows``, which is fp32 where rows are bf16. Saves nothing.

    The bias is rounded as weights are; of fp32 numbers beside bf16 rows PyTorch would make copies in fp32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, in_place: bool, rows: Rows) -> Tensor:
        ctx.rows = rows
        if in_place:
            ctx.mark_dirty(x)
            return x.add_(bias.to(x.dtype))
        return x + bias.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return grad, ctx.rows.column_sums(grad), None, None


def add_bias(rows: Rows, x: Tensor, bias: Tensor, *, in_place: bool = False) -> Tensor:
    """``x + b``, [N, F]; with ``in_place`` x is of no further use to the caller."""
    if wide(x.dtype) == x.dtype:
        return x.add_(bias) if in_place else x + bias
    out: Tensor = _AddBias.apply(x, bias, in_place, rows)
    return out


class Dropout(torch.autograd.Function):
    """``y = x * mask / (1 - p)`` and ``dx = dy * mask / (1 - p)``. Saves nothing of size N x F: the mask is drawn again.

    It is drawn by original id, so it is the same on any number of workers.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, ids: Tensor, draw: Draw, work: Workspace) -> Tensor:
        ctx.ids, ctx.draw, ctx.work = ids, draw, work
        return _dropped(work, x, ids, draw)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _dropped(ctx.work, grad, ctx.ids, ctx.draw), None, None, None


def _dropped(work: Workspace, x: Tensor, ids: Tensor, draw: Draw) -> Tensor:
    with work.profile.span(NODEWISE):
        work.profile.work(NODEWISE, 2 * x.numel() * x.element_size())
        return work.rows.dropout(x.contiguous(), ids, draw)


class Scale(torch.autograd.Function):
    """Rows times a number, which may be learned: ``y = c x``, ``dx = c g``, ``dc = sum of g x``: this worker's sum.

    Saves x only where c is learned, and then nothing where x can be rebuilt.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor | float, work: Workspace) -> Tensor:
        ctx.work, ctx.learned = work, isinstance(factor, Tensor) and factor.requires_grad
        ctx.factor = factor.detach() if isinstance(factor, Tensor) else factor
        if ctx.learned:
            keep(ctx, x)
        with work.profile.span(NODEWISE):
            work.profile.work(NODEWISE, 2 * x.numel() * x.element_size())
            return _scaled(work, x, ctx.factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        work: Workspace = ctx.work
        d_x = d_factor = None
        with work.profile.span(NODEWISE):
            work.profile.work(NODEWISE, 2 * grad.numel() * grad.element_size())
            if ctx.learned:
                (x,) = kept(ctx)
                d_factor = _sum_of_products(grad, x).to(ctx.factor.dtype).view(ctx.factor.shape)
                del x
            if ctx.needs_input_grad[0]:
                d_x = _scaled(work, grad, ctx.factor)
        return d_x, d_factor, None


def _scaled(work: Workspace, x: Tensor, factor: Tensor | float) -> Tensor:
    """In a table of its own; c is not rounded to the dtype of x, and the host reads none that it has not."""
    if isinstance(factor, Tensor) and factor.device.type != "cpu":
        out = work.pool.empty_like(x).copy_(x)
        return work.rows.scale(out, factor.to(wide(x.dtype)).reshape(1).expand(len(x)).contiguous())
    return torch.mul(x, float(factor), out=work.pool.empty_like(x))


def _sum_of_products(g: Tensor, x: Tensor) -> Tensor:
    """Over all entries, fp64; products of each row in what sums of such rows are held in."""
    held = wide(x.dtype)
    both = ((g, x),) if held == x.dtype else zip(g.split(_CHUNK_ROWS), x.split(_CHUNK_ROWS), strict=True)
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for first, other in both:
        total += torch.bmm(first.to(held)[:, None, :], other.to(held)[:, :, None]).sum(dtype=torch.float64)
    return total


class ScaledRows(torch.autograd.Function):
    """Bf16 rows times a number each: rounded once, without the fp32 tables that PyTorch's operators would make."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, scale: Tensor, work: Workspace, reuse: bool) -> Tensor:
        ctx.scale, ctx.work = scale, work
        if reuse:
            ctx.mark_dirty(rows)
        return work.rows.scale(rows if reuse else work.pool.empty_like(rows).copy_(rows), scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.work.rows.scale(ctx.work.pool.empty_like(grad).copy_(grad), ctx.scale), None, None, None
