"""The oracle: plain PyTorch operations, any device, slow."""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.kernels.base import Kernel
from sargnn.kernels.block import EdgeBlock


class ReferenceKernel(Kernel):
    """Every operation as gather and ``index_add_``; holds a tensor of size edges x features while it runs."""

    name = "reference"
    operations = frozenset({"sum"})

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        return []

    def sum_forward(self, block: EdgeBlock, src: Tensor, out: Tensor) -> None:
        out.index_add_(0, block.dst_per_edge(), src[block.src.long()])

    def sum_backward(self, block: EdgeBlock, grad: Tensor, out: Tensor) -> None:
        out.zero_().index_add_(0, block.src.long(), grad[block.dst_per_edge()])

    def sum_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        zeros = src.new_zeros(block.num_dst, src.shape[1])
        return zeros.index_add(0, block.dst_per_edge(), src[block.src.long()])
