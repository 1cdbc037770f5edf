"""Sums over edges by DGL's SpMM (libxsmm on a CPU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.interop.dgl import import_dgl
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.dgl.graphs import (
    attention_graphs,
    backward_graph,
    forward_graph,
    whole_attention_graph,
    whole_graph,
)
from sargnn.kernels.operations import WeightedSumOperation


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
