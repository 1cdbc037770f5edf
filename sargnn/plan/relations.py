"""Plans of single relations, for models that call one relation after the other.

A relation's plan looks homogeneous: one shard for each piece of a peer's rows, one block each, no types. Its input rows are
the layer's input rows of the source type, its output rows the layer's output rows of the destination type. Only halo rows
that the relation reads travel: whoever reads rows tells their owners how often, which also gives the owners the rows'
out-degrees.

Everything collective happens while plans are made. ``LayerPlan.joined`` needs no peer: a layer's lists serve all its relations.

Letters: N own rows, H halo rows, E edges, M output rows, R relations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sargnn.comm.exchange import Exchange
from sargnn.comm.lists import HaloLists
from sargnn.graph.schema import Schema
from sargnn.partition.cut import Part, offsets_of
from sargnn.plan.layer_plan import LayerPlan
from sargnn.plan.load import Layout, OutputRows, edge_positions, halo_lists, load_plan

Restricted = tuple[Part, tuple[int, ...]]
"""A layer's part and the bounds of its output rows, as ``load_plan`` takes them."""


@dataclass(frozen=True)
class _Degrees:
    """A relation's degrees in the whole graph: int64, ``inward`` of the own rows of its destination type, ``outward`` of those
    of its source type; and, of a graph with edge weights, the sums of these, fp64."""

    inward: np.ndarray
    outward: np.ndarray
    in_weights: np.ndarray | None = None
    out_weights: np.ndarray | None = None


@dataclass(frozen=True)
class Outward:
    """Of one relation of a sample: int64, the edges out of each own row of its source type; and of a graph with edge
    weights their sums, fp64."""

    degrees: np.ndarray
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Inward:
    """The same of the edges into each of a layer's output rows of the destination type."""

    degrees: np.ndarray
    weights: np.ndarray | None = None


Drawn = tuple[Sequence[Inward], "Sequence[Outward] | None"]
"""Per relation the degrees of a sample; without those out of rows where nothing reads them."""


@dataclass(frozen=True)
class _Reads:
    """How often one relation's edges read rows: int64, ``own`` per own row of the source type, ``halo`` [H] per halo row here,
    ``peers`` per peer and row that is sent to it."""

    own: np.ndarray
    halo: np.ndarray
    peers: tuple[np.ndarray, ...]


class RelationSplitter:
    """Makes the plans of single relations for any layer of one worker's typed graph. Collective: all ranks make one, and split
    the same layers in the same order.

    Args:
        part: the worker's whole part.
        layout, device, message_rows, dtype: as ``load_plan``.
    """

    def __init__(
        self,
        part: Part,
        exchange: Exchange,
        layout: Layout,
        *,
        device: torch.device,
        message_rows: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._dtype = dtype
        self._exchange, self._layout, self._device, self._message_rows = exchange, layout, device, message_rows
        self._rank = exchange.group.rank
        self._row_bounds = part.row_bounds
        lists = halo_lists(part, torch.device("cpu"))
        self._degrees = [self._count(part, lists, r) for r in range(len(part.schema.relations))]

    def split(
        self,
        restrict: Callable[[], Restricted],
        inputs: np.ndarray | None = None,
        outputs: np.ndarray | None = None,
        drawn: Drawn | None = None,
    ) -> LayerPlan:
        """A layer's plan with ``relations``, and ``joined`` on demand.

        Args:
            restrict: gives the layer's part; called again when ``joined`` is asked for, so that nothing is held for it.
            inputs, outputs: the own rows that are the layer's input and output rows, type by type; None: all.
            drawn: a sample's degrees; None: those in the whole graph.
        """
        part, bounds = restrict()
        common = load_plan(part, self._rank, None, device=self._device, message_rows=self._message_rows, out_bounds=bounds)
        plans = tuple(self._plan(part, bounds, r, inputs, outputs, drawn) for r in range(len(part.schema.relations)))
        return dataclasses.replace(common, relations=plans, join=lambda: self._join(*restrict()))

    def _count(self, part: Part, lists: HaloLists, relation: int) -> _Degrees:
        reads = self._reads(part, lists, relation)
        outward, first = reads.own, part.row_bounds[part.schema.relations[relation].source]
        for rows, counts in zip(lists.send_rows, reads.peers, strict=True):
            outward[rows.numpy()[counts > 0] - first] += counts[counts > 0]
        a, b = self._ends(part.row_bounds, part.schema.relations[relation].destination)
        inward = np.zeros(b - a, np.int64)
        for q in range(len(lists.send_rows)):
            inward += np.bincount(part.edges(q, relation)[1] - a, minlength=b - a)
        if not part.weighted:
            return _Degrees(inward, outward)
        return _Degrees(inward, outward, *self._sum_weights(part, lists, relation))

    def _sum_weights(self, part: Part, lists: HaloLists, relation: int) -> tuple[np.ndarray, np.ndarray]:
        """fp64, a relation's weights into the own rows of its destination type, and out of those of its source type."""
        ends = part.schema.relations[relation]
        (a, b), (c, d) = (self._ends(part.row_bounds, node_type) for node_type in (ends.source, ends.destination))
        inward, outward, halo = np.zeros(d - c), np.zeros(b - a), np.zeros(len(part.halo_ids))
        for q in range(len(lists.send_rows)):
            (src, dst), weights = part.edges(q, relation), part.columns_of(q, relation).weight
            inward += np.bincount(dst - c, weights=weights, minlength=d - c)
            if q == self._rank:
                outward += np.bincount(src - a, weights=weights, minlength=b - a)
            else:
                first, last = part.halo_offsets[q], part.halo_offsets[q + 1]
                halo[first:last] = np.bincount(src, weights=weights, minlength=last - first)
        told = self._exchange.to_owners(lists, (torch.from_numpy(halo[:, None]),))
        for rows, (sums,) in zip(lists.send_rows, told, strict=True):
            own = (rows.numpy() >= a) & (rows.numpy() < b)
            outward[rows.numpy()[own] - a] += sums.numpy()[own, 0]
        return inward, outward

    def _reads(self, part: Part, lists: HaloLists, relation: int) -> _Reads:
        a, b = self._ends(part.row_bounds, part.schema.relations[relation].source)
        halo = np.zeros(len(part.halo_ids), np.int64)
        for q in range(len(lists.send_rows)):
            first, last = part.halo_offsets[q], part.halo_offsets[q + 1]
            if q != self._rank:
                halo[first:last] = np.bincount(part.edges(q, relation)[0], minlength=last - first)
        own = np.bincount(part.edges(self._rank, relation)[0] - a, minlength=b - a)
        told = self._exchange.to_owners(lists, (torch.from_numpy(halo[:, None]),))
        return _Reads(own, halo, tuple(counts.numpy()[:, 0] for (counts,) in told))

    def _plan(
        self,
        part: Part,
        out_bounds: tuple[int, ...],
        number: int,
        inputs: np.ndarray | None,
        outputs: np.ndarray | None,
        drawn: Drawn | None,
    ) -> LayerPlan:
        relation = part.schema.relations[number]
        lists = halo_lists(part, torch.device("cpu"))
        reads = self._reads(part, lists, number)
        (a, b), (c, d) = self._ends(part.row_bounds, relation.source), self._ends(out_bounds, relation.destination)

        def of_inputs(values: np.ndarray) -> np.ndarray:
            return values if inputs is None else values[inputs[a:b] - self._row_bounds[relation.source]]

        def of_outputs(values: np.ndarray) -> np.ndarray:
            return values if outputs is None else values[outputs[c:d] - self._row_bounds[relation.destination]]

        if drawn is None:
            known = self._degrees[number]
            inward = Inward(of_outputs(known.inward), None if known.in_weights is None else of_outputs(known.in_weights))
            outward: Outward | None = Outward(known.outward, known.out_weights)
        else:
            inward, outward = (
                drawn[0][number] if drawn[0] else Inward(np.zeros(d - c, np.int64), np.zeros(d - c) if part.weighted else None),
                drawn[1][number] if drawn[1] else None,
            )
        first_own = part.row_bounds[relation.destination]  # a type's output rows are the first of its own rows
        rows = OutputRows(
            ids=np.asarray(part.node_ids[first_own : first_own + d - c]),
            in_degrees=inward.degrees,
            own=None if relation.source == relation.destination else (),
            in_weights=inward.weights,
        )
        alone = _one_relation(part, self._rank, number, c, reads)
        if outward is not None:
            alone = dataclasses.replace(
                alone,
                out_degrees=of_inputs(outward.degrees),
                out_weights=None if outward.weights is None else of_inputs(outward.weights),
            )
        return self._load(alone, rows)

    def _join(self, part: Part, out_bounds: tuple[int, ...]) -> LayerPlan:
        joined, types = _joined(part)
        own = tuple(
            (at, first, last - first) for at, first, last in zip(part.row_bounds, out_bounds, out_bounds[1:], strict=False)
        )
        rows = OutputRows(
            ids=np.concatenate([part.node_ids[at : at + n] for at, _, n in own]),
            in_degrees=np.concatenate([part.in_degrees[at : at + n] for at, _, n in own]),
            own=None if out_bounds == part.row_bounds else own,
        )
        if part.in_weights is not None:
            into = np.concatenate([part.in_weights[at : at + n] for at, _, n in own])
            rows = dataclasses.replace(rows, in_weights=into)
        plan = self._load(joined, rows)
        edge_types = torch.from_numpy(types[edge_positions(joined, plan)].astype(np.int64)).to(self._device)
        return dataclasses.replace(plan, edge_types=edge_types)

    def _load(self, part: Part, rows: OutputRows) -> LayerPlan:
        return load_plan(
            part,
            self._rank,
            self._layout,
            device=self._device,
            message_rows=self._message_rows,
            outputs=rows,
            dtype=self._dtype,
        )

    @staticmethod
    def _ends(bounds: tuple[int, ...], node_type: int) -> tuple[int, int]:
        return bounds[node_type], bounds[node_type + 1]


def _one_relation(part: Part, rank: int, relation: int, first_out: int, reads: _Reads) -> Part:
    """The part with one relation's edges, its sources' rows and the halo rows that it reads; without degrees and sums."""
    source = part.schema.relations[relation].source
    first, last = part.row_bounds[source : source + 2]
    read = reads.halo > 0
    kept_before = np.concatenate([[0], np.cumsum(read)])
    halo_offsets = kept_before[part.halo_offsets]
    sources, destinations, send = [], [], []
    for q, sent in enumerate(reads.peers):
        src, dst = part.edges(q, relation)
        local = src - first if q == rank else kept_before[part.halo_offsets[q] + src] - halo_offsets[q]
        sources.append(local.astype(np.int32))
        destinations.append(dst - np.int32(first_out))
        rows = np.asarray(part.send_rows[part.send_offsets[q] : part.send_offsets[q + 1]])
        send.append(rows[sent > 0] - np.int32(first))
    nothing = np.zeros(0, np.int64)
    return dataclasses.replace(
        part,
        schema=Schema.homogeneous(part.schema.num_nodes),
        features=(),
        node_ids=np.asarray(part.node_ids[first:last]),
        labels=nothing,
        split=nothing,
        in_degrees=nothing,
        out_degrees=nothing,
        edge_src=np.concatenate(sources),
        edge_dst=np.concatenate(destinations),
        edge_offsets=offsets_of(sources),
        halo_ids=np.asarray(part.halo_ids)[read],
        halo_offsets=halo_offsets,
        send_rows=np.concatenate(send),
        send_offsets=offsets_of(send),
        columns=part.columns.runs([part.edge_span(q, relation) for q in range(len(reads.peers))]),
        in_weights=None,
        out_weights=None,
    )


def _joined(part: Part) -> tuple[Part, np.ndarray]:
    """The part with all relations as one, and each edge's relation, uint8 [E]. Parallel edges go by relation."""
    relations, world = len(part.schema.relations), len(part.halo_offsets) - 1
    types = np.repeat(np.tile(np.arange(relations, dtype=np.uint8), world), np.diff(part.edge_offsets))
    offsets = np.asarray(part.edge_offsets)[::relations]
    order = np.concatenate(
        [a + np.lexsort((part.edge_src[a:b], part.edge_dst[a:b])) for a, b in zip(offsets, offsets[1:], strict=False)]
    )
    joined = dataclasses.replace(
        part,
        schema=Schema.homogeneous(part.schema.num_nodes),
        features=(),
        edge_src=np.asarray(part.edge_src)[order],
        edge_dst=np.asarray(part.edge_dst)[order],
        edge_offsets=offsets,
        columns=part.columns.take(order),
    )
    return joined, types[order]
