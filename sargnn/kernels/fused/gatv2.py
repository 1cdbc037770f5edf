"""Attention with GATv2's scores by the compiled loops of ``gatv2_loops``."""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.kernels.attention import Attention, RunningSoftmax
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.fused import gatv2_loops
from sargnn.kernels.fused.block_arrays import chunks_of_block, lanes_of_block, listed_rows, listed_sources, numpy_of
from sargnn.kernels.fused.destination_records import destination_records
from sargnn.kernels.fused.gat import attention_numbers, edge_weights, kept_by_source, scores_or_none
from sargnn.kernels.operations import GatV2Operation


class FusedGatV2(GatV2Operation):
    """Nothing of size edges x heads is stored: weights are computed again in backward, or from scores, and dropped again."""

    lists_sources = True
    samples = staticmethod(gatv2_loops.samples)
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
        if block.num_edges:
            gatv2_loops.fold_attention_v2(
                chunks_of_block(block, "forward"),
                listed_rows(block),
                block.indptr.numpy(),
                block.src.numpy(),
                numpy_of(z),
                numpy_of(x),
                numpy_of(att),
                *attention_numbers(block, attention, z),
                edge_weights(block, weight, z),
                scores_or_none(scores, z),
                numpy_of(running.out),
                numpy_of(running.max_score),
                numpy_of(running.denominator),
            )

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
            if d_z is not None and not add:
                d_z.zero_()
            return
        assert add or block.src_rows is None or d_z is None, "source rows that are not listed would not be written"
        numbers = attention_numbers(block, attention, z)
        rows = (numpy_of(z), numpy_of(x), numpy_of(att), numpy_of(records), numpy_of(grad))
        bounds = lanes_of_block(block, "forward")
        lanes = torch.zeros(len(bounds) - 1, d_att.numel(), dtype=torch.float64)
        gatv2_loops.add_destination_gradients(
            bounds,
            listed_rows(block),
            block.indptr.numpy(),
            block.src.numpy(),
            *rows,
            *numbers,
            edge_weights(block, weight, z),
            scores_or_none(scores, z),
            numpy_of(d_x),
            numpy_of(lanes),
        )
        d_att += lanes.sum(0).to(d_att.dtype)
        if d_z is not None:
            gatv2_loops.write_source_gradients(
                chunks_of_block(block, "backward"),
                listed_sources(block),
                block.t_indptr.numpy(),
                block.t_dst.numpy(),
                *rows,
                *numbers,
                edge_weights(block, weight, z, by_source=True),
                *kept_by_source(block, scores, z),
                int(add),
                numpy_of(d_z),
            )
