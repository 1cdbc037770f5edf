"""Attention by the compiled loops of ``gat_loops`` and ``gatv2_loops``. Nothing of size edges x heads is stored: weights are
computed again in backward, or from scores, and dropped again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu import gat_loops, gatv2_loops
from sargnn.backends.cpu.block_arrays import chunks_of_block, lanes_of_block, listed_rows, listed_sources, numpy_of
from sargnn.backends.cpu.destination_records import destination_records
from sargnn.backends.cpu.edge_dropout import words_of
from sargnn.backends.operations import Attention, GatOperation, GatV2Operation, RunningSoftmax
from sargnn.bf16 import number, wide


class FusedGat(GatOperation):
    """Nothing of size edges x heads is stored: weights are computed again in backward, or from scores, and dropped again."""

    lists_sources = True
    samples = staticmethod(gat_loops.samples)
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
        if block.num_edges:
            gat_loops.fold_attention(
                chunks_of_block(block, "forward"),
                listed_rows(block),
                block.indptr.numpy(),
                block.src.numpy(),
                numpy_of(z),
                numpy_of(el),
                numpy_of(er),
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
        assert add or block.src_rows is None or d_z is None, "source rows that are not listed would not be written"
        if d_z is None or d_el is None:
            d_z, d_el, add = torch.empty_like(z), torch.empty_like(el), False
        if not block.num_edges:
            if not add:
                d_z.zero_()
                d_el.zero_()
            return
        bounds = lanes_of_block(block, "backward")
        lanes = _lanes(d_er, len(bounds) - 1)
        gat_loops.write_attention_gradients(
            bounds,
            listed_sources(block),
            block.t_indptr.numpy(),
            block.t_dst.numpy(),
            numpy_of(z),
            numpy_of(el),
            numpy_of(records),
            numpy_of(grad),
            *attention_numbers(block, attention, z),
            edge_weights(block, weight, z, by_source=True),
            *kept_by_source(block, scores, z),
            int(add),
            numpy_of(d_z),
            numpy_of(d_el),
            numpy_of(lanes),
        )
        _add_lanes(d_er, lanes)


def attention_numbers(block: EdgeBlock, attention: Attention, like: Tensor) -> tuple[Any, ...]:
    """The slope and what dropout needs, as the compiled loops take them."""
    ids, of_draw = (block.src_ids.numpy(), block.dst_ids.numpy()), words_of(attention.draw)
    slope, kept = (number(factor, like.dtype) for factor in (attention.negative_slope, attention.scale))
    return slope, attention.heads, *ids, of_draw, kept


def edge_weights(block: EdgeBlock, weight: Tensor | None, like: Tensor, *, by_source: bool = False) -> np.ndarray:
    """Weights [E] as the compiled loops take them: in the order of ``block.src``, or of ``block.t_dst``; empty for ones."""
    if weight is None:
        return numpy_of(like.new_empty(0, dtype=wide(like.dtype)))
    assert weight.shape == (block.num_edges,) and weight.dtype == wide(like.dtype)
    if by_source:
        weight = block.t_weight if weight is block.weight else weight[block.t_edge.long()]
    return numpy_of(weight)


def scores_or_none(scores: Tensor | None, like: Tensor) -> np.ndarray:
    """Scores [E, K] that are kept, as the compiled loops take them; empty for none."""
    return numpy_of(like.new_empty(0, 1, dtype=wide(like.dtype)) if scores is None else scores)


def kept_by_source(block: EdgeBlock, scores: Tensor | None, like: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The same, and where each edge of ``block.t_dst`` stands in it."""
    places = block.t_edge if scores is not None else block.t_dst[:0]
    return scores_or_none(scores, like), places.numpy()


def _lanes(total: Tensor, count: int) -> Tensor:
    """Room [lanes, M, K] to add to ``total`` [M, K]: itself where there is one lane."""
    return total[None] if count == 1 else total.new_zeros(count, *total.shape)


def _add_lanes(total: Tensor, lanes: Tensor) -> None:
    if len(lanes) > 1:
        for lane in lanes:
            total += lane


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
