"""From a part to a layer plan.

Letters: N own rows, H halo rows, M output rows, S source and A destination rows of a block, E edges, P parts, T node types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock, EndIds
from sargnn.comm.lists import HaloLists, Piece, Run
from sargnn.errors import StoreError
from sargnn.graph.edge_columns import ATTR, WEIGHT, Column, EdgeColumns, join
from sargnn.partition.part import Part, WeightedDegrees, loop_means
from sargnn.plan.layer_plan import LayerPlan, MergedRows, RelationBlock, Shard
from sargnn.plan.loops import count_from, take_from
from sargnn.plan.relation_degrees import OfRelations, WeightSums

Layout = Literal["sharded", "merged"]
NO_LIMIT = 2**31
_COMPACT = 0.75
"""Where fewer of a run's rows have edges than this, a typed block lists those that do."""


@dataclass(frozen=True)
class PlanSettings:
    """What all plans of a worker have in common.

    Attributes:
        layout: ``sharded`` makes one shard per peer, ``merged`` one for all, None none at all.
        message_rows: rows of a message of the sharded layout, and that a typed block maps at once, at most; the same on all
            ranks.
        dtype: of the rows, which edge weights and the like get, too.
        near, windows: as of ``HaloLists``.
        lay: where what is as large as the rows or the edges lies: gives the same tensor there.
        loop_means: a self-loop that is added has the mean features of its node's in-edges; else zeros.
    """

    rank: int
    layout: Layout | None
    device: torch.device = torch.device("cpu")
    message_rows: int = NO_LIMIT
    dtype: torch.dtype = torch.float32
    near: range = range(0)
    windows: tuple[int, ...] = ()
    lay: Callable[[Tensor], Tensor] = field(default=lambda tensor: tensor, compare=False)
    loop_means: bool = False


@dataclass(frozen=True)
class OutputRows:
    """Output rows of a plan, which its edges number.

    Attributes:
        ids: int64 [M], original ids.
        in_degrees: int64 [M].
        own: as ``LayerPlan.own``.
        in_weights: fp64 [M], of a graph with edge weights; else None.
    """

    ids: np.ndarray
    in_degrees: np.ndarray
    own: tuple[tuple[int, int, int], ...] | None
    in_weights: np.ndarray | None = None

    @classmethod
    def first_of(cls, part: Part, bounds: tuple[int, ...]) -> OutputRows:
        """The first own rows of each type, as many as ``bounds`` (T + 1) say."""
        own = tuple((at, a, b - a) for at, (a, b) in zip(part.row_bounds, pairwise(bounds), strict=False))

        def rows(values: np.ndarray) -> np.ndarray:
            return np.concatenate([values[at : at + n] for at, _, n in own])

        in_weights = None if part.weights is None else rows(part.weights.inward)
        return cls(rows(part.node_ids), rows(part.in_degrees), own, in_weights)


class Edges(NamedTuple):
    """Edges of a relation, int32 [E] sources and destinations, sorted by destination."""

    src: np.ndarray
    dst: np.ndarray
    columns: EdgeColumns

    def of_sources(self, first: int, last: int) -> Edges:
        """Those that start from rows [first, last)."""
        src, dst = np.asarray(self.src), np.asarray(self.dst)
        count = count_from(src, first, last)
        if count == len(src):
            return self
        new_src, new_dst = np.empty(count, np.int32), np.empty(count, np.int32)
        edges = np.empty(count if self.columns else 0, np.int64)
        take_from(src, dst, first, last, new_src, new_dst, edges)
        return Edges(new_src, new_dst, self.columns.take(edges))

    def of_destinations(self, first: int, last: int) -> Edges:
        """Those that end in rows [first, last)."""
        inside = slice(*np.searchsorted(self.dst, (first, last)).tolist())
        return Edges(self.src[inside], self.dst[inside], self.columns.run(inside))

    def shifted(self, of_sources: int, of_destinations: int) -> Edges:
        """Their ends numbered from these rows."""
        return Edges(self.src - np.int32(of_sources), self.dst - np.int32(of_destinations), self.columns)

    def block(
        self,
        ends: EndIds,
        num_src: int,
        dtype: torch.dtype,
        *,
        lists_sources: bool = False,
        visits: np.ndarray | None = None,
    ) -> EdgeBlock:
        """As a block.

        Args:
            ends: with ids of A destination rows.
            num_src: S.
            dtype: of the columns.
            lists_sources, visits: as ``EdgeBlock``.
        """
        device = ends.dst.device
        return EdgeBlock(
            _tensor(self.src, device),
            _tensor(self.dst, device),
            num_src,
            len(ends.dst),
            ends,
            columns=self.columns.on(device, dtype),
            lists_sources=lists_sources,
            visits=None if visits is None else _tensor(visits, device),
        )


def load_plan(
    part: Part,
    settings: PlanSettings,
    *,
    out_bounds: tuple[int, ...] | None = None,
    outputs: OutputRows | None = None,
    id_ranks: np.ndarray | None = None,
    sources_first: Collection[int] | None = None,
) -> LayerPlan:
    """The plan of a layer on a part; cut edges are aggregated where the part has them.

    Args:
        out_bounds: T + 1, the output rows of each type: the first of its own rows. The part's edges end in these and number
            them so. None: all own rows.
        outputs: other output rows, which the edges number, of a part that is homogeneous; instead of ``out_bounds``.
        id_ranks: int32 [N + H], the rank of each row's original id among all that the worker sees; None: among the part's.
        sources_first: the relations of which the own shard's sources are mapped before they are summed; None: where there are
            fewer sources than destinations.

    Raises:
        StoreError: a part with 2**31 or more edges: local indices are 32 bits wide.
    """
    check_edges(part, settings.rank)
    if outputs is None:
        bounds = out_bounds or part.row_bounds
        return _Loader(part, settings, bounds, OutputRows.first_of(part, bounds), id_ranks, sources_first).plan()
    assert not part.schema.typed
    return _Loader(part, settings, (0, len(outputs.ids)), outputs, id_ranks, sources_first).plan(outputs.own)


def halo_lists(part: Part, device: torch.device, settings: PlanSettings | None = None) -> HaloLists:
    how = settings or PlanSettings(0, None)
    send, ends = np.asarray(part.send_rows), zip(part.send_offsets, part.send_offsets[1:], strict=False)
    return HaloLists(
        send_rows=tuple(_tensor(send[a:b], device) for a, b in ends),
        receive_rows=tuple(int(size) for size in np.diff(part.halo_offsets)),
        message_rows=how.message_rows,
        near=how.near,
        windows=how.windows,
    )


def edge_positions(part: Part, plan: LayerPlan) -> np.ndarray:
    """int64 [E], where a plan's edges, as it numbers them, stand in the homogeneous part that it was loaded from."""
    assert not part.schema.typed
    if plan.shards is None:
        destinations = [part.edges(q, 0)[1] for q in range(plan.world)]
        return np.argsort(np.concatenate(destinations), kind="stable")
    positions = []
    arrivals = {now.piece: now.runs for now in plan.lists.arrivals(plan.rank)}
    for piece in plan.shards:
        runs = arrivals.get(piece, (Run(plan.rank, 0, len(part.node_ids), ends=True),))
        chosen, destinations = [], []
        for peer, first, last, _ in runs:
            src, dst = part.edges(peer, 0)
            some = np.flatnonzero((src >= first) & (src < last))
            chosen.append(part.edge_offsets[peer] + some)
            destinations.append(np.asarray(dst)[some])
        order = np.argsort(np.concatenate(destinations), kind="stable") if len(runs) > 1 else slice(None)
        positions.append(np.concatenate(chosen)[order])
    return np.concatenate(positions)


def with_self_loops(part: Part, rank: int, *, means: bool = False) -> Part:
    """The part with exactly one self-loop per node, of weight 1; the data's own are dropped first. Homogeneous graphs only.

    ``means``: it has the mean features of its node's in-edges, the data's own self-loops left out; else zeros.
    """
    assert not part.schema.typed
    src, dst = part.edges(rank, 0)
    num_rows = len(part.node_ids)
    loops = src == dst
    dropped = np.bincount(dst[loops], minlength=num_rows)
    own = np.arange(num_rows, dtype=np.int32)
    all_src, all_dst = np.concatenate([src[~loops], own]), np.concatenate([dst[~loops], own])
    order = np.argsort(all_dst, kind="stable")
    first, last = part.edge_offsets[rank], part.edge_offsets[rank + 1]
    if (sums := part.weights) is not None:
        change = 1 - np.bincount(dst[loops], weights=np.asarray(part.columns_of(rank, 0)[WEIGHT])[loops], minlength=num_rows)
        part = dataclasses.replace(part, weights=WeightedDegrees(sums.inward + change, sums.outward + change))
    if part.columns:
        mine = np.concatenate([first + np.flatnonzero(~loops), np.full(num_rows, -1)])[order]
        edges = np.concatenate([np.arange(first), mine, np.arange(last, len(part.edge_src))])
        if means:
            rows = np.concatenate([part.edge_dst[:first], all_dst[order], part.edge_dst[last:]])
            columns = _columns_with_means(part, rank).with_loops(edges, rows)
        else:
            columns = part.columns.take(edges)
        part = dataclasses.replace(part, columns=columns)
    offsets = np.array(part.edge_offsets)
    offsets[rank + 1 :] += len(all_src) - (last - first)
    return dataclasses.replace(
        part,
        edge_src=np.concatenate([part.edge_src[:first], all_src[order], part.edge_src[last:]]),
        edge_dst=np.concatenate([part.edge_dst[:first], all_dst[order], part.edge_dst[last:]]),
        edge_offsets=offsets,
        in_degrees=part.in_degrees + 1 - dropped,
        out_degrees=part.out_degrees + 1 - dropped,
    )


def _columns_with_means(part: Part, rank: int) -> EdgeColumns:
    """Self-loops have the means that the store has, or, of a part in memory, those made here."""
    columns, means = part.columns, loop_means(part, rank)
    if means is None or columns.columns[ATTR].loops is not None:
        return columns
    numbers = np.asarray(columns[ATTR])
    means.add(0, numbers)
    count = len(numbers)
    return EdgeColumns({**columns.columns, ATTR: Column(np.concatenate([numbers, means.rows()]), slice(0, count), loops=count)})


def check_edges(part: Part, rank: int) -> None:
    """Raises ``StoreError``: local indices cannot number the part's edges."""
    if len(part.edge_src) >= 2**31:
        raise StoreError(
            f"Part {rank} has {len(part.edge_src)} edges, more than local indices can number.",
            hint="use more workers: world=N with a larger N",
        )


def count_edges(part: Part, relation: int, rows: slice, *, weighted: bool = False) -> np.ndarray:
    """A relation's edges into each of some rows of its destination type, int64; with ``weighted`` sums of weights, fp64."""
    length = rows.stop - rows.start
    totals = np.zeros(length, np.float64 if weighted else np.int64)
    for q in range(len(part.halo_offsets) - 1):
        weights = part.columns_of(q, relation).weight if weighted else None
        totals += np.bincount(part.edges(q, relation)[1] - rows.start, weights=weights, minlength=length)
    return totals


def peer_span(part: Part, peer: int) -> slice:
    """Where the edges from part ``peer`` stand, whatever their relation."""
    relations = len(part.schema.relations)
    return slice(int(part.edge_offsets[peer * relations]), int(part.edge_offsets[(peer + 1) * relations]))


class _Loader:
    def __init__(
        self,
        part: Part,
        settings: PlanSettings,
        out_bounds: tuple[int, ...],
        outputs: OutputRows,
        id_ranks: np.ndarray | None,
        sources_first: Collection[int] | None,
    ) -> None:
        self.part, self.settings, self.out_bounds, self.outputs = part, settings, out_bounds, outputs
        self.rank, self.device, self.sources_first = settings.rank, settings.device, sources_first
        self.schema, self.num_rows, self.row_bounds = part.schema, len(part.node_ids), part.row_bounds
        self.world = len(part.halo_offsets) - 1
        self.halo_bounds = [
            tuple(int(first) + bound for bound in self.schema.bounds(part.halo_ids[first:last]))
            for first, last in pairwise(part.halo_offsets)
        ]
        ids = np.concatenate([part.node_ids, part.halo_ids])
        self.ids = self._laid(ids)
        self.id_ranks = self._laid(id_ranks_of(part) if id_ranks is None else id_ranks)
        are_first = outputs.own == ((0, 0, len(outputs.ids)),)
        self.out_ids = self.ids[: len(outputs.ids)] if are_first else self._laid(outputs.ids)
        ends = zip(self.row_bounds, pairwise(out_bounds), strict=False)
        self.own = tuple((at, a, b - a) for at, (a, b) in ends) if outputs.own is None else outputs.own

    def plan(self, own: tuple[tuple[int, int, int], ...] | None = None) -> LayerPlan:
        part, outputs, layout = self.part, self.outputs, self.settings.layout
        lists = halo_lists(part, self.device, self.settings)
        merged_rows = MergedRows.lay_out(self.row_bounds, self.halo_bounds)
        weights = None
        if outputs.in_weights is not None and part.weights is not None:
            inward = _tensor(outputs.in_weights, self.device)
            outward = _tensor(part.weights.outward, self.device)
            weights = WeightSums(inward, outward, self._by_relation(inward, weighted=True))
        in_degrees = self._laid(outputs.in_degrees)
        return LayerPlan(
            rank=self.rank,
            world=self.world,
            schema=self.schema,
            row_bounds=self.row_bounds,
            out_bounds=self.out_bounds,
            node_ids=self.ids[: self.num_rows],
            in_degrees=in_degrees,
            out_degrees=self._laid(part.out_degrees),
            relation_degrees=self._by_relation(in_degrees, weighted=False),
            lists=lists,
            shards=self._shards(lists) if layout == "sharded" else None,
            merged=self._merged(merged_rows) if layout == "merged" else None,
            merged_rows=merged_rows,
            own=own,
            weights=weights,
        )

    def _laid(self, array: np.ndarray) -> Tensor:
        """For a number of each row, where what is as large as the edges lies."""
        return self.settings.lay(_tensor(array, self.device))

    def _by_relation(self, of_all: Tensor, *, weighted: bool) -> Sequence[Tensor]:
        """Degrees, or sums of weights; ``of_all``: those of all relations."""
        if not self.schema.typed:
            return (of_all,)
        rows = [slice(*self._out(r)) for r in range(len(self.schema.relations))]
        tables = (count_edges(self.part, r, run, weighted=weighted) for r, run in enumerate(rows))
        return OfRelations.of(tables, self.device)

    def _out(self, relation: int) -> tuple[int, int]:
        destination = self.schema.relations[relation].destination
        return self.out_bounds[destination], self.out_bounds[destination + 1]

    def _edges(self, peer: int, relation: int) -> Edges:
        return Edges(*self.part.edges(peer, relation), self.part.columns_of(peer, relation))

    def _sources(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Ranks and ids."""
        return self.id_ranks[first:last], self.ids[first:last]

    def _shards(self, lists: HaloLists) -> dict[Piece, Shard]:
        shards = {Piece(self.rank, 0): Shard(self.rank, self.num_rows, self._own_blocks(), self.own)}
        edges: dict[int, list[Edges]] = {}
        for now in lists.arrivals(self.rank):
            parts = list[tuple[int, int, int, list[Edges]]]()
            for owner, first, last, _ in [run for run in now.runs if run.rows] or now.runs[:1]:
                if owner not in edges:
                    edges = {owner: [self._edges(owner, r) for r in range(len(self.schema.relations))]}
                parts.append((owner, first, last, edges[owner]))
            blocks = self._halo_blocks(*parts[0]) if len(parts) == 1 else self._joined_blocks(parts)
            shards[now.piece] = Shard(now.piece.peer, now.rows, blocks)
        return shards

    def _joined_blocks(self, parts: list[tuple[int, int, int, list[Edges]]]) -> tuple[RelationBlock, ...]:
        """From several pieces of halos, one behind the other: of each its peer, rows [first, last), edges per relation."""
        offsets = np.cumsum([0, *(last - first for _, first, last, _ in parts)]).tolist()
        if self.schema.typed:
            return tuple(
                dataclasses.replace(block, first_src=block.first_src + offset)
                for offset, part in zip(offsets, parts, strict=False)
                for block in self._halo_blocks(*part)
            )
        some = [
            edges[0].of_sources(first, last).shifted(first - offset, 0)
            for offset, (_, first, last, edges) in zip(offsets, parts, strict=False)
        ]
        counts = [len(piece.src) for piece in some]
        src, dst = np.concatenate([piece.src for piece in some]), np.concatenate([piece.dst for piece in some])
        order = np.argsort(dst, kind="stable")
        columns = join([piece.columns for piece in some], counts).take(order)
        starts = [self.num_rows + int(self.part.halo_offsets[peer]) for peer, *_ in parts]
        sources = [self._sources(at + first, at + last) for at, (_, first, last, _) in zip(starts, parts, strict=True)]
        ranks, ids = zip(*sources, strict=True)
        visits = np.repeat(np.arange(len(parts), dtype=np.int32), counts)[order]
        ends = EndIds(lambda: torch.cat(ids), self.out_ids, lambda: torch.cat(ranks))
        block = Edges(src[order], dst[order], columns).block(ends, sum(map(len, ids)), self.settings.dtype, visits=visits)
        block.lay(self.settings.lay)
        return (RelationBlock(0, 0, 0, 0, self.out_bounds[-1], block, None, map_sources=True),)

    def _own_blocks(self) -> tuple[RelationBlock, ...]:
        blocks: list[RelationBlock] = []
        for r, relation in enumerate(self.schema.relations):
            edges = self._edges(self.rank, r)
            if not self.schema.typed:
                return (self._block(r, edges, 0, (0, self.out_bounds[-1]), self._sources(0, self.num_rows)),)
            (s0, s1), (d0, d1) = self.row_bounds[relation.source : relation.source + 2], self._out(r)
            # Cut, so that what is mapped at once stays as small as a message: along the side that has fewer rows.
            by_source = s1 - s0 <= len(np.unique(edges.dst)) if self.sources_first is None else r in self.sources_first
            low, high = (s0, s1) if by_source else (d0, d1)
            pieces = max(1, -(-(high - low) // self.settings.message_rows))
            for j in range(pieces):
                a, b = low + (high - low) * j // pieces, low + (high - low) * (j + 1) // pieces
                (sa, sb), out = ((a, b), (d0, d1)) if by_source else ((s0, s1), (a, b))
                some = edges.of_sources(a, b) if by_source else edges.of_destinations(a, b)
                if len(some.src):
                    local, sources = some.shifted(sa, out[0]), self._sources(sa, sb)
                    blocks.append(self._block(r, local, sa, out, sources, map_sources=by_source))
        return tuple(blocks)

    def _halo_blocks(self, peer: int, first: int, last: int, edges: list[Edges]) -> tuple[RelationBlock, ...]:
        """Edges from rows [first, last) of the peer's halo; ``edges``: all of that peer's, per relation."""
        blocks = []
        start = self.num_rows + int(self.part.halo_offsets[peer])
        for r, relation in enumerate(self.schema.relations):
            low, high = (self.halo_bounds[peer][relation.source + k] - self.halo_bounds[peer][0] for k in (0, 1))
            a, b = max(first, low), max(first, low, min(last, high))
            some, out = edges[r].of_sources(a, b), self._out(r)
            if len(some.src) or not self.schema.typed:
                blocks.append(self._block(r, some.shifted(a, out[0]), a - first, out, self._sources(start + a, start + b)))
        return tuple(blocks)

    def _merged(self, layout: MergedRows) -> Shard:
        ids, id_ranks = self.ids, self.id_ranks
        if not layout.in_order:
            ids, id_ranks = torch.empty_like(ids), torch.empty_like(id_ranks)
            for merged, values in ((ids, self.ids), (id_ranks, self.id_ranks)):
                layout.fill(merged, values[: self.num_rows], values[self.num_rows :])
        blocks = []
        for r, relation in enumerate(self.schema.relations):
            sources, destinations = [], []
            first, last = layout.bounds[relation.source : relation.source + 2]
            out = self._out(r)
            for q in range(self.world):
                src, dst = self.part.edges(q, r)
                if q == self.rank:
                    shift = -self.row_bounds[relation.source]
                else:
                    begins = self.halo_bounds[q][relation.source] - self.halo_bounds[q][0]
                    shift = layout.halo[relation.source * self.world + q][0] - begins - first
                sources.append(src + np.int32(shift))
                destinations.append(dst - np.int32(out[0]))
            all_src, all_dst = np.concatenate(sources), np.concatenate(destinations)
            order = np.argsort(all_dst, kind="stable")
            columns = self.part.columns.runs([self.part.edge_span(q, r) for q in range(self.world)]).take(order)
            edges = Edges(all_src[order], all_dst[order], columns)
            blocks.append(self._block(r, edges, first, out, (id_ranks[first:last], ids[first:last]), compact=False))
        own = self.own  # of a homogeneous graph, whose own rows come first
        if self.schema.typed:
            own = tuple((at, first, n) for (at, _, _), (_, first, n) in zip(layout.own, self.own, strict=True))
        return Shard(-1, layout.bounds[-1], tuple(blocks), own)

    def _block(
        self,
        relation: int,
        edges: Edges,
        first_src: int,
        out: tuple[int, int],
        sources: tuple[Tensor, Tensor],
        *,
        compact: bool = True,
        map_sources: bool | None = None,
    ) -> RelationBlock:
        """Of edges that are numbered from the beginnings of their runs: ``first_src``, and ``out``, output rows."""
        (first_out, last_out), rows = out, None
        run, dst_ids = last_out - first_out, self.out_ids[first_out:last_out]
        if not self.schema.typed:
            map_sources = True
        else:
            listed = np.unique(edges.dst)
            if map_sources is None:
                map_sources = len(sources[1]) <= len(listed)
            if compact and not map_sources and len(listed) < _COMPACT * run:
                rows = _tensor(listed.astype(np.int32), self.device)
                edges = edges._replace(dst=np.searchsorted(listed, edges.dst).astype(np.int32))
                dst_ids = dst_ids[rows.long()]
        id_ranks, src_ids = sources
        block = edges.block(EndIds(src_ids, dst_ids, id_ranks), len(src_ids), self.settings.dtype)
        block.lay(self.settings.lay)
        return RelationBlock(relation, first_src, first_out, first_out - self._out(relation)[0], run, block, rows, map_sources)


def id_ranks_of(part: Part) -> np.ndarray:
    """int32 [N + H], the rank of each own and halo row's original id among all of these."""
    ids = np.concatenate([part.node_ids, part.halo_ids])
    ranks = np.empty(len(ids), np.int32)
    ranks[np.argsort(ids)] = np.arange(len(ids), dtype=np.int32)
    return ranks


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """With memory of its own, since stores are mapped read-only."""
    return torch.from_numpy(np.array(array)).to(device, non_blocking=True)
