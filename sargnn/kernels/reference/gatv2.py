"""Attention with GATv2's scores in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from sargnn.kernels.attention import Attention, RunningSoftmax
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.operations import GatV2Operation
from sargnn.kernels.reference.edge_softmax import attend, destination_records, ends_of, fold_scores, score_gradients


class ReferenceGatV2(GatV2Operation):
    """Gather, compute per edge, ``index_add_``; holds tensors of size E x K D while it runs."""

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
        src, dst = ends_of(block)
        active = leaky_relu(z[src] + x[dst], attention.negative_slope)
        edge_scores = attention.by_head(active * att).sum(2)
        fold_scores(block, attention, z, edge_scores, running, weight, scores)

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
        src, dst = ends_of(block)
        u = z[src] + x[dst]
        active = leaky_relu(u, attention.negative_slope)
        if scores is None:
            scores = attention.by_head(active * att).sum(2)
        dropped, d_scores = score_gradients(block, attention, z, scores, records, grad, weight)
        wide = d_scores.repeat_interleave(att.numel() // attention.heads, dim=1)
        d_att += (wide * active).sum(0)
        d_u = wide * att
        d_u = torch.where(u > 0, d_u, d_u * attention.negative_slope)
        d_x.index_add_(0, dst, d_u)
        if d_z is not None:
            d_u += (dropped[:, :, None] * attention.by_head(grad)[dst]).flatten(1)
            (d_z if add else d_z.zero_()).index_add_(0, src, d_u)


def gatv2_autograd(
    block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The operation in plain PyTorch, differentiable; see ``GatV2Operation``."""
    src, dst = ends_of(block)
    active = leaky_relu(z[src] + x[dst], attention.negative_slope)
    return attend(block, attention, z, attention.by_head(active * att).sum(2), weight)
