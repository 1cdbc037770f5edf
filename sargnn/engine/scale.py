"""Rows times one number, which may be learned, and rows times a number each.

    y = c x        dx = c g        dc = sum of g x over all entries: this worker's sum

Saves x only where c is learned, and then nothing where x can be rebuilt.

Letters: N rows, F features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.bf16 import wide
from sargnn.engine.rebuild import keep, kept
from sargnn.engine.workspace import Workspace
from sargnn.profile import NODEWISE

_CHUNK_ROWS = 8192


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor | float, work: Workspace) -> Tensor:
        ctx.work, ctx.learned = work, isinstance(factor, Tensor) and factor.requires_grad
        ctx.factor = factor.detach() if isinstance(factor, Tensor) else factor
        ctx.number = float(ctx.factor)  # a tensor of another dtype than the rows' would widen them all
        if ctx.learned:
            keep(ctx, x)
        with work.profile.span(NODEWISE):
            work.profile.work(NODEWISE, 2 * x.numel() * x.element_size())
            return torch.mul(x, ctx.number, out=work.pool.empty_like(x))

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
                d_x = torch.mul(grad, ctx.number, out=work.pool.empty_like(grad))
        return d_x, d_factor, None


def _sum_of_products(g: Tensor, x: Tensor) -> Tensor:
    """Over all entries, fp64; products of each row in what sums of such rows are held in."""
    held = wide(x.dtype)
    both = ((g, x),) if held == x.dtype else zip(g.split(_CHUNK_ROWS), x.split(_CHUNK_ROWS), strict=True)
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for first, other in both:
        total += torch.bmm(first.to(held)[:, None, :], other.to(held)[:, :, None]).sum(dtype=torch.float64)
    return total


class _ScaledRows(torch.autograd.Function):
    """Of bf16 rows: rounded once, without the fp32 tables that PyTorch's operators would make."""

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


def scaled_rows(work: Workspace, rows: Tensor, scale: Tensor, *, reuse: bool = False) -> Tensor:
    """``scale_i x_i`` [N, F], in the rows' dtype.

    Args:
        rows: [N, F]. scale: [N, 1], without gradients, in what sums of such rows are held in.
        reuse: ``rows`` are of no further use to the caller, and become the result.
    """
    if rows.dtype != scale.dtype and rows.is_contiguous():
        scaled: Tensor = _ScaledRows.apply(rows, scale.view(-1), work, reuse)
        return scaled
    return rows.mul_(scale) if reuse else (rows * scale).to(rows.dtype)


def scale(work: Workspace, x: Tensor, factor: Tensor | float) -> Tensor:
    """``factor * x`` [N, F] in memory of its own. ``factor``: a number, or a tensor of one."""
    out: Tensor = _Scale.apply(x, factor, work)
    return out
