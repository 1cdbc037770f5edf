"""Message flows that are made before every step: of target nodes drawn anew, from samples of the edges into each row.

A source row is numbered n if it is the worker's own row n, and N + h if it is its halo row h.

As ``plan.mfg``, from the last layer to the first:

    O_L = wanted rows        O_(l-1) = I_l = O_l + sources of the chosen edges into O_l

Rows are numbered in the order in which they are found, type by type, so that every layer's output rows are the first of its
input rows. Every worker chooses the edges into its own rows and tells the owners of halo rows which ones it reads.

Degrees are those of the sample: a row's in-degree counts the edges that it has chosen, its out-degree those that any output
row of the step's layer has chosen from it. A layer that keeps all edges has those of the whole graph.

Letters: N own rows, H halo rows, E edges, L layers, M output rows, R relations, T node types, P workers, C chosen edges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from sargnn.comm.exchange import Exchange
from sargnn.partition.cut import Part, WeightedDegrees, offsets_of, weight_sums
from sargnn.plan.copies import Copies
from sargnn.plan.layer_plan import RowCounts
from sargnn.plan.load import PlanSettings, check_edges, halo_lists, id_ranks_of, load_plan
from sargnn.plan.loops import (
    choose_edges,
    count_each,
    count_kept,
    count_peers,
    has_parallel_edges,
    mark_chosen,
    place_in_edges,
    split_by_peer,
)
from sargnn.plan.mfg import MessageFlow
from sargnn.plan.relations import Degrees, RelationSplitter
from sargnn.rng import Purpose


@dataclass(frozen=True)
class Sample:
    """Which in-edges a layer keeps of each destination and relation: those with the smallest Philox numbers of

        key     = (seed, sample)
        counter = (source id, destination id, number among parallel edges, purpose << 24 | layer << 16 | relation)

    which are the same on any number of workers. Every edge is as likely to be kept as any other, without replacement.

    Attributes:
        fanouts: per layer how many; -1: all.
        seed: of the run.
        number: of the sample, below 2**32.
    """

    fanouts: tuple[int, ...]
    seed: int
    number: int

    def tag(self, layer: int, relation: int) -> int:
        """The last counter word."""
        return (int(Purpose.SAMPLE) << 24) | (layer << 16) | relation


@dataclass(frozen=True)
class Chosen:
    """The edges that some rows keep of one relation.

    Attributes:
        offsets: int64 [M + 1], where each row's begin.
        sources: int32 [C].
        edges: int32 [C], their places in the part; without entries where edges carry nothing.
    """

    offsets: np.ndarray
    sources: np.ndarray
    edges: np.ndarray

    def without(self, keys: np.ndarray, rows: np.ndarray, ids: np.ndarray) -> Chosen:
        """The same but for some edges.

        Args:
            keys: int64 ascending, those edges' (``_edge_keys``).
            rows: int32 [M], the rows that edges end in.
            ids: uint32, original ids of all rows that sources may be.
        """
        degrees = np.diff(self.offsets)
        own = _edge_keys(np.repeat(rows, degrees), ids[self.sources])
        place = np.minimum(np.searchsorted(keys, own), max(len(keys) - 1, 0))
        kept = keys[place] != own if len(keys) else np.ones(len(own), bool)
        ends = np.concatenate([[0], np.cumsum(kept)])
        return Chosen(ends[self.offsets], self.sources[kept], self.edges[kept] if len(self.edges) else self.edges)


def _edge_keys(rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """int64: a number for each own row and original id below 2**32."""
    return (rows.astype(np.int64) << 32) | ids.astype(np.int64)


class InEdges:
    """A part's edges into each own row, whichever worker their sources are of: what samples are drawn from.

    Args:
        part: the worker's part.
        rank: its number.
        own_loops: every row has exactly one edge from itself that the model has added; these are always kept.
    """

    def __init__(self, part: Part, rank: int, *, own_loops: bool) -> None:
        check_edges(part, rank)
        self._loops = int(own_loops)
        world, relations, bounds = len(part.halo_offsets) - 1, part.schema.relations, part.row_bounds
        src, dst = np.asarray(part.edge_src), np.asarray(part.edge_dst)
        shifts = len(part.node_ids) + np.asarray(part.halo_offsets)
        self.ids = np.concatenate([part.node_ids, part.halo_ids]).astype(np.uint32)
        self._runs: list[tuple[int, np.ndarray]] = []
        alone = world == 1  # its edges are sorted by relation and destination already
        sources = np.empty(0 if alone else len(src), np.int32)
        self._edges = np.arange(len(src) if part.columns else 0, dtype=np.int32)
        before = 0
        for number, relation in enumerate(relations):
            first, last = bounds[relation.destination], bounds[relation.destination + 1]
            begins = np.zeros(last - first + 1, np.int64)
            spans = [part.edge_span(q, number) for q in range(world)]
            for span in spans:
                count_each(dst[span], first, begins[1:])
            begins[0] = before
            np.cumsum(begins, out=begins)
            before = int(begins[-1])
            cursor = begins[:-1].copy()
            for q, span in enumerate(spans if not alone else ()):
                shift = 0 if q == rank else int(shifts[q])
                place_in_edges(src[span], dst[span], first, shift, span.start, cursor, sources, self._edges)
            self._runs.append((first, begins))
        self._sources = src if alone else sources
        self._parallel = any(has_parallel_edges(begins, self._sources) for _, begins in self._runs)

    def choose(self, rows: np.ndarray, relation: int, layer: int, sample: Sample | None) -> Chosen:
        """The edges into own rows (int32 [M], of the relation's destination type) that a sample keeps; None: all edges."""
        first, begins = self._runs[relation]
        offsets = np.empty(len(rows) + 1, np.int64)
        fanout = -1 if sample is None else sample.fanouts[layer]
        count_kept(rows, first, begins, self._loops, fanout, offsets)
        sources = np.empty(offsets[-1], np.int32)
        edges = np.empty(offsets[-1] if len(self._edges) else 0, np.int32)
        seed, number, tag = (0, 0, 0) if sample is None else (sample.seed, sample.number, sample.tag(layer, relation))
        choose_edges(
            rows,
            first,
            begins,
            self._sources,
            self.ids,
            self._parallel,
            self._loops,
            seed,
            number,
            tag,
            offsets,
            sources,
            edges,
        )
        return Chosen(offsets, sources, self._edges[edges] if len(edges) else edges)


OutDegrees = tuple[Degrees, ...] | None
"""Of each relation the edges out of own rows of its source type; None: they are not known, or those of the whole graph."""


@dataclass(frozen=True)
class DrawnLayer:
    """What one layer computes on this worker.

    Attributes:
        outputs: int32 per type, the own rows that it computes, in their order.
        inputs: int32 per type, those that it reads.
        chosen: per relation the edges into its destination type's outputs; () where the layer does not aggregate.
        halo: bool [H], the halo rows that it reads.
        sends: per peer bool, which of the rows that it could need it does need.
        sampled: whether edges were left out.
        outward: per relation what out-degrees are then; None: they were not asked for.
    """

    outputs: tuple[np.ndarray, ...]
    inputs: tuple[np.ndarray, ...]
    chosen: tuple[Chosen, ...]
    halo: np.ndarray
    sends: tuple[np.ndarray, ...]
    sampled: bool
    outward: OutDegrees

    @property
    def edges(self) -> int:
        """Edges into its output rows."""
        return sum(len(edges.sources) for edges in self.chosen)


class FlowDrawer:
    """Makes message flows of one worker's part, fast. All workers must make one, and call its methods, together.

    Args:
        part: the worker's part, with self-loops if the model adds them.
        settings: what all of its plans have in common.
        own_loops: it does.
        splitter: gives every layer a plan of each relation; None: does not.
        copies: of a part that has some: an edge into a node counts once in out-degrees of a sample.
    """

    def __init__(
        self,
        part: Part,
        settings: PlanSettings,
        exchange: Exchange,
        *,
        own_loops: bool,
        splitter: RelationSplitter | None = None,
        copies: Copies | None = None,
    ) -> None:
        # What is drawn does not come again: it is not worth laying anywhere.
        self._part, self._settings, self._exchange = part, dataclasses.replace(settings, lay=lambda tensor: tensor), exchange
        self._splitter, self._copies = splitter, copies
        self._schema, self._bounds, self._num_rows = part.schema, part.row_bounds, len(part.node_ids)
        self._types = [slice(*ends) for ends in pairwise(self._bounds)]
        self._edges = InEdges(part, settings.rank, own_loops=own_loops)
        self._left_out: np.ndarray | None = None
        self._id_ranks = id_ranks_of(part)
        self._lists = halo_lists(part, torch.device("cpu"))
        self._send_rows = [rows.numpy() for rows in self._lists.send_rows]
        self._owners = np.repeat(np.arange(exchange.group.world, dtype=np.int32), np.diff(part.halo_offsets))

    def layers(
        self,
        wanted: np.ndarray,
        uses_edges: Sequence[bool],
        sample: Sample | None,
        *,
        outward: bool,
        left_out: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> tuple[DrawnLayer, ...]:
        """What the wanted rows depend on.

        Args:
            wanted: int64, own rows, ascending.
            uses_edges: per layer, whether it aggregates.
            sample: which edges are kept; None: all.
            outward: count also the edges out of rows.
            left_out: int64 own rows, and the original ids of their sources: edges that are dropped from what a sample keeps.
        """
        self._left_out = None if left_out is None else np.unique(_edge_keys(*left_out))
        layers = tuple(reversed(list(self._from_last(wanted, uses_edges, sample, outward=outward))))
        self._left_out = None
        return layers

    def outward(self, wanted: np.ndarray, uses_edges: Sequence[bool], sample: Sample | None) -> list[OutDegrees]:
        """Per layer what out-degrees are; nothing else is held of more than one layer."""
        degrees: list[OutDegrees] = []
        for drawn in self._from_last(wanted, uses_edges, sample, outward=True):
            degrees.insert(0, drawn.outward)
            del drawn
        return degrees

    def _from_last(
        self, wanted: np.ndarray, uses_edges: Sequence[bool], sample: Sample | None, *, outward: bool
    ) -> Iterator[DrawnLayer]:
        """From the last layer to the first."""
        rows = [np.ascontiguousarray(of_type, np.int32) for of_type in self._by_type(wanted)]
        reached = np.zeros(self._num_rows, bool)
        reached[wanted] = True
        for layer in range(len(uses_edges) - 1, -1, -1):
            drawn = self._layer(rows, reached, layer, sample, uses_edges=uses_edges[layer], outward=outward)
            rows = list(drawn.inputs)
            yield drawn
            del drawn

    def _by_type(self, rows: np.ndarray) -> list[np.ndarray]:
        """Own rows, ascending, type by type."""
        return [rows[slice(*np.searchsorted(rows, (of_type.start, of_type.stop)))] for of_type in self._types]

    def _layer(
        self,
        outputs: list[np.ndarray],
        reached: np.ndarray,
        layer: int,
        sample: Sample | None,
        *,
        uses_edges: bool,
        outward: bool,
    ) -> DrawnLayer:
        marks = np.zeros(self._num_rows + len(self._owners), np.uint8)
        chosen: list[Chosen] = []
        for number, relation in enumerate(self._schema.relations if uses_edges else ()):
            edges = self._edges.choose(outputs[relation.destination], number, layer, sample)
            if self._left_out is not None:
                edges = edges.without(self._left_out, outputs[relation.destination], self._edges.ids)
            mark_chosen(edges.sources, marks)
            chosen.append(edges)
        needed, halo = marks[: self._num_rows].astype(bool), marks[self._num_rows :].astype(bool)
        told = self._exchange.to_owners(self._lists, (torch.from_numpy(marks[self._num_rows :, None]),))
        sends = tuple(received[0].numpy()[:, 0].astype(bool) for received in told)
        for rows, send in zip(self._send_rows, sends, strict=True):
            needed[rows[send]] = True
        new = np.flatnonzero(needed & ~reached).astype(np.int32)
        reached[new] = True
        both = zip(outputs, self._by_type(new), strict=True)
        inputs = [np.concatenate([rows, added]) if len(added) else rows for rows, added in both]
        sampled = uses_edges and sample is not None and sample.fanouts[layer] >= 0
        out = self._outward(chosen, outputs) if outward and sampled else None
        return DrawnLayer(tuple(outputs), tuple(inputs), tuple(chosen), halo, sends, sampled, out)

    def _outward(self, chosen: Sequence[Chosen], outputs: list[np.ndarray]) -> tuple[Degrees, ...]:
        """Per relation the edges out of own rows of its source type.

        Args:
            outputs: int32 per type, the layer's output rows, into which edges were chosen.
        """
        relations, total = len(chosen), self._num_rows + len(self._owners)
        if self._copies is not None:
            chosen = self._counted(chosen, outputs, self._copies)
        counts, sums = np.zeros((relations, total), np.int32), []
        for number, edges in enumerate(chosen):
            count_each(edges.sources, 0, counts[number])
            if (weights := self._part.columns.weight) is not None:
                sums.append(weight_sums(edges.sources, np.asarray(weights)[edges.edges], total))
        tables: list[Any] = [counts] if not sums else [counts, np.stack(sums)]
        halos = [torch.from_numpy(np.ascontiguousarray(table[:, self._num_rows :].T)) for table in tables]
        own = [table[:, : self._num_rows].T for table in tables]
        for rows, said in zip(self._send_rows, self._exchange.to_owners(self._lists, halos), strict=True):
            for table, received in zip(own, said, strict=True):
                table[rows] += received.numpy()
        if self._copies is not None:
            own = [self._copies.total(table) for table in own]
        runs = [self._types[relation.source] for relation in self._schema.relations]
        return tuple(
            Degrees(own[0][run, r].astype(np.int64), own[1][run, r].copy() if sums else None) for r, run in enumerate(runs)
        )

    def _counted(self, chosen: Sequence[Chosen], outputs: list[np.ndarray], copies: Copies) -> list[Chosen]:
        """The edges into those of a node's copies that count."""
        computed = np.full(self._num_rows, -1, np.int16)
        computed[np.concatenate(outputs)] = 1
        counts = copies.before(computed) < 1
        counted = []
        for number, edges in enumerate(chosen):
            rows = outputs[self._schema.relations[number].destination]
            degrees = np.diff(edges.offsets)
            kept = np.repeat(counts[rows], degrees)
            offsets = np.concatenate([[0], np.cumsum(degrees * counts[rows])])
            counted.append(Chosen(offsets, edges.sources[kept], edges.edges[kept] if len(edges.edges) else edges.edges))
        return counted

    def counts(self, layers: Sequence[DrawnLayer]) -> tuple[RowCounts, ...]:
        """Per layer, its rows over all workers."""
        own = [[sum(map(len, layer.inputs)), sum(map(len, layer.outputs)), int(layer.halo.sum())] for layer in layers]
        return tuple(RowCounts(*totals) for totals in self._exchange.group.sum_(torch.tensor(own)).tolist())

    def flow(self, layers: Sequence[DrawnLayer], outward: Sequence[OutDegrees] | None = None) -> MessageFlow:
        """The message flow.

        Args:
            outward: per layer, the out-degrees of a whole step that these layers are a part of; theirs if not given.
        """
        plans = []
        places = np.empty(self._num_rows, np.int32)
        for number, (layer, counts) in enumerate(zip(layers, self.counts(layers), strict=True)):
            degrees = layer.outward if outward is None else outward[number]
            part, bounds, inward = self._restricted(layer, degrees, places)
            inputs, outputs = np.concatenate(layer.inputs), np.concatenate(layer.outputs)
            if self._splitter is not None:

                def restrict(part: Part = part, bounds: tuple[int, ...] = bounds) -> tuple[Part, tuple[int, ...]]:
                    return part, bounds

                plan = self._splitter.split(restrict, inputs, outputs, drawn=(inward, degrees) if layer.sampled else None)
            else:
                kept = np.flatnonzero(layer.halo)
                ranks = np.concatenate([self._id_ranks[inputs], self._id_ranks[self._num_rows + kept]])
                plan = load_plan(part, self._settings, out_bounds=bounds, id_ranks=ranks)
            plans.append(dataclasses.replace(plan, counts=counts))
        ends = (torch.from_numpy(np.concatenate(rows).astype(np.int64)) for rows in (layers[0].inputs, layers[-1].outputs))
        return MessageFlow(tuple(plans), *(rows.to(self._settings.device, non_blocking=True) for rows in ends))

    def _restricted(
        self, layer: DrawnLayer, outward: OutDegrees, places: np.ndarray
    ) -> tuple[Part, tuple[int, ...], list[Degrees]]:
        """The part of one layer, the bounds of its output rows, and per relation the edges into each of these."""
        part, rank, world, relations = self._part, self._settings.rank, self._exchange.group.world, self._schema.relations
        inputs = np.concatenate(layer.inputs)
        places[inputs] = np.arange(len(inputs), dtype=np.int32)
        halo_offsets = np.concatenate([[0], np.cumsum(layer.halo)])[part.halo_offsets]
        halo_places = np.cumsum(layer.halo, dtype=np.int32) - 1 - halo_offsets[self._owners].astype(np.int32)
        out_bounds = _bounds(layer.outputs)

        counts = np.zeros((world, len(relations)), np.int64)
        for number, relation_edges in enumerate(layer.chosen):
            own = counts[:, number].copy()
            count_peers(relation_edges.sources, self._num_rows, rank, self._owners, own)
            counts[:, number] = own
        ends = np.concatenate([[0], np.cumsum(counts.ravel())])
        src, dst = (np.empty(ends[-1], np.int32) for _ in range(2))
        edges = np.empty(ends[-1] if part.columns else 0, np.int32)
        inward = []
        for number, relation_edges in enumerate(layer.chosen):
            cursor = ends[:-1].reshape(world, len(relations))[:, number].copy()
            split_by_peer(
                relation_edges.sources,
                relation_edges.edges,
                relation_edges.offsets,
                out_bounds[relations[number].destination],
                self._num_rows,
                rank,
                self._owners,
                places,
                halo_places,
                cursor,
                src,
                dst,
                edges,
            )
            counts_into, sums = np.diff(relation_edges.offsets), None
            if (edge_weights := part.columns.weight) is not None:
                rows = np.repeat(np.arange(len(counts_into)), counts_into)
                sums = weight_sums(rows, np.asarray(edge_weights)[relation_edges.edges], len(counts_into))
            inward.append(Degrees(counts_into, sums))
        if layer.sampled:
            in_degrees, out_degrees, weights = self._sampled_degrees(layer, inward, outward)
        else:
            in_degrees, out_degrees = (np.asarray(degrees)[inputs] for degrees in (part.in_degrees, part.out_degrees))
            weights = None if part.weights is None else part.weights.at(inputs)
        send = [places[rows[chosen]] for rows, chosen in zip(self._send_rows, layer.sends, strict=True)]
        nothing = np.zeros(0, np.int64)
        restricted = dataclasses.replace(
            part,
            features=(),
            node_ids=self._edges.ids[inputs].astype(np.int64),
            labels=nothing,
            split=nothing,
            in_degrees=in_degrees,
            out_degrees=out_degrees,
            edge_src=src,
            edge_dst=dst,
            edge_offsets=ends,
            halo_ids=self._edges.ids[self._num_rows :][layer.halo].astype(np.int64),
            halo_offsets=halo_offsets,
            send_rows=np.concatenate(send),
            send_offsets=offsets_of(send),
            columns=part.columns.take(edges),
            weights=weights,
        )
        return restricted, out_bounds, inward

    def _sampled_degrees(
        self, layer: DrawnLayer, inward: Sequence[Degrees], outward: OutDegrees
    ) -> tuple[np.ndarray, np.ndarray, WeightedDegrees | None]:
        """In-degrees, out-degrees and weighted ones of a layer's part; without entries where out-degrees are not known."""
        bounds, relations = _bounds(layer.inputs), self._schema.relations
        in_degrees, out_degrees = np.zeros(bounds[-1], np.int64), np.zeros(bounds[-1] if outward else 0, np.int64)
        weights = WeightedDegrees(np.zeros(bounds[-1]), np.zeros(len(out_degrees)))
        for relation, into in zip(relations, inward, strict=True):
            first = bounds[relation.destination]
            at = slice(first, first + len(into.counts))
            in_degrees[at] += into.counts
            if into.sums is not None:
                weights.inward[at] += into.sums
        for relation, out in zip(relations, outward or (), strict=False):
            rows = layer.inputs[relation.source] - self._bounds[relation.source]
            at = slice(bounds[relation.source], bounds[relation.source + 1])
            out_degrees[at] += out.counts[rows]
            if out.sums is not None:
                weights.outward[at] += out.sums[rows]
        return in_degrees, out_degrees, weights if self._part.weighted else None


def _bounds(rows: Sequence[np.ndarray]) -> tuple[int, ...]:
    return tuple(offsets_of(list(rows)).tolist())
