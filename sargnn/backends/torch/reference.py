"""The oracle: every operation as gather and ``index_add_`` in plain PyTorch. Any device, slow; holds a tensor of size edges x
features while it runs."""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.backends.base import Kernel
from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import MaxOperation, WeightedSumOperation


class ReferenceKernel(Kernel):
    """Every operation as gather and ``index_add_``; holds a tensor of size edges x features while it runs."""

    name = "reference"
    operations = {
        "sum": "sargnn.backends.torch.reference:ReferenceSum",
        "max": "sargnn.backends.torch.reference:ReferenceMax",
        "gat": "sargnn.backends.torch.reference_attention:ReferenceGat",
        "gatv2": "sargnn.backends.torch.reference_attention:ReferenceGatV2",
    }
    autograd_operations = {
        "sum": "sargnn.backends.torch.reference:sum_autograd",
        "max": "sargnn.backends.torch.reference:max_autograd",
        "gat": "sargnn.backends.torch.reference_attention:gat_autograd",
        "gatv2": "sargnn.backends.torch.reference_attention:gatv2_autograd",
    }

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        return []


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


class ReferenceMax(MaxOperation):
    """Gather and ``scatter_reduce``; holds tensors of size edges x features while it runs."""

    lists_sources = True

    def forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        if not block.num_edges:
            return
        dst = block.dst_per_edge()[:, None].expand(-1, src.shape[1])
        messages = src[block.src.long()]
        most = best.scatter_reduce(0, dst, messages, "amax")
        winner.masked_fill_(most > best, torch.iinfo(torch.int32).max)
        ranks = block.src_id_rank[block.src.long()][:, None].expand_as(messages)
        loses = messages != most.gather(0, dst)
        ranks = ranks.masked_fill(loses, torch.iinfo(torch.int32).max)
        winner.copy_(winner.scatter_reduce(0, dst, ranks, "amin"))
        best.copy_(most)

    def backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor, *, add: bool = False) -> None:
        pairs = torch.stack([block.src.long(), block.dst_per_edge()]).unique(dim=1)  # parallel edges count once
        won = winner[pairs[1]] == block.src_id_rank[pairs[0]][:, None]
        (out if add else out.zero_()).index_add_(0, pairs[0], grad[pairs[1]] * won)


def max_autograd(block: EdgeBlock, src: Tensor) -> Tensor:
    """The operation in plain PyTorch, differentiable; see ``MaxOperation``."""
    if not block.num_edges:
        return src.new_zeros(block.num_dst, src.shape[1]) + 0 * src.sum()  # keeps the exchange in the graph
    with torch.no_grad():
        best = src.new_full((block.num_dst, src.shape[1]), -torch.inf)
        winner = torch.full_like(best, torch.iinfo(torch.int32).max, dtype=torch.int32)
        ReferenceMax().forward(block, src, best, winner)
        ranks, rows = block.src_id_rank.sort()
        winning = rows[torch.searchsorted(ranks, winner).clamp_(max=block.num_src - 1)]
        empty = torch.ones(block.num_dst, 1, dtype=torch.bool, device=src.device)
        empty[block.dst_per_edge()] = False
    most = src.gather(0, winning).masked_fill(empty, 0)
    return torch.where(best.isnan(), best, most)  # a row that is not a number has no winner
