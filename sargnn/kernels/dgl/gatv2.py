"""Attention with GATv2's scores in DGL's operators: the paper's SAR without fused kernels, and the baseline's attention."""

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
from sargnn.kernels.operations import GatV2Operation


class DglGatV2(GatV2Operation):
    """Holds tensors of size edges x heads x head width while a block is at work."""

    lists_sources = True
    destination_records = staticmethod(destination_records)
    takes_weights = True
    keeps_scores = True

    def forward(
        self,
        block: EdgeBlock,
        attention: Attention,
        z: Tensor,
        x: Tensor,
        att: Tensor,
        running: RunningSoftmax,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> None:
        if not block.num_edges:
            return
        graphs = attention_graphs(block)
        with torch.no_grad():
            active = import_dgl().ops.u_add_v(graphs.forward, z, graphs.rows(x))
            leaky_relu(active, attention.negative_slope, inplace=True)
            edge_scores = attention.by_head(active.mul_(att)).sum(2)
            fold_scores(block, graphs, attention, z, edge_scores, running, weight, scores)

    def backward(
        self,
        block: EdgeBlock,
        attention: Attention,
        z: Tensor,
        x: Tensor,
        att: Tensor,
        records: Tensor,
        grad: Tensor,
        d_z: Tensor | None,
        d_x: Tensor,
        d_att: Tensor,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
        add: bool = False,
    ) -> None:
        if not block.num_edges:
            zero(None if add else d_z)
            return
        graphs, ops = attention_graphs(block), import_dgl().ops
        with torch.no_grad():
            own = graphs.rows(records)
            u = ops.u_add_v(graphs.forward, z, graphs.rows(x))
            active = leaky_relu(u, attention.negative_slope)
            if scores is None:
                scores = attention.by_head(active * att).sum(2)
            dropped, d_scores = score_gradients(block, graphs, attention, z, scores, own, graphs.rows(grad), weight)
            wide = d_scores.repeat_interleave(att.numel() // attention.heads, dim=1)
            d_att += active.mul_(wide).sum(0)
            d_u = wide.mul_(att)
            d_u = torch.where(u > 0, d_u, d_u * attention.negative_slope)
            add_to_listed(d_x, graphs, ops.copy_e_sum(graphs.forward, d_u))
            if d_z is not None:
                put(d_z, weigh(graphs.backward, attention, graphs.rows(grad), dropped), add=add)
                d_z += ops.copy_e_sum(graphs.backward, d_u)


def gatv2_autograd(
    block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The operation in DGL's operators, differentiable; see ``GatV2Operation``."""
    if not block.num_edges:
        return z.new_zeros(block.num_dst, z.shape[1]) + 0 * (z.sum() + x.sum() + att.sum())
    active = leaky_relu(import_dgl().ops.u_add_v(whole_attention_graph(block), z, x), attention.negative_slope)
    return attend(block, attention, z, attention.by_head(active * att).sum(2), weight)
