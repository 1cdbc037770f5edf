"""Attention by the compiled loops of ``gat_loops``, ``gatv2_loops`` and ``dot_loops``. Nothing of size edges x heads is stored:
weights are computed again in backward, or from scores, and dropped again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu import dot_loops, gat_loops, gatv2_loops
from sargnn.backends.cpu.attention_parts import destination_records
from sargnn.backends.cpu.block_arrays import edges_of, numpy_of
from sargnn.backends.cpu.edge_features import NO_FEATURES, features_of, table_of
from sargnn.backends.operations import (
    Attention,
    AttentionGradients,
    AttentionInputs,
    AttentionOperation,
    DotOperation,
    GatOperation,
    GatV2Operation,
    RunningSoftmax,
)
from sargnn.bf16 import wide
from sargnn.numba_bf16 import number
from sargnn.numba_rng import words_of


class _FusedAttention(AttentionOperation):
    lists_sources = True
    destination_records = staticmethod(destination_records)
    takes_weights = True
    keeps_scores = True


class FusedGat(_FusedAttention, GatOperation):
    """See ``gat_loops``."""

    samples = staticmethod(gat_loops.samples)

    def forward(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        if block.num_edges:
            z, el = inputs.sources
            gat_loops.fold_attention(
                edges_of(block, "forward"),
                *(numpy_of(tensor) for tensor in (z, el, inputs.destinations)),
                _of_edges(block, inputs),
                _numbers(block, attention, z),
                _weights(block, inputs, by_source=False),
                _scores(inputs),
                _arrays(running),
            )

    def backward(
        self,
        block: EdgeBlock,
        attention: Attention,
        inputs: AttentionInputs,
        records: Tensor,
        grad: Tensor,
        into: AttentionGradients,
        *,
        add: bool = False,
    ) -> None:
        assert add or block.src_rows is None or into.sources is None, "source rows that are not listed would not be written"
        (z, el), d_er = inputs.sources, into.destinations
        if into.sources is None:
            d_z, d_el, add = torch.empty_like(z), torch.empty_like(el), False
        else:
            d_z, d_el = into.sources
        if not block.num_edges:
            if not add:
                d_z.zero_()
                d_el.zero_()
            return
        edges = edges_of(block, "backward", by_lane=True)
        bounds = edges[0]
        lanes = d_er[None] if len(bounds) == 2 else d_er.new_zeros(len(bounds) - 1, *d_er.shape)
        of_edges = _of_edges(block, inputs)
        d_table = np.zeros((len(bounds) - 1, *of_edges[1].shape))
        gat_loops.write_attention_gradients(
            edges,
            *(numpy_of(tensor) for tensor in (z, el)),
            of_edges,
            *(numpy_of(tensor) for tensor in (records, grad)),
            _numbers(block, attention, z),
            _weights(block, inputs, by_source=True),
            _kept_by_source(block, inputs),
            int(add),
            (numpy_of(d_z), numpy_of(d_el), numpy_of(lanes), d_table),
        )
        _add_of_map(into, d_table)
        if len(lanes) > 1:
            for lane in lanes:
                d_er += lane


class FusedGatV2(_FusedAttention, GatV2Operation):
    """See ``gatv2_loops``."""

    samples = staticmethod(gatv2_loops.samples)

    def forward(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        if block.num_edges:
            gatv2_loops.fold_attention_v2(
                edges_of(block, "forward"),
                *_ends(inputs),
                _of_edges(block, inputs),
                _numbers(block, attention, inputs.sources[0]),
                _weights(block, inputs, by_source=False),
                _scores(inputs),
                _arrays(running),
            )

    def backward(
        self,
        block: EdgeBlock,
        attention: Attention,
        inputs: AttentionInputs,
        records: Tensor,
        grad: Tensor,
        into: AttentionGradients,
        *,
        add: bool = False,
    ) -> None:
        d_z = None if into.sources is None else into.sources[0]
        if not block.num_edges:
            if d_z is not None and not add:
                d_z.zero_()
            return
        assert add or block.src_rows is None or d_z is None, "source rows that are not listed would not be written"
        assert into.att is not None
        numbers, of_edges = _numbers(block, attention, inputs.sources[0]), _of_edges(block, inputs)
        given = (_ends(inputs), of_edges, numpy_of(records), numpy_of(grad), numbers)
        edges = edges_of(block, "forward", by_lane=True)
        lanes = torch.zeros(len(edges[0]) - 1, into.att.numel(), dtype=torch.float64)
        weights, d_table = _weights(block, inputs, by_source=False), np.zeros((len(lanes), *of_edges[1].shape))
        d_x = numpy_of(into.destinations)
        gatv2_loops.add_destination_gradients(edges, *given, weights, _scores(inputs), d_x, numpy_of(lanes), d_table)
        into.att.add_(lanes.sum(0).to(into.att.dtype))
        _add_of_map(into, d_table)
        if d_z is not None:
            edges, weights = edges_of(block, "backward"), _weights(block, inputs, by_source=True)
            gatv2_loops.write_source_gradients(edges, *given, weights, _kept_by_source(block, inputs), int(add), numpy_of(d_z))


class FusedDot(_FusedAttention, DotOperation):
    """See ``dot_loops``."""

    takes_edge_rows = True
    samples = staticmethod(dot_loops.samples)

    def forward(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        if block.num_edges:
            dot_loops.fold_attention_dot(
                edges_of(block, "forward"),
                *_rows_of_ends(inputs),
                _numbers(block, attention, inputs.sources[0], attention.factor),
                _weights(block, inputs, by_source=False),
                _scores(inputs),
                (*_edge_rows(inputs)[:2], numpy_of(_none(inputs, held=True) if running.edge_out is None else running.edge_out)),
                _arrays(running),
            )

    def backward(
        self,
        block: EdgeBlock,
        attention: Attention,
        inputs: AttentionInputs,
        records: Tensor,
        grad: Tensor,
        into: AttentionGradients,
        *,
        add: bool = False,
    ) -> None:
        if not block.num_edges:
            if into.sources is not None and not add:
                for gradient in into.sources:
                    gradient.zero_()
            return
        assert add or block.src_rows is None or into.sources is None, "source rows that are not listed would not be written"
        numbers = _numbers(block, attention, inputs.sources[0], attention.factor)
        given = (_rows_of_ends(inputs), numpy_of(records), numpy_of(grad), numbers)
        edges, weights = edges_of(block, "forward"), _weights(block, inputs, by_source=False)
        # Of edges with rows the walk over destinations keeps what that over sources reads, instead of computing it again.
        writes = block.num_edges if inputs.edges and inputs.edges[0].shape[1] else 0
        written = [_none(inputs, held=True).new_empty(writes, attention.heads) for _ in range(2)]
        nothing = _none(inputs, held=True), _none(inputs)
        d_p, d_f = (*into.edges, *nothing[len(into.edges) :])[:2]
        of_edges = *_edge_rows(inputs), *(numpy_of(tensor) for tensor in (d_p, d_f, *written))
        dot_loops.add_query_gradients(edges, *given, weights, _scores(inputs), of_edges, numpy_of(into.destinations))
        if into.sources is not None:
            scores, places = _kept_by_source(block, inputs)
            kept = scores, block.t_edge.numpy() if writes else places, *(numpy_of(tensor) for tensor in written)
            edges, weights = edges_of(block, "backward"), _weights(block, inputs, by_source=True)
            gradients = numpy_of(into.sources[0]), numpy_of(into.sources[-1]), int(len(into.sources) == 1)
            dot_loops.write_key_gradients(edges, *given, weights, kept, int(add), gradients)


# What the compiled loops take


def _numbers(block: EdgeBlock, attention: Attention, like: Tensor, factor: float | None = None) -> tuple[Any, ...]:
    """The slope, or the factor, K and what dropout needs."""
    first = attention.negative_slope if factor is None else factor
    scaling, kept = (number(value, like.dtype) for value in (first, attention.scale))
    return scaling, attention.heads, block.src_ids.numpy(), block.dst_ids.numpy(), words_of(attention.draw), kept


def _ends(inputs: AttentionInputs) -> tuple[Any, ...]:
    """z, x and att of GATv2."""
    assert inputs.att is not None
    return numpy_of(inputs.sources[0]), numpy_of(inputs.destinations), numpy_of(inputs.att)


def _of_edges(block: EdgeBlock, inputs: AttentionInputs) -> tuple[Any, ...]:
    """Features, and the table of their map; without rows where they are not read."""
    if inputs.edge_map is None:
        return NO_FEATURES, numpy_of(_none(inputs, held=True))
    return features_of(block), table_of(inputs.edge_map)


def _add_of_map(into: AttentionGradients, totals: np.ndarray) -> None:
    """Gradients of the map's table, fp64 [T, features + 1, columns], the last row of which says nothing."""
    if into.edge_map is not None:
        into.edge_map.add_(torch.from_numpy(totals.sum(0)[:-1].T).to(into.edge_map.dtype))


def _rows_of_ends(inputs: AttentionInputs) -> tuple[Any, ...]:
    """v, k and q of products."""
    return numpy_of(inputs.sources[0]), numpy_of(inputs.sources[-1]), numpy_of(inputs.destinations)


def _none(inputs: AttentionInputs, *, held: bool = False) -> Tensor:
    """An empty table of rows, or of what sums of such are held in."""
    like = inputs.sources[0]
    return like.new_empty(0, 0, dtype=wide(like.dtype) if held else like.dtype)


def _edge_rows(inputs: AttentionInputs) -> tuple[Any, ...]:
    """f, p and the gradient of t; empty where there are none."""
    return tuple(numpy_of(rows) for rows in (*inputs.edges, *[_none(inputs)] * (3 - len(inputs.edges))))


def _weights(block: EdgeBlock, inputs: AttentionInputs, *, by_source: bool) -> Any:
    """[E], in the order of ``block.src``, or of ``block.t_dst``; empty for ones."""
    weight, like = inputs.weight, inputs.sources[0]
    if weight is None:
        return numpy_of(like.new_empty(0, dtype=wide(like.dtype)))
    assert weight.shape == (block.num_edges,) and weight.dtype == wide(like.dtype)
    return numpy_of(block.by_source(weight) if by_source else weight)


def _scores(inputs: AttentionInputs) -> Any:
    """[E, K]; empty where they are not kept."""
    like = inputs.sources[0]
    return numpy_of(like.new_empty(0, 1, dtype=wide(like.dtype)) if inputs.scores is None else inputs.scores)


def _kept_by_source(block: EdgeBlock, inputs: AttentionInputs) -> tuple[Any, Any]:
    """The same, and where each edge of ``block.t_dst`` stands in it, and its features among theirs."""
    reads = inputs.scores is not None or inputs.edge_map is not None
    return _scores(inputs), (block.t_edge if reads else block.t_dst[:0]).numpy()


def _arrays(running: RunningSoftmax) -> tuple[Any, ...]:
    return numpy_of(running.out), numpy_of(running.max_score), numpy_of(running.denominator)
