"""Sums as products with dense matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.backends.base import Kernel
from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import SumOperation


def counts(block: EdgeBlock, like: Tensor) -> Tensor:
    """[M, S]: how many edges j -> i there are."""
    matrix = like.new_zeros(block.num_dst, block.num_src)
    return matrix.index_put_((block.dst_per_edge(), block.src.long()), like.new_ones(()), accumulate=True)


class DenseSum(SumOperation):
    """Holds M x S numbers while it runs."""

    def forward(self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        sums = counts(block, src) @ src
        out.add_(sums if scale is None else sums * scale[:, None])

    def backward(self, block: EdgeBlock, grad: Tensor, out: Tensor, scale: Tensor | None = None, *, add: bool = False) -> None:
        sums = counts(block, grad).T @ (grad if scale is None else grad * scale[:, None])
        if add:
            out.add_(sums)
        else:
            out.copy_(sums)


def sum_autograd(block: EdgeBlock, src: Tensor) -> Tensor:
    """The same for the baseline."""
    return counts(block, src) @ src


class Dense(Kernel):
    """One operation, in two forms."""

    name = "dense"
    operations = {"sum": DenseSum}
    autograd_operations = {"sum": sum_autograd}

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        return []
