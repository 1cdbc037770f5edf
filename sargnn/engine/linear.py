"""Linear maps, with their place in the profile and without needless copies.

y = x W^T + b        dx = g W        dW = g^T x        db = sum of g's rows
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sargnn.spans import LINEAR, span


class _Linear(torch.autograd.Function):
    """Saves x and W. With ``onto`` the product is added to that tensor, in place: ``y = onto + x W^T``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, onto: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias, ctx.has_onto = bias is not None, onto is not None
        with span(LINEAR):
            if onto is not None:
                ctx.mark_dirty(onto)
                return onto.addmm_(x, weight.T)
            return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        with span(LINEAR):
            d_x = grad @ weight if ctx.needs_input_grad[0] else None
            d_weight = grad.T @ x
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


class _TwoLinear(torch.autograd.Function):
    """Two maps of the same rows: ``y = x W^T + b``, ``z = x V^T``; their errors of x are added without room for both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight, other)
        ctx.has_bias = bias is not None
        with span(LINEAR):
            return torch.nn.functional.linear(x, weight, bias), torch.nn.functional.linear(x, other)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_other: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, other = ctx.saved_tensors
        with span(LINEAR):
            d_weight, d_other = grad.T @ x, grad_other.T @ x
            d_bias = grad.sum(0) if ctx.has_bias else None
            d_x = (grad @ weight).addmm_(grad_other, other) if ctx.needs_input_grad[0] else None
        return d_x, d_weight, d_bias, d_other


def two_linear(x: Tensor, layer: nn.Linear, other: nn.Linear) -> tuple[Tensor, Tensor]:
    """Both layers applied to ``x`` [N, in]; ``other`` has no bias."""
    return _TwoLinear.apply(x, layer.weight, layer.bias, other.weight)
