"""Sums over edges in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.operations import SumOperation


class ReferenceSum(SumOperation):
    """Gather and ``index_add_``; holds a tensor of size edges x features while it runs."""

    def forward(self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        dst, messages = block.dst_per_edge(), src[block.src.long()]
        out.index_add_(0, dst, messages if scale is None else messages * scale[dst, None])

    def backward(self, block: EdgeBlock, grad: Tensor, out: Tensor, scale: Tensor | None = None, *, add: bool = False) -> None:
        scaled = grad if scale is None else grad * scale[:, None]
        if not add:
            out.zero_()
        out.index_add_(0, block.src.long(), scaled[block.dst_per_edge()])


def sum_autograd(block: EdgeBlock, src: Tensor) -> Tensor:
    """The operation in plain PyTorch, differentiable; see ``SumOperation``."""
    zeros = src.new_zeros(block.num_dst, src.shape[1])
    return zeros.index_add(0, block.dst_per_edge(), src[block.src.long()])
