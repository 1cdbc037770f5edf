"""Attention with GAT's scores in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from sargnn.kernels.attention import Attention, RunningSoftmax
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.operations import GatOperation
from sargnn.kernels.reference.edge_softmax import attend, destination_records, ends_of, fold_scores, score_gradients


class ReferenceGat(GatOperation):
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
        el: Tensor,
        er: Tensor,
        running: RunningSoftmax,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> None:
        src, dst = ends_of(block)
        edge_scores = leaky_relu(el[src] + er[dst], attention.negative_slope)
        fold_scores(block, attention, z, edge_scores, running, weight, scores)

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
        src, dst = ends_of(block)
        if scores is None:
            scores = leaky_relu(el[src] + records[dst, : attention.heads], attention.negative_slope)
        dropped, d_scores = score_gradients(block, attention, z, scores, records, grad, weight)
        d_scores = torch.where(scores > 0, d_scores, d_scores * attention.negative_slope)
        d_er.index_add_(0, dst, d_scores)
        if d_z is not None and d_el is not None:
            (d_el if add else d_el.zero_()).index_add_(0, src, d_scores)
            (d_z if add else d_z.zero_()).index_add_(0, src, (dropped[:, :, None] * attention.by_head(grad)[dst]).flatten(1))


def gat_autograd(
    block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The operation in plain PyTorch, differentiable; see ``GatOperation``."""
    src, dst = ends_of(block)
    return attend(block, attention, z, leaky_relu(el[src] + er[dst], attention.negative_slope), weight)
