"""Attention with GAT's scores in DGL's operators: the paper's SAR without fused kernels, and the baseline's attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from sargnn.interop.dgl import import_dgl
from sargnn.kernels.attention import Attention, RunningSoftmax
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.dgl.edge_softmax import add_to_listed, attend, fold_scores, put, score_gradients, weigh, zero
from sargnn.kernels.dgl.graphs import attention_graphs, whole_attention_graph
from sargnn.kernels.fused.destination_records import destination_records
from sargnn.kernels.operations import GatOperation


class DglGat(GatOperation):
    """Holds tensors of size edges x heads while a block is at work."""

    lists_sources = True
    destination_records = staticmethod(destination_records)
    takes_weights = True
    keeps_scores = True

    def forward(
        self,
        block: EdgeBlock,
        attention: Attention,
        z: Tensor,
        el: Tensor,
        er: Tensor,
        running: RunningSoftmax,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> None:
        if not block.num_edges:
            return
        graphs = attention_graphs(block)
        with torch.no_grad():
            raw = import_dgl().ops.u_add_v(graphs.forward, el, graphs.rows(er))
            edge_scores = leaky_relu(raw, attention.negative_slope, inplace=True)
            fold_scores(block, graphs, attention, z, edge_scores, running, weight, scores)

    def backward(
        self,
        block: EdgeBlock,
        attention: Attention,
        z: Tensor,
        el: Tensor,
        records: Tensor,
        grad: Tensor,
        d_z: Tensor | None,
        d_el: Tensor | None,
        d_er: Tensor,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
        add: bool = False,
    ) -> None:
        if not block.num_edges:
            zero(*() if add else (d_z, d_el))
            return
        graphs, ops = attention_graphs(block), import_dgl().ops
        with torch.no_grad():
            own = graphs.rows(records)
            if scores is None:
                raw = ops.u_add_v(graphs.forward, el, own[:, : attention.heads].contiguous())
                scores = leaky_relu(raw, attention.negative_slope, inplace=True)
            dropped, d_scores = score_gradients(block, graphs, attention, z, scores, own, graphs.rows(grad), weight)
            d_scores = torch.where(scores > 0, d_scores, d_scores * attention.negative_slope)
            add_to_listed(d_er, graphs, ops.copy_e_sum(graphs.forward, d_scores))
            if d_z is not None and d_el is not None:
                put(d_el, ops.copy_e_sum(graphs.backward, d_scores), add=add)
                put(d_z, weigh(graphs.backward, attention, graphs.rows(grad), dropped), add=add)


def gat_autograd(
    block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The operation in DGL's operators, differentiable; see ``GatOperation``."""
    if not block.num_edges:
        return z.new_zeros(block.num_dst, z.shape[1]) + 0 * (z.sum() + el.sum() + er.sum())  # keeps the exchange in the graph
    raw = import_dgl().ops.u_add_v(whole_attention_graph(block), el.to(z.dtype), er.to(z.dtype))
    return attend(block, attention, z, leaky_relu(raw, attention.negative_slope), weight)
