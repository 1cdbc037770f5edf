"""Rows plus a bias: ``y = x + b``, ``dx = g``, ``db = sum of g's rows``, which is fp32 where rows are bf16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.backends.base import Rows
from sargnn.bf16 import wide


class _AddBias(torch.autograd.Function):
    """Saves nothing. The bias is rounded as weights are; of fp32 numbers beside bf16 rows PyTorch would make copies in fp32."""

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
    """``x + b``; x: [N, F], with ``in_place`` of no further use to the caller. bias: [F]."""
    if wide(x.dtype) == x.dtype:
        return x.add_(bias) if in_place else x + bias
    out: Tensor = _AddBias.apply(x, bias, in_place, rows)
    return out
