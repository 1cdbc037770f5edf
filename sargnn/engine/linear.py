"""Linear maps: recorded in the profile, written into memory from the pool, keeping no input that can be rebuilt.

y = x W^T + b        dx = g W        dW = g^T x        db = sum of g's rows

The products are those of ``torch.nn.functional.linear``, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.engine.rebuild import keep, kept
from sargnn.engine.workspace import Workspace
from sargnn.profile import LINEAR


def _map(work: Workspace, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b."""
    out = work.pool.empty(len(x), len(weight), x)
    return torch.mm(x, weight.T, out=out) if bias is None else torch.addmm(bias, x, weight.T, out=out)


def _product(work: Workspace, grad: Tensor, weight: Tensor) -> Tensor:
    """g W."""
    return torch.mm(grad, weight, out=work.pool.empty(len(grad), weight.shape[1], grad))


class _Linear(torch.autograd.Function):
    """Saves W, and x unless it can be rebuilt. With ``onto`` the product is added to that tensor, in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, onto: Tensor | None, work: Workspace) -> Tensor:
        keep(ctx, x, weight)
        ctx.has_bias, ctx.has_onto, ctx.work = bias is not None, onto is not None, work
        with work.profile.span(LINEAR):
            if onto is not None:
                ctx.mark_dirty(onto)
                return onto.addmm_(x, weight.T)
            return _map(work, x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = kept(ctx)
        with ctx.work.profile.span(LINEAR):
            d_weight = grad.T @ x
            del x
            d_x = _product(ctx.work, grad, weight) if ctx.needs_input_grad[0] else None
            d_bias = grad.sum(0) if ctx.has_bias else None
        return d_x, d_weight, d_bias, grad if ctx.has_onto else None, None


def linear_map(work: Workspace, x: Tensor, weight: Tensor, bias: Tensor | None, onto: Tensor | None = None) -> Tensor:
    """``x W^T + b``, [N, out].

    Args:
        x: [N, in]. weight: [out, in]. bias: [out].
        onto: [N, out], a tensor of no further use to the caller, to which the product is added; without bias.
    """
    return _Linear.apply(x, weight, bias, onto, work)


class _Linears(torch.autograd.Function):
    """Several maps of the first rows, ``y_k = x[:n_k] W_k^T + b_k``. The gradients of x are added up in one table."""

    @staticmethod
    def forward(ctx: Any, work: Workspace, x: Tensor, counts: tuple[int, ...], *maps: Tensor | None) -> tuple[Tensor, ...]:
        weights: Any = maps[::2]
        biases = maps[1::2]
        keep(ctx, x, *weights)
        ctx.counts, ctx.biased, ctx.work = counts, [bias is not None for bias in biases], work
        with work.profile.span(LINEAR):
            return tuple(_map(work, x[:n], w, b) for n, w, b in zip(counts, weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = kept(ctx)
        work: Workspace = ctx.work
        rows, d_maps = len(x), []
        with work.profile.span(LINEAR):
            for n, grad, biased in zip(ctx.counts, grads, ctx.biased, strict=True):
                d_maps += [grad.T @ x[:n], grad.sum(0) if biased else None]
            del x
            d_x = None
            if ctx.needs_input_grad[1]:
                # The first map of all rows writes, the others add.
                order = sorted(range(len(grads)), key=lambda k: -ctx.counts[k])
                for k in order:
                    n, grad, weight = ctx.counts[k], grads[k], weights[k]
                    if d_x is None:
                        d_x = _product(work, grad, weight) if n == rows else work.pool.zeros(rows, weight.shape[1], grad)
                        if n == rows:
                            continue
                    d_x[:n].addmm_(grad, weight)
        return None, d_x, None, *d_maps


def linears(
    work: Workspace, x: Tensor, *maps: tuple[Tensor, Tensor | None], counts: tuple[int, ...] | None = None
) -> tuple[Tensor, ...]:
    """Several maps of ``x`` [N, in], each a weight [out, in] and a bias [out] or None: [N, out] each.

    Args:
        counts: how many of the first rows each one maps; all if not given.
    """
    counts = counts or (len(x),) * len(maps)
    return _Linears.apply(work, x, counts, *(tensor for one in maps for tensor in one))


def linear_blocks(
    work: Workspace, blocks: Sequence[Tensor], weight: Tensor, bias: Tensor | None, onto: Tensor | None = None
) -> Tensor:
    """``linear_map`` of rows given in blocks of columns, [N, in_k] each, without joining them."""
    if len(blocks) == 1:
        return linear_map(work, blocks[0], weight, bias, onto)
    at, out = 0, onto
    for block in blocks:
        columns = weight[:, at : at + block.shape[1]]
        out = linear_map(work, block, columns, bias if at == 0 else None, out)
        at += block.shape[1]
    assert out is not None
    return out
