"""The oracle: plain PyTorch operations, any device, slow."""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.reference_attention import ReferenceAttention


class ReferenceKernel(ReferenceAttention):
    """Every operation as gather and ``index_add_``; holds a tensor of size edges x features while it runs."""

    name = "reference"
    operations = frozenset({"sum", "max", "gat", "gatv2"})

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        return []

    def sum_forward(self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        dst, messages = block.dst_per_edge(), src[block.src.long()]
        out.index_add_(0, dst, messages if scale is None else messages * scale[dst, None])

    def sum_backward(
        self, block: EdgeBlock, grad: Tensor, out: Tensor, scale: Tensor | None = None, *, add: bool = False
    ) -> None:
        scaled = grad if scale is None else grad * scale[:, None]
        if not add:
            out.zero_()
        out.index_add_(0, block.src.long(), scaled[block.dst_per_edge()])

    def sum_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        zeros = src.new_zeros(block.num_dst, src.shape[1])
        return zeros.index_add(0, block.dst_per_edge(), src[block.src.long()])

    def max_forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        if not block.num_edges:
            return
        dst = block.dst_per_edge()[:, None].expand(-1, src.shape[1])
        messages = src[block.src.long()]
        top = best.scatter_reduce(0, dst, messages, "amax")
        winner.masked_fill_(top > best, torch.iinfo(torch.int32).max)
        places = block.src_order[block.src.long()][:, None].expand_as(messages)
        loses = messages != top.gather(0, dst)
        places = places.masked_fill(loses, torch.iinfo(torch.int32).max)
        winner.copy_(winner.scatter_reduce(0, dst, places, "amin"))
        best.copy_(top)

    def max_backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor) -> None:
        pairs = torch.stack([block.src.long(), block.dst_per_edge()]).unique(dim=1)  # parallel edges count once
        won = winner[pairs[1]] == block.src_order[pairs[0]][:, None]
        out.zero_().index_add_(0, pairs[0], grad[pairs[1]] * won)

    def max_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        if not block.num_edges:
            return src.new_zeros(block.num_dst, src.shape[1]) + 0 * src.sum()  # keeps the exchange in the graph
        with torch.no_grad():
            best = src.new_full((block.num_dst, src.shape[1]), -torch.inf)
            winner = torch.full_like(best, torch.iinfo(torch.int32).max, dtype=torch.int32)
            self.max_forward(block, src, best, winner)
            places, rows = block.src_order.sort()
            winning = rows[torch.searchsorted(places, winner).clamp_(max=block.num_src - 1)]
            empty = torch.ones(block.num_dst, 1, dtype=torch.bool, device=src.device)
            empty[block.dst_per_edge()] = False
        top = src.gather(0, winning).masked_fill(empty, 0)
        return torch.where(best.isnan(), best, top)  # a row that is not a number has no winner
