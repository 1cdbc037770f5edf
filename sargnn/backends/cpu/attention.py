"""Attention on a CPU, by the library's ``attention_*.cpp``, where its equations stand.

Nothing of size edges x heads is stored unless scores are kept: weights are computed again in backward, or from scores, and
dropped again. No two threads add to one row: ``gatv2`` and ``dot`` walk destinations for the gradients of theirs, sources for
those of sources; ``gat`` walks sources, in lanes of which each adds to a table of the destinations' scores of its own.

Letters: S source rows, M destination rows, E edges, K heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.block_arrays import edges_of, features_of, table_of
from sargnn.backends.operations import (
    Attention,
    AttentionGradients,
    AttentionInputs,
    DotOperation,
    GatOperation,
    GatV2Operation,
    RunningSoftmax,
)
from sargnn.backends.walks import AttentionBackward, WalkedAttention
from sargnn.native import Edges, Entry, draw_words, num_threads

_INPUTS = (
    "kind int",
    "edges edges",
    "heads int",
    "scaling float",
    "values xs S KD",
    "keys *s? S KC",
    "queries * M QC",
    "att w? KD",
    "features f? N C",
    "places i? E",
    "map w? C+1 MC",
    "edge_rows x? E F",
    "edge_queries x? M KF",
    "draw draw",
    "source_ids l? S",
    "destination_ids l? M",
    "weight w? E",
    "scores w? E K",
)
_forward = Entry("attention_forward", *_INPUTS, "out w M KD", "maximum w M K", "denominator w M K", "edge_out w? M KF")
_by_destination = Entry(
    "attention_by_destination",
    *_INPUTS,
    "records w M R",
    "grad x M KD",
    "d_queries w M QC",
    "d_att d? L KD",
    "d_map d? LC MC",
    "d_edge_out x? M KF",
    "d_edge_queries w? M KF",
    "d_edge_rows x? E F",
    "all_dropped w? E K",
    "all_d w? E K",
)
_by_source = Entry(
    "attention_by_source",
    *_INPUTS,
    "order i? E",
    "records w M R",
    "grad x M KD",
    "all_dropped w? E K",
    "all_d w? E K",
    "d_values xs? S KD",
    "d_keys *s? S KC",
    "d_queries w? M K",
    "lanes w? LM K",
    "d_map d? LC MC",
    "one_table int",
    "adds int",
)
_records = Entry(
    "attention_records", "er w? M K", "maximum w M K", "denominator w M K", "grad x M KD", "out * M KD", "records w M R"
)
_GAT, _GATV2, _DOT = range(3)
RECORD = 4
"""What backward reads of a destination, side by side: its score, its maximum, 1 / its denominator, delta; K numbers each."""


def destination_records(er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
    """``AttentionOperation.destination_records``."""
    records = running.max_score.new_empty(len(running.max_score), RECORD * running.max_score.shape[1])
    _records(er, running.max_score, running.denominator, grad, running.out, records)
    return records


class _FusedAttention(WalkedAttention):
    destination_records = staticmethod(destination_records)
    keeps_scores = True
    kind: int

    def fold(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        given = self._inputs(block, edges_of(block, "forward"), attention, inputs, inputs.weight)
        _forward(*given, running.out, running.max_score, running.denominator, running.edge_out)

    def send_back(self, back: AttentionBackward) -> None:
        written = (None, None) if self.kind == _GAT else self._add_destination_gradients(back)
        if back.into.sources is not None or self.kind == _GAT:
            self._write_source_gradients(back, *written)

    def _inputs(
        self, block: EdgeBlock, edges: Edges, attention: Attention, inputs: AttentionInputs, weight: Tensor | None
    ) -> tuple[Any, ...]:
        """What every walk reads. weight: in the order of the edges."""
        features, places = (None, None) if inputs.edge_map is None else features_of(block)
        rows, queries = inputs.edges[:2] if inputs.edges else (None, None)
        return (
            self.kind,
            edges,
            attention.heads,
            attention.factor if self.kind == _DOT else attention.negative_slope,
            inputs.sources[0],
            None if self.kind == _GATV2 else inputs.sources[-1],
            inputs.destinations,
            inputs.att,
            features,
            places,
            None if inputs.edge_map is None else table_of(inputs.edge_map),
            rows,
            queries,
            draw_words(attention.draw),
            *((None, None) if attention.draw is None else (block.src_ids, block.dst_ids)),
            weight,
            inputs.scores,
        )

    def _add_destination_gradients(self, back: AttentionBackward) -> tuple[Tensor | None, Tensor | None]:
        """The walk over destinations. Returns of edges with rows what the one over sources reads, [E, K] each: weights after
        dropout, and gradients of scores."""
        inputs, into = back.inputs, back.into
        written: tuple[Tensor | None, Tensor | None] = None, None
        d_att = d_out = d_queries = d_rows = None
        edges = edges_of(back.block, "forward", by_lane=inputs.att is not None)
        if inputs.att is not None:
            d_att = torch.zeros(edges.chunks, inputs.att.numel(), dtype=torch.float64)
        d_map = _zeros_of_map(inputs, edges)
        if inputs.edges and inputs.edges[0].shape[1]:
            d_out, (d_queries, d_rows) = inputs.edges[2], (*into.edges, None)[:2]
            shape = back.block.num_edges, back.attention.heads
            written = back.records.new_empty(shape), back.records.new_empty(shape)
        read = self._inputs(back.block, edges, back.attention, inputs, inputs.weight)
        given = *read, back.records, back.grad
        _by_destination(*given, into.destinations, d_att, d_map, d_out, d_queries, d_rows, *written)
        if d_att is not None and into.att is not None:
            into.att.add_(d_att.sum(0).to(into.att.dtype))
        _add_of_map(into, d_map, edges)
        return written

    def _write_source_gradients(self, back: AttentionBackward, dropped: Tensor | None, d_scores: Tensor | None) -> None:
        """The walk over sources. dropped, d_scores: of ``_add_destination_gradients``."""
        block, inputs, into = back.block, back.inputs, back.into
        edges = edges_of(block, "backward", by_lane=self.kind == _GAT)
        weight = None if inputs.weight is None else block.by_source(inputs.weight)
        reads = inputs.scores is not None or inputs.edge_map is not None or dropped is not None
        d_er = lanes = d_map = d_values = d_keys = None
        if self.kind == _GAT:
            d_er, d_map = into.destinations, _zeros_of_map(inputs, edges)
            if edges.chunks > 1:
                lanes = d_er.new_empty(min(num_threads(), edges.chunks) * len(d_er), back.attention.heads)
        if into.sources is not None:
            d_values, d_keys = into.sources[0], None if self.kind == _GATV2 else into.sources[-1]
        _by_source(
            *self._inputs(block, edges, back.attention, inputs, weight),
            block.t_edge if reads else None,
            back.records,
            back.grad,
            dropped,
            d_scores,
            d_values,
            d_keys,
            d_er,
            lanes,
            d_map,
            d_keys is d_values,
            back.add,
        )
        _add_of_map(into, d_map, edges)


class FusedGat(_FusedAttention, GatOperation):
    kind = _GAT


class FusedGatV2(_FusedAttention, GatV2Operation):
    kind = _GATV2


class FusedDot(_FusedAttention, DotOperation):
    takes_edge_rows = True
    kind = _DOT


def _zeros_of_map(inputs: AttentionInputs, edges: Edges) -> Tensor | None:
    """Room for gradients of the map's table in each lane: fp64 [lanes (features + 1), columns]."""
    if inputs.edge_map is None:
        return None
    columns, features = inputs.edge_map.shape
    return torch.zeros(edges.chunks * (features + 1), columns, dtype=torch.float64)


def _add_of_map(into: AttentionGradients, d_map: Tensor | None, edges: Edges) -> None:
    """The last row of the table says nothing."""
    if into.edge_map is not None and d_map is not None:
        total = d_map.view(edges.chunks, -1, d_map.shape[1]).sum(0)
        into.edge_map.add_(total[:-1].T.to(into.edge_map.dtype))
