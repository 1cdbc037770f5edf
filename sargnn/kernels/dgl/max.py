"""Maxima over edges by DGL's SpMM."""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.interop.dgl import copy_u_max_with_rows, import_dgl
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.dgl.graphs import ordered_graph, whole_graph
from sargnn.kernels.operations import MaxOperation


class DglMax(MaxOperation):
    """Holds three temporaries of the size of its result. DGL's own maximum hides rows that are not a number.

    Not for partial results: a row's gradient goes to the winner whether the block has the edge or not.
    """

    def forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        if not block.num_edges:
            return
        with torch.no_grad():
            top, rows = copy_u_max_with_rows(ordered_graph(block, src.dtype), src)
            ranks = block.src_id_rank[rows.long()]
            listed = slice(None) if block.dst_rows is None else block.dst_rows.long()
            known, holder = best[listed], winner[listed]
            better = (top > known) | ((top == known) & (ranks < holder))
            best[listed], winner[listed] = torch.where(better, top, known), torch.where(better, ranks, holder)

    def backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor, *, add: bool = False) -> None:
        # Scattered by winning row, as in DGL's own backward pass; those that no source row of this block won go to a spare row.
        if not block.num_src:
            return
        ranks, rows = block.src_id_rank.sort()
        places = torch.searchsorted(ranks, winner).clamp_(max=block.num_src - 1)
        target = torch.where(ranks[places] == winner, rows[places], block.num_src)
        total = grad.new_zeros(block.num_src + 1, grad.shape[1]).scatter_add_(0, target, grad)[:-1]
        if add:
            out.add_(total)
        else:
            out.copy_(total)


def max_autograd(block: EdgeBlock, src: Tensor) -> Tensor:
    """The operation in DGL's operators, differentiable; see ``MaxOperation``."""
    if not block.num_edges:
        return src.new_zeros(block.num_dst, src.shape[1]) + 0 * src.sum()
    top: Tensor = import_dgl().ops.copy_u_max(whole_graph(block, ordered=src.dtype), src)
    if block.dst_rows is None:
        return top
    isolated = torch.ones(block.num_dst, 1, dtype=torch.bool).index_fill_(0, block.dst_rows.long(), False)
    return top.masked_fill(isolated, 0)  # DGL leaves -inf there
