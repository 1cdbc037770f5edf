"""Linear maps, with their place in the profile, without needless copies and keeping no input that can be rebuilt.

y = x W^T + b        dx = g W        dW = g^T x        db = sum of g's rows
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sargnn.engine.pool import POOL
from sargnn.engine.rebuild import keep, kept
from sargnn.spans import LINEAR, span


def _mapped(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b."""
    out = POOL.empty(len(x), len(weight), x)
    return torch.mm(x, weight.T, out=out) if bias is None else torch.addmm(bias, x, weight.T, out=out)


def _product(grad: Tensor, weight: Tensor) -> Tensor:
    """g W."""
    return torch.mm(grad, weight, out=POOL.empty(len(grad), weight.shape[1], grad))


class _Linear(torch.autograd.Function):
    """Saves W, and x unless it can be rebuilt. With ``onto`` the product is added to that tensor, in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, onto: Tensor | None) -> Tensor:
        keep(ctx, x, weight)
        ctx.has_bias, ctx.has_onto = bias is not None, onto is not None
        with span(LINEAR):
            if onto is not None:
                ctx.mark_dirty(onto)
                return onto.addmm_(x, weight.T)
            return _mapped(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = kept(ctx)
        with span(LINEAR):
            d_weight = grad.T @ x
            del x
            d_x = _product(grad, weight) if ctx.needs_input_grad[0] else None
            d_bias = grad.sum(0) if ctx.has_bias else None
        return d_x, d_weight, d_bias, grad if ctx.has_onto else None


def linear(x: Tensor, layer: nn.Linear, onto: Tensor | None = None) -> Tensor:
    """``layer`` applied to ``x`` [N, in]: [N, out].

    Args:
        onto: [N, out], a tensor of no further use to the caller, to which the product is added; only for a layer without
            bias.
    """
    assert onto is None or layer.bias is None
    return linear_map(x, layer.weight, layer.bias, onto)


def linear_map(x: Tensor, weight: Tensor, bias: Tensor | None, onto: Tensor | None = None) -> Tensor:
    """The same from its parameters: weight [out, in], bias [out]."""
    return _Linear.apply(x, weight, bias, onto)


class _Linears(torch.autograd.Function):
    """Several maps of the first rows, ``y_k = x[:n_k] W_k^T + b_k``; their errors of x are added without room for each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: tuple[int, ...], *maps: Tensor | None) -> tuple[Tensor, ...]:
        weights: Any = maps[::2]
        biases = maps[1::2]
        keep(ctx, x, *weights)
        ctx.counts, ctx.biased = counts, [bias is not None for bias in biases]
        with span(LINEAR):
            return tuple(_mapped(x[:n], w, b) for n, w, b in zip(counts, weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = kept(ctx)
        rows, errors = len(x), []
        with span(LINEAR):
            for n, grad, biased in zip(ctx.counts, grads, ctx.biased, strict=True):
                errors += [grad.T @ x[:n], grad.sum(0) if biased else None]
            del x
            d_x = None
            if ctx.needs_input_grad[0]:
                # The first map of all rows writes, the others add.
                order = sorted(range(len(grads)), key=lambda k: -ctx.counts[k])
                for k in order:
                    n, grad, weight = ctx.counts[k], grads[k], weights[k]
                    if d_x is None:
                        d_x = _product(grad, weight) if n == rows else POOL.zeros(rows, weight.shape[1], grad)
                        if n == rows:
                            continue
                    d_x[:n].addmm_(grad, weight)
        return d_x, None, *errors


def linears(x: Tensor, *maps: tuple[Tensor, Tensor | None], counts: tuple[int, ...] | None = None) -> tuple[Tensor, ...]:
    """Several maps of ``x`` [N, in], each a weight [out, in] and a bias [out] or None: [N, out] each.

    Args:
        counts: how many of the first rows each one maps; all if not given.
    """
    counts = counts or (len(x),) * len(maps)
    return _Linears.apply(x, counts, *(tensor for one in maps for tensor in one))


def two_linear(x: Tensor, layer: nn.Linear, other: nn.Linear, counts: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
    """Both layers applied to ``x`` [N, in], or to its first ``counts`` rows."""
    first, second = linears(x, (layer.weight, layer.bias), (other.weight, other.bias), counts=counts)
    return first, second


def linear_columns(blocks: Sequence[Tensor], layer: nn.Linear, onto: Tensor | None = None) -> Tensor:
    """``layer`` applied to rows in blocks of columns, [N, in_k] each, without joining them; ``onto`` as in ``linear``."""
    assert onto is None or layer.bias is None
    at, out = 0, onto
    for block in blocks:
        weight = layer.weight[:, at : at + block.shape[1]]
        out = linear_map(block, weight, layer.bias if at == 0 else None, out)
        at += block.shape[1]
    assert out is not None
    return out
