"""Sums over edges in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.operations import WeightedSumOperation


class ReferenceSum(WeightedSumOperation):
    """Gather and ``index_add_``; holds a tensor of size edges x features while it runs."""

    lists_sources = True

    def forward(
        self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None, *, weight: Tensor | None = None
    ) -> None:
        dst, messages = block.dst_per_edge(), src[block.src.long()]
        if weight is not None:
            messages = messages * weight[:, None]
        out.index_add_(0, dst, messages if scale is None else messages * scale[dst, None])

    def backward(
        self,
        block: EdgeBlock,
        grad: Tensor,
        out: Tensor,
        scale: Tensor | None = None,
        *,
        add: bool = False,
        weight: Tensor | None = None,
    ) -> None:
        messages = (grad if scale is None else grad * scale[:, None])[block.dst_per_edge()]
        if not add:
            out.zero_()
        out.index_add_(0, block.src.long(), messages if weight is None else messages * weight[:, None])

    def weight_gradient(self, block: EdgeBlock, src: Tensor, grad: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        scaled = grad if scale is None else grad * scale[:, None]
        out.copy_((scaled[block.dst_per_edge()] * src[block.src.long()]).sum(1))


def sum_autograd(block: EdgeBlock, src: Tensor, weight: Tensor | None = None) -> Tensor:
    """The operation in plain PyTorch, differentiable; see ``WeightedSumOperation``."""
    zeros, messages = src.new_zeros(block.num_dst, src.shape[1]), src[block.src.long()]
    return zeros.index_add(0, block.dst_per_edge(), messages if weight is None else messages * weight[:, None])
