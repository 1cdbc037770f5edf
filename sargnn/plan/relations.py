"""Plans of single relations, for models that call one relation after the other.

A relation's plan looks homogeneous: one shard for each piece of a peer's rows, one block each, no types. Its input rows are the
layer's input rows of the source type, its output rows the layer's output rows of the destination type. Only halo rows that the
relation reads travel: whoever reads rows tells their owners how often, and so the rows' out-degrees.

Everything collective happens while plans are made. ``Relations.joined`` needs no peer: a layer's lists serve all its relations.

Letters: N own rows, H halo rows, E edges, M output rows, R relations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.exchange import Exchange
from sargnn.comm.lists import HaloLists
from sargnn.graph.schema import Schema, relation_dtype
from sargnn.partition.part import Part, WeightedDegrees, offsets_of
from sargnn.plan.layer_plan import LayerPlan, Relations
from sargnn.plan.load import OutputRows, PlanSettings, count_edges, edge_positions, halo_lists, load_plan

Restricted = tuple[Part, tuple[int, ...]]
"""A layer's part and the bounds of its output rows, as ``load_plan`` takes them."""


@dataclass(frozen=True)
class Degrees:
    """One relation's edges into, or out of, each of some rows: int64 counts, and fp64 sums of weights where there are any."""

    counts: np.ndarray
    sums: np.ndarray | None = None

    @classmethod
    def none(cls, rows: int, *, weighted: bool) -> Degrees:
        return cls(np.zeros(rows, np.int64), np.zeros(rows) if weighted else None)

    def at(self, rows: np.ndarray | slice) -> Degrees:
        return Degrees(self.counts[rows], None if self.sums is None else self.sums[rows])


Drawn = tuple[Sequence[Degrees], "Sequence[Degrees] | None"]
"""Per relation the degrees of a sample: into the layer's output rows of the destination type; and out of all own rows of the
source type, None where nothing reads them."""


@dataclass(frozen=True)
class _Reads:
    """How often one relation's edges read rows: int64, or fp64 sums of these edges' weights.

    Attributes:
        own: per own row of the source type.
        halo: [H], per halo row here.
        peers: per peer and row that is sent to it.
    """

    own: np.ndarray
    halo: np.ndarray
    peers: tuple[np.ndarray, ...]


class RelationSplitter:
    """Makes the plans of single relations for any layer of one worker's typed graph. Collective: all ranks make one, and split
    the same layers in the same order. ``only_joined``: no relation is called by itself."""

    def __init__(self, part: Part, exchange: Exchange, settings: PlanSettings, *, only_joined: bool = False) -> None:
        self._exchange, self._settings, self._row_bounds = exchange, settings, part.row_bounds
        lists = halo_lists(part, torch.device("cpu"))
        self._split_up = () if only_joined else tuple(enumerate(part.schema.relations))
        self._degrees = [self._count(part, lists, number) for number, _ in self._split_up]

    def split(
        self,
        restrict: Callable[[], Restricted],
        inputs: np.ndarray | None = None,
        outputs: np.ndarray | None = None,
        drawn: Drawn | None = None,
    ) -> LayerPlan:
        """A layer's plan with ``relations``.

        Args:
            restrict: gives the layer's part; called again when all relations are joined, so that nothing is held for it.
            inputs: the own rows that are the layer's input rows, type by type; None: all.
            outputs: likewise its output rows.
            drawn: a sample's degrees; None: those in the whole graph.
        """
        part, bounds = restrict()
        common = load_plan(part, dataclasses.replace(self._settings, layout=None), out_bounds=bounds)
        plans = []
        for number, relation in self._split_up:
            (a, b), (c, d) = _ends(part.row_bounds, relation.source), _ends(bounds, relation.destination)
            sources = slice(None) if inputs is None else inputs[a:b] - self._row_bounds[relation.source]
            inward: Degrees
            outward: Degrees | None
            if drawn is None:
                inward, outward = self._degrees[number]
                if outputs is not None:
                    inward = inward.at(outputs[c:d] - self._row_bounds[relation.destination])
            else:
                inward = drawn[0][number] if drawn[0] else Degrees.none(d - c, weighted=part.weighted)
                outward = drawn[1][number] if drawn[1] else None
            first_own = part.row_bounds[relation.destination]  # a type's output rows are the first of its own rows
            rows = OutputRows(
                ids=np.asarray(part.node_ids[first_own : first_own + d - c]),
                in_degrees=inward.counts,
                own=None if relation.source == relation.destination else (),
                in_weights=inward.sums,
            )
            reads = self._reads(part, halo_lists(part, torch.device("cpu")), number)
            of_inputs = Degrees.none(0, weighted=part.weighted) if outward is None else outward.at(sources)
            alone = _one_relation(part, self._settings.rank, number, c, reads, of_inputs)
            plans.append(load_plan(alone, self._settings, outputs=rows))
        return dataclasses.replace(common, relations=Relations(tuple(plans), lambda: self._join(*restrict())))

    def _count(self, part: Part, lists: HaloLists, relation: int) -> tuple[Degrees, Degrees]:
        """In the whole graph: into the own rows of the destination type, and out of those of the source type."""
        ends = part.schema.relations[relation]
        reads = self._reads(part, lists, relation)
        tables, first = [reads], part.row_bounds[ends.source]
        if part.weighted:
            tables.append(self._reads(part, lists, relation, weighted=True))
        for table in tables:
            for rows, counts, values in zip(lists.send_rows, reads.peers, table.peers, strict=True):
                table.own[rows.numpy()[counts > 0] - first] += values[counts > 0]
        into = slice(*_ends(part.row_bounds, ends.destination))
        sums = count_edges(part, relation, into, weighted=True) if part.weighted else None
        inward = Degrees(count_edges(part, relation, into), sums)
        return inward, Degrees(reads.own, tables[1].own if part.weighted else None)

    def _reads(self, part: Part, lists: HaloLists, relation: int, *, weighted: bool = False) -> _Reads:
        rank = self._settings.rank
        a, b = _ends(part.row_bounds, part.schema.relations[relation].source)

        def count(peer: int, first: int, length: int) -> np.ndarray:
            weights = part.columns_of(peer, relation).weight if weighted else None
            return np.bincount(part.edges(peer, relation)[0] - first, weights=weights, minlength=length)

        halo = np.zeros(len(part.halo_ids), np.float64 if weighted else np.int64)
        for q in range(len(lists.send_rows)):
            first, last = part.halo_offsets[q], part.halo_offsets[q + 1]
            if q != rank:
                halo[first:last] = count(q, 0, last - first)
        told = self._exchange.to_owners(lists, (torch.from_numpy(halo[:, None]),))
        own = count(rank, a, b - a).astype(halo.dtype)  # sums over no edges are whole numbers
        return _Reads(own, halo, tuple(counts.numpy()[:, 0] for (counts,) in told))

    def _join(self, part: Part, out_bounds: tuple[int, ...]) -> tuple[LayerPlan, Tensor]:
        joined, types = _joined(part)
        plan = load_plan(joined, self._settings, outputs=OutputRows.first_of(part, out_bounds))
        return plan, torch.from_numpy(types[edge_positions(joined, plan)].astype(np.int64)).to(self._settings.device)


def _ends(bounds: tuple[int, ...], node_type: int) -> tuple[int, int]:
    return bounds[node_type], bounds[node_type + 1]


def _one_relation(part: Part, rank: int, relation: int, first_out: int, reads: _Reads, outward: Degrees) -> Part:
    """The part with one relation's edges, its sources' rows and the halo rows that it reads; without degrees inward."""
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
        out_degrees=outward.counts,
        edge_src=np.concatenate(sources),
        edge_dst=np.concatenate(destinations),
        edge_offsets=offsets_of(sources),
        halo_ids=np.asarray(part.halo_ids)[read],
        halo_offsets=halo_offsets,
        send_rows=np.concatenate(send),
        send_offsets=offsets_of(send),
        columns=part.columns.runs([part.edge_span(q, relation) for q in range(len(reads.peers))]),
        weights=None if outward.sums is None else WeightedDegrees(np.zeros(0), outward.sums),
    )


def _joined(part: Part) -> tuple[Part, np.ndarray]:
    """The part with all relations as one, and each edge's relation [E]. Parallel edges go by relation."""
    relations, world = len(part.schema.relations), len(part.halo_offsets) - 1
    types = np.repeat(np.tile(np.arange(relations, dtype=relation_dtype(relations)), world), np.diff(part.edge_offsets))
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
