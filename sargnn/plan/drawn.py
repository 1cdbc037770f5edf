"""Message flows that are made before every step: of target nodes drawn anew, from samples of the edges into each row.

A source row is numbered n if it is the worker's own row n, and N + h if it is its halo row h.

As in ``plan.mfg``, where a sample keeps all edges; from the last layer to the first:

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
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from sargnn.comm.exchange import Exchange
from sargnn.partition.part import Part, WeightedDegrees, weight_sums
from sargnn.plan.layer_plan import LayerPlan
from sargnn.plan.load import PlanSettings, check_edges, id_ranks_of, load_plan
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
from sargnn.plan.mfg import FlowBuilder, FlowLayer, MessageFlow, Split, bounds_of
from sargnn.plan.relations import Degrees, RelationSplitter
from sargnn.rng import Purpose

if TYPE_CHECKING:
    from sargnn.plan.copies import Copies


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
        return self.where(keys[place] != own if len(keys) else np.ones(len(own), bool))

    def where(self, kept: np.ndarray) -> Chosen:
        """Those that are kept (bool [C])."""
        ends = np.concatenate([[0], np.cumsum(kept)])
        return Chosen(ends[self.offsets], self.sources[kept], self.edges[kept] if len(self.edges) else self.edges)


def _edge_keys(rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """int64: a number for each own row and original id below 2**32."""
    return (rows.astype(np.int64) << 32) | ids.astype(np.int64)


class LeftOut(NamedTuple):
    """Edges into own rows from sources by their original ids, int64 [n] each. ``relation``: of each; None: of all relations."""

    rows: np.ndarray
    sources: np.ndarray
    relation: np.ndarray | None = None

    def keys(self, relations: int) -> list[np.ndarray]:
        """Of each relation, ascending (``_edge_keys``)."""
        keys = _edge_keys(self.rows, self.sources)
        if self.relation is None:
            return [np.unique(keys)] * relations
        order = np.lexsort((keys, self.relation))
        return np.split(keys[order], np.searchsorted(self.relation[order], np.arange(1, relations)))


class InEdges:
    """A part's edges into each own row, whichever worker their sources are of: what samples are drawn from.

    Args:
        part: the worker's part.
        rank: its number.
        own_loops: every row has exactly one edge from itself that the model has added; these are always kept.
    """

    def __init__(self, part: Part, rank: int, *, own_loops: bool) -> None:
        check_edges(part, rank)
        self._loops, self._relations = int(own_loops), part.schema.relations
        world, relations, bounds = len(part.halo_offsets) - 1, part.schema.relations, part.row_bounds
        src, dst = np.asarray(part.edge_src), np.asarray(part.edge_dst)
        shifts = len(part.node_ids) + np.asarray(part.halo_offsets)
        self.ids = np.concatenate([part.node_ids, part.halo_ids]).astype(np.uint32)
        self._runs: list[tuple[int, np.ndarray]] = []
        self._alone = alone = world == 1  # its edges are sorted by relation and destination already
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

    @property
    def bytes(self) -> int:
        """Beside those of the part."""
        own = [self.ids, self._edges, *(begins for _, begins in self._runs)]
        return sum(array.nbytes for array in own) + (0 if self._alone else self._sources.nbytes)

    def choose(self, rows: np.ndarray, relation: int, layer: int, sample: Sample | None) -> Chosen:
        """The edges into own rows (int32 [M], of the relation's destination type) that a sample keeps; None: all edges."""
        first, begins = self._runs[relation]
        offsets = np.empty(len(rows) + 1, np.int64)
        fanout = -1 if sample is None else sample.fanouts[layer]
        count_kept(rows, first, begins, self._loops, fanout, offsets)
        sources = np.empty(offsets[-1], np.int32)
        edges = np.empty(offsets[-1] if len(self._edges) else 0, np.int32)
        draw = (0, 0, 0) if sample is None else (sample.seed, sample.number, sample.tag(layer, relation))
        given = rows, first, begins, self._sources, self.ids, self._parallel, self._loops
        choose_edges(*given, *draw, offsets, sources, edges)
        return Chosen(offsets, sources, self._edges[edges] if len(edges) else edges)

    def keep(
        self,
        outputs: Sequence[np.ndarray],
        layer: int,
        sample: Sample | None,
        marks: np.ndarray,
        left_out: Sequence[np.ndarray] | None = None,
    ) -> list[Chosen]:
        """Per relation the edges into a layer's output rows (int32 per type) that a sample keeps; their sources are marked.

        Args:
            marks: uint8 [N + H].
            left_out: per relation keys of edges (``_edge_keys``) that are dropped from these.
        """
        kept = []
        for number, relation in enumerate(self._relations):
            rows = outputs[relation.destination]
            edges = self.choose(rows, number, layer, sample)
            if left_out is not None:
                edges = edges.without(left_out[number], rows, self.ids)
            mark_chosen(edges.sources, marks)
            kept.append(edges)
        return kept


OutDegrees = tuple[Degrees, ...] | None
"""Of each relation the edges out of own rows of its source type; None: they are not known, or those of the whole graph."""


@dataclass(frozen=True)
class DrawnLayer(FlowLayer):
    """A layer of a flow that is drawn.

    Attributes:
        chosen: per relation the edges into its destination type's outputs; () where the layer does not aggregate.
        sampled: whether edges were left out.
        outward: per relation what out-degrees are then; None: they were not asked for.
    """

    chosen: tuple[Chosen, ...]
    sampled: bool
    outward: OutDegrees


class FlowDrawer(FlowBuilder):
    """Makes message flows fast, of samples of the edges, or of all.

    Args:
        part, settings, splitter: as of ``FlowBuilder``.
        own_loops: the model adds self-loops.
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
        super().__init__(part, dataclasses.replace(settings, lay=lambda tensor: tensor), exchange, splitter=splitter)
        self._copies = copies
        self._edges = InEdges(part, settings.rank, own_loops=own_loops)
        self._id_ranks = id_ranks_of(part)
        self._owners = np.repeat(np.arange(exchange.group.world, dtype=np.int32), np.diff(part.halo_offsets))

    def layers(
        self,
        wanted: np.ndarray,
        uses_edges: Sequence[bool],
        sample: Sample | None,
        *,
        outward: bool,
        left_out: LeftOut | None = None,
    ) -> tuple[DrawnLayer, ...]:
        """What the wanted rows depend on.

        Args:
            wanted: int64, own rows, ascending.
            uses_edges: per layer, whether it aggregates.
            sample: which edges are kept; None: all.
            outward: count also the edges out of rows.
            left_out: edges that are dropped from what a sample keeps.
        """
        keys = None if left_out is None else left_out.keys(len(self._schema.relations))
        return tuple(self._drawn(wanted, uses_edges, sample, keys, outward=outward))[::-1]

    def outward(self, wanted: np.ndarray, uses_edges: Sequence[bool], sample: Sample | None) -> list[OutDegrees]:
        """Per layer what out-degrees are; nothing else is held of more than one layer."""
        return [drawn.outward for drawn in self._drawn(wanted, uses_edges, sample, None, outward=True)][::-1]

    def _drawn(
        self,
        wanted: np.ndarray,
        uses_edges: Sequence[bool],
        sample: Sample | None,
        left_out: Sequence[np.ndarray] | None,
        *,
        outward: bool,
    ) -> Iterator[DrawnLayer]:
        """From the last layer to the first. left_out: per relation keys of edges."""
        chosen: list[Chosen] = []

        def choose(layer: int, outputs: tuple[np.ndarray, ...], marks: np.ndarray) -> int:
            chosen.clear()
            if uses_edges[layer]:
                chosen.extend(self._edges.keep(outputs, layer, sample, marks, left_out))
            return sum(len(edges.sources) for edges in chosen)

        number = len(uses_edges)
        for layer in self._from_last(wanted, [partial(choose, n) for n in range(number)]):
            number -= 1
            some = left_out is not None or (sample is not None and sample.fanouts[number] >= 0)
            sampled = uses_edges[number] and some
            out = self._outward(chosen, layer.outputs) if outward and sampled else None
            yield DrawnLayer(**vars(layer), chosen=tuple(chosen), sampled=sampled, outward=out)

    def _outward(self, chosen: Sequence[Chosen], outputs: Sequence[np.ndarray]) -> tuple[Degrees, ...]:
        """Per relation the edges out of own rows of its source type.

        Args:
            outputs: int32 per type, the layer's output rows, into which edges were chosen.
        """
        relations, total = len(chosen), self._num_rows + len(self._owners)
        if self._copies is not None:  # the edges into those of a node's copies that count
            computed = np.full(self._num_rows, -1, np.int16)
            computed[np.concatenate(outputs)] = 1
            counting = self._copies.before(computed) < 1
            into = [counting[outputs[relation.destination]] for relation in self._schema.relations]
            chosen = [edges.where(np.repeat(rows, np.diff(edges.offsets))) for rows, edges in zip(into, chosen, strict=True)]
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
        runs = [slice(*self._bounds[relation.source :][:2]) for relation in self._schema.relations]
        return tuple(
            Degrees(own[0][run, r].astype(np.int64), own[1][run, r].copy() if sums else None) for r, run in enumerate(runs)
        )

    def flow(self, layers: Sequence[DrawnLayer], outward: Sequence[OutDegrees] | None = None) -> MessageFlow:
        """The message flow.

        Args:
            outward: per layer, the out-degrees of a whole step that these layers are a part of; theirs if not given.
        """
        counts, degrees = self.counts(layers), [layer.outward for layer in layers] if outward is None else outward
        return self._join(layers, map(self._plan, layers, degrees), counts)

    def _plan(self, layer: DrawnLayer, outward: OutDegrees) -> LayerPlan:
        inward = [self._inward(edges) for edges in layer.chosen] if layer.sampled else []
        degrees = self._sampled_degrees(layer, inward, outward) if layer.sampled else None
        restricted = self._restricted(layer, self._split, degrees)
        inputs = np.concatenate(layer.inputs)
        if self._splitter is not None:
            drawn = (inward, outward) if layer.sampled else None
            return self._splitter.split(lambda: restricted, inputs, np.concatenate(layer.outputs), drawn=drawn)
        ranks = np.concatenate([self._id_ranks[inputs], self._id_ranks[self._num_rows :][layer.halo]])
        return load_plan(restricted[0], self._settings, out_bounds=restricted[1], id_ranks=ranks)

    def _inward(self, edges: Chosen) -> Degrees:
        """One relation's edges into each output row of its destination type."""
        counts, weights = np.diff(edges.offsets), self._part.columns.weight
        if weights is None:
            return Degrees(counts)
        rows = np.repeat(np.arange(len(counts)), counts)
        return Degrees(counts, weight_sums(rows, np.asarray(weights)[edges.edges], len(counts)))

    def _split(self, layer: DrawnLayer, places: np.ndarray) -> Split:
        """The chosen edges of a layer."""
        rank, relations, out_bounds = self._settings.rank, self._schema.relations, bounds_of(layer.outputs)
        rows = self._num_rows, rank, self._owners
        counts = np.zeros((self._exchange.group.world, len(relations)), np.int64)
        for number, chosen in enumerate(layer.chosen):
            own = counts[:, number].copy()
            count_peers(chosen.sources, *rows, own)
            counts[:, number] = own
        ends = np.concatenate([[0], np.cumsum(counts.ravel())])
        src, dst = (np.empty(ends[-1], np.int32) for _ in range(2))
        edges = np.empty(ends[-1] if self._part.columns else 0, np.int32)
        for number, chosen in enumerate(layer.chosen):
            cursor = ends[:-1].reshape(counts.shape)[:, number].copy()
            first = out_bounds[relations[number].destination]
            given = chosen.sources, chosen.edges, chosen.offsets, first, *rows
            split_by_peer(*given, *np.split(places, [self._num_rows]), cursor, src, dst, edges)
        return src, dst, edges, ends

    def _sampled_degrees(
        self, layer: DrawnLayer, inward: Sequence[Degrees], outward: OutDegrees
    ) -> tuple[np.ndarray, np.ndarray, WeightedDegrees | None]:
        """In-degrees, out-degrees and weighted ones of a layer's part; without entries where out-degrees are not known."""
        bounds, relations, weighted = bounds_of(layer.inputs), self._schema.relations, self._part.weighted
        into_rows = Degrees.none(bounds[-1], weighted=weighted)
        out_of_rows = Degrees.none(bounds[-1] if outward else 0, weighted=weighted)

        def add(total: Degrees, first: int, part: Degrees) -> None:
            at = slice(first, first + len(part.counts))
            total.counts[at] += part.counts
            if total.sums is not None:
                total.sums[at] += part.sums

        for relation, into in zip(relations, inward, strict=True):
            add(into_rows, bounds[relation.destination], into)
        for relation, out in zip(relations, outward or (), strict=False):
            rows = layer.inputs[relation.source] - self._bounds[relation.source]
            add(out_of_rows, bounds[relation.source], out.at(rows))
        weights = None
        if into_rows.sums is not None and out_of_rows.sums is not None:
            weights = WeightedDegrees(into_rows.sums, out_of_rows.sums)
        return into_rows.counts, out_of_rows.counts, weights
