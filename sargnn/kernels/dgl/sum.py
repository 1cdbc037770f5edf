"""Sums over edges by DGL's SpMM (libxsmm on a CPU)."""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.interop.dgl import import_dgl
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.dgl.graphs import backward_graph, forward_graph, whole_graph
from sargnn.kernels.operations import SumOperation


class DglSum(SumOperation):
    """Holds one temporary of the size of its result, because DGL's SpMM cannot add into an existing tensor."""

    def forward(self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        if not block.num_edges:
            return
        with torch.no_grad():
            total = import_dgl().ops.copy_u_sum(forward_graph(block), src)
            if scale is not None:
                total *= (scale if block.dst_rows is None else scale[block.dst_rows.long()])[:, None]
        if block.dst_rows is None:
            out.add_(total)
        else:
            out.index_add_(0, block.dst_rows, total)

    def backward(self, block: EdgeBlock, grad: Tensor, out: Tensor, scale: Tensor | None = None, *, add: bool = False) -> None:
        if not block.num_edges:
            if not add:
                out.zero_()
            return
        with torch.no_grad():
            total = import_dgl().ops.copy_u_sum(backward_graph(block), grad if scale is None else grad * scale[:, None])
        if add:
            out.add_(total)
        else:
            out.copy_(total)


def sum_autograd(block: EdgeBlock, src: Tensor) -> Tensor:
    """The operation in DGL's operators, differentiable; see ``SumOperation``."""
    if not block.num_edges:
        return src.new_zeros(block.num_dst, src.shape[1]) + 0 * src.sum()  # keeps the exchange in the graph
    return import_dgl().ops.copy_u_sum(whole_graph(block), src)
