"""Sums and maxima over edges by DGL's SpMM (libxsmm on a CPU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import MaxOperation, WeightedSumOperation
from sargnn.backends.torch.dgl_graphs import (
    attention_graphs,
    backward_graph,
    forward_graph,
    ordered_graph,
    whole_attention_graph,
    whole_graph,
)
from sargnn.interop.dgl import copy_u_max_with_rows, import_dgl


class DglSum(WeightedSumOperation):
    """Holds one temporary of the size of its result, because DGL's SpMM cannot add into an existing tensor; backward with
    weights other than the block's, one number an edge more."""

    lists_sources = True

    def forward(
        self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None, *, weight: Tensor | None = None
    ) -> None:
        if not block.num_edges:
            return
        with torch.no_grad():
            total = _sums(forward_graph(block), src, weight)
            if scale is not None:
                total *= (scale if block.dst_rows is None else scale[block.dst_rows.long()])[:, None]
        if block.dst_rows is None:
            out.add_(total)
        else:
            out.index_add_(0, block.dst_rows, total)

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
        if not block.num_edges:
            if not add:
                out.zero_()
            return
        with torch.no_grad():
            by_source = None if weight is None else block.by_source(weight)
            total = _sums(backward_graph(block), grad if scale is None else grad * scale[:, None], by_source)
        assert add or block.src_rows is None, "source rows that are not listed would not be written"
        if block.src_rows is not None:
            out.index_add_(0, block.src_rows, total)
        elif add:
            out.add_(total)
        else:
            out.copy_(total)

    def weight_gradient(self, block: EdgeBlock, src: Tensor, grad: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        if not block.num_edges:
            return
        graphs = attention_graphs(block)
        with torch.no_grad():
            scaled = graphs.rows(grad) if scale is None else graphs.rows(grad) * graphs.rows(scale)[:, None]
            out.copy_(import_dgl().ops.u_dot_v(graphs.forward, src, scaled)[:, 0])


def sum_autograd(block: EdgeBlock, src: Tensor, weight: Tensor | None = None) -> Tensor:
    """The operation in DGL's operators, differentiable; see ``WeightedSumOperation``."""
    if not block.num_edges:  # what follows keeps the exchange in the graph
        return src.new_zeros(block.num_dst, src.shape[1]) + 0 * src.sum() + (0 if weight is None else 0 * weight.sum())
    # The weights' gradients are dot products of edges' ends (SDDMM), which read other formats than sums do.
    learned = weight is not None and weight.requires_grad
    return _sums(whole_attention_graph(block) if learned else whole_graph(block), src, weight)


def _sums(graph: Any, rows: Tensor, weight: Tensor | None) -> Tensor:
    """Sums of rows, times a number for each edge if one is given."""
    operators = import_dgl().ops
    weight = None if weight is None else weight.to(rows.dtype)
    if weight is None:
        sums: Tensor = operators.copy_u_sum(graph, rows)
    elif rows.shape[1] == 1:  # in fp32 DGL's code for rows as wide as weights asks for edge numbers, which this graph has not
        sums = operators.u_mul_e_sum(graph, rows.expand(-1, 2), weight[:, None])[:, :1]
    else:
        sums = operators.u_mul_e_sum(graph, rows, weight[:, None])
    return sums


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
