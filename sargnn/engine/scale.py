"""Rows times one number, which may be learned.

    y = c x        dx = c g        dc = sum of g x over all entries: this worker's sum

Saves x only where c is learned, and then nothing where x can be rebuilt.

Letters: N rows, F features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.engine.rebuild import keep, kept
from sargnn.engine.workspace import Workspace
from sargnn.profile import NODEWISE


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor | float, work: Workspace) -> Tensor:
        ctx.work, ctx.learned = work, isinstance(factor, Tensor) and factor.requires_grad
        ctx.factor = factor.detach() if isinstance(factor, Tensor) else factor
        if ctx.learned:
            keep(ctx, x)
        with work.profile.span(NODEWISE):
            work.profile.work(NODEWISE, 2 * x.numel() * x.element_size())
            return torch.mul(x, ctx.factor, out=work.pool.empty_like(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        work: Workspace = ctx.work
        d_x = d_factor = None
        with work.profile.span(NODEWISE):
            work.profile.work(NODEWISE, 2 * grad.numel() * grad.element_size())
            if ctx.learned:
                (x,) = kept(ctx)
                by_row = torch.bmm(grad[:, None, :], x[:, :, None])
                d_factor = by_row.sum(dtype=torch.float64).to(grad.dtype).view(ctx.factor.shape)
                del x
            if ctx.needs_input_grad[0]:
                d_x = torch.mul(grad, ctx.factor, out=work.pool.empty_like(grad))
        return d_x, d_factor, None


def scale(work: Workspace, x: Tensor, factor: Tensor | float) -> Tensor:
    """``factor * x`` [N, F] in memory of its own. ``factor``: a number, or a tensor of one."""
    out: Tensor = _Scale.apply(x, factor, work)
    return out
