"""From a part to a layer plan.

Letters: N own rows, H halo rows, S source rows and A destination rows of a block, E edges, P parts, T node types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock, EndIds
from sargnn.comm.lists import HaloLists, Piece
from sargnn.errors import StoreError
from sargnn.graph.edge_columns import EdgeColumns
from sargnn.partition.cut import Part
from sargnn.plan.flow_loops import count_from, read_only, take_from
from sargnn.plan.layer_plan import LayerPlan, RelationBlock, Shard
from sargnn.plan.merged import MergedRows

Layout = Literal["sharded", "merged"]
_COMPACT = 0.75
"""Where fewer of a run's rows have edges than this, a typed block lists those that do."""


@dataclass(frozen=True)
class OutputRows:
    """Output rows of a homogeneous plan that are not simply the first of its own rows.

    Attributes:
        ids: int64 [M], original ids. in_degrees: int64 [M].
        own: as ``LayerPlan.own``.
        in_weights: fp64 [M], of a graph with edge weights; else None.
    """

    ids: np.ndarray
    in_degrees: np.ndarray
    own: tuple[tuple[int, int, int], ...] | None
    in_weights: np.ndarray | None = None


def load_plan(
    part: Part,
    rank: int,
    layout: Layout | None,
    *,
    device: torch.device,
    message_rows: int = 2**31,
    out_bounds: tuple[int, ...] | None = None,
    outputs: OutputRows | None = None,
    dtype: torch.dtype = torch.float32,
    id_ranks: np.ndarray | None = None,
    sources_first: Collection[int] | None = None,
) -> LayerPlan:
    """The plan of a layer on a part that computes every row; cut edges are aggregated where the part has them.

    Args:
        part: the worker's part.
        layout: ``sharded`` makes one shard per peer, ``merged`` one for all, None none at all.
        message_rows: no message of the sharded layout holds more rows, nor does a block of a typed graph map more rows at once;
            the same on all ranks.
        out_bounds: T + 1, the output rows of each type: the first of its own rows. The part's edges end in these and number
            them so. All own rows if not given.
        outputs: other output rows, which the edges number, of a part that is homogeneous; instead of ``out_bounds``.
        dtype: of the rows, which edge weights and the like get, too.
        id_ranks: int32 [N + H], the rank of each row's original id among all that the worker sees; among the part's if not
            given.
        sources_first: the relations of which the own shard's sources are mapped before they are summed; where there are fewer
            sources than destinations if not given.

    Raises:
        StoreError: a part with 2**31 or more edges: local indices are 32 bits wide.
    """
    return _Loader(
        part,
        rank,
        device,
        message_rows,
        out_bounds or part.row_bounds,
        outputs,
        dtype,
        id_ranks,
        sources_first,
    ).plan(layout)


def halo_lists(part: Part, device: torch.device, message_rows: int = 2**31) -> HaloLists:
    """Which rows of a part travel."""
    send, ends = np.asarray(part.send_rows), zip(part.send_offsets, part.send_offsets[1:], strict=False)
    return HaloLists(
        send_rows=tuple(_tensor(send[a:b], device) for a, b in ends),
        receive_rows=tuple(int(size) for size in np.diff(part.halo_offsets)),
        message_rows=message_rows,
    )


def edge_positions(part: Part, plan: LayerPlan) -> np.ndarray:
    """Where the edges of a plan, as it numbers them, stand among those of the homogeneous part that it was loaded from.

    Returns:
        int64 [E].
    """
    assert not part.schema.typed
    if plan.shards is None:
        destinations = [part.edges(q, 0)[1] for q in range(plan.world)]
        return np.argsort(np.concatenate(destinations), kind="stable")
    positions = []
    for peer, number in plan.shards:
        src, _ = part.edges(peer, 0)
        first, last = 0, len(part.node_ids)
        if peer != plan.rank:
            pieces = plan.lists.pieces(plan.lists.receive_rows[peer])
            first, last = pieces[number] if number < len(pieces) else (0, 0)
        positions.append(part.edge_offsets[peer] + np.flatnonzero((src >= first) & (src < last)))
    return np.concatenate(positions)


def with_self_loops(part: Part, rank: int) -> Part:
    """The part with exactly one self-loop per node, of weight 1; the data's own are dropped first. Homogeneous graphs only."""
    assert not part.schema.typed
    src, dst = part.edges(rank, 0)
    num_rows = len(part.node_ids)
    loops = src == dst
    dropped = np.bincount(dst[loops], minlength=num_rows)
    own = np.arange(num_rows, dtype=np.int32)
    all_src, all_dst = np.concatenate([src[~loops], own]), np.concatenate([dst[~loops], own])
    order = np.argsort(all_dst, kind="stable")
    first, last = part.edge_offsets[rank], part.edge_offsets[rank + 1]
    if part.columns.weight is not None and part.in_weights is not None and part.out_weights is not None:
        change = 1 - np.bincount(dst[loops], weights=part.columns.weight[first:last][loops], minlength=num_rows)
        part = dataclasses.replace(part, in_weights=part.in_weights + change, out_weights=part.out_weights + change)
    if part.columns:
        mine = np.concatenate([first + np.flatnonzero(~loops), np.full(num_rows, -1)])[order]
        edges = np.concatenate([np.arange(first), mine, np.arange(last, len(part.edge_src))])
        part = dataclasses.replace(part, columns=part.columns.take(edges))
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


def check_edges(part: Part, rank: int) -> None:
    """Local indices can number a part's edges. Raises ``StoreError``."""
    if len(part.edge_src) >= 2**31:
        raise StoreError(
            f"Part {rank} has {len(part.edge_src)} edges, more than local indices can number.",
            hint="use more workers: world=N with a larger N",
        )


class _Loader:
    def __init__(
        self,
        part: Part,
        rank: int,
        device: torch.device,
        message_rows: int,
        out_bounds: tuple[int, ...],
        outputs: OutputRows | None,
        dtype: torch.dtype,
        id_ranks: np.ndarray | None,
        sources_first: Collection[int] | None,
    ) -> None:
        self.dtype, self.sources_first = dtype, sources_first
        self.part, self.rank, self.device, self.message_rows, self.out_bounds = part, rank, device, message_rows, out_bounds
        self.schema, self.num_rows = part.schema, len(part.node_ids)
        check_edges(part, rank)
        self.world = len(part.halo_offsets) - 1
        self.row_bounds = part.row_bounds
        halos = [part.halo_ids[part.halo_offsets[q] : part.halo_offsets[q + 1]] for q in range(self.world)]
        self.halo_bounds = [
            tuple(int(part.halo_offsets[q]) + bound for bound in self.schema.bounds(halos[q])) for q in range(self.world)
        ]
        ids = np.concatenate([part.node_ids, part.halo_ids])
        self.ids = _tensor(ids, device)
        self.id_ranks = _tensor(id_ranks_of(part) if id_ranks is None else id_ranks, device)
        self.node_ids = self.ids[: self.num_rows]
        self.outputs = outputs
        if outputs is not None:
            assert not self.schema.typed
            self.out_bounds = out_bounds = (0, len(outputs.ids))
        if outputs is not None and outputs.own is not None:
            self.own = outputs.own
        else:
            ends = zip(self.row_bounds, out_bounds, out_bounds[1:], strict=False)
            self.own = tuple((at, first, last - first) for at, first, last in ends)
        if outputs is not None:
            self.out_ids, self.in_degrees = _tensor(outputs.ids, device), outputs.in_degrees
            self.in_weights = outputs.in_weights
        else:
            self.out_ids = torch.cat([self.node_ids[at : at + n] for at, _, n in self.own])
            self.in_degrees = np.concatenate([part.in_degrees[at : at + n] for at, _, n in self.own])
            self.in_weights = None
            if part.in_weights is not None:
                self.in_weights = np.concatenate([part.in_weights[at : at + n] for at, _, n in self.own])

    def plan(self, layout: Layout | None) -> LayerPlan:
        part, lists = self.part, halo_lists(self.part, self.device, self.message_rows)
        merged_rows = MergedRows.lay_out(self.row_bounds, self.halo_bounds)
        return LayerPlan(
            rank=self.rank,
            world=self.world,
            schema=self.schema,
            row_bounds=self.row_bounds,
            out_bounds=self.out_bounds,
            node_ids=self.node_ids,
            in_degrees=_tensor(self.in_degrees, self.device),
            out_degrees=_tensor(part.out_degrees, self.device),
            relation_degrees=tuple(self._relation_degrees(r) for r in range(len(self.schema.relations))),
            lists=lists,
            shards=self._shards(lists) if layout == "sharded" else None,
            merged=self._merged(merged_rows) if layout == "merged" else None,
            merged_rows=merged_rows,
            own=None if self.outputs is None else self.outputs.own,
            in_weights=None if self.in_weights is None else _tensor(self.in_weights, self.device),
            out_weights=None if part.out_weights is None else _tensor(part.out_weights, self.device),
            relation_weights=tuple(self._relation_weights(r) for r in range(len(self.schema.relations)))
            if part.weighted
            else None,
        )

    def _relation_weights(self, relation: int) -> Tensor:
        if not self.schema.typed:
            assert self.in_weights is not None
            return _tensor(self.in_weights, self.device)
        first, last = self._out(relation)
        sums = np.zeros(last - first)
        for q in range(self.world):
            destinations = self.part.edges(q, relation)[1] - first
            weights = self.part.columns_of(q, relation).weight
            sums += np.bincount(destinations, weights=weights, minlength=last - first)
        return _tensor(sums, self.device)

    def _relation_degrees(self, relation: int) -> Tensor:
        if not self.schema.typed:
            return _tensor(self.in_degrees, self.device)
        first, last = self._out(relation)
        counts = np.zeros(last - first, np.int64)
        for q in range(self.world):
            counts += np.bincount(self.part.edges(q, relation)[1] - first, minlength=last - first)
        return _tensor(counts, self.device)

    def _out(self, relation: int) -> tuple[int, int]:
        destination = self.schema.relations[relation].destination
        return self.out_bounds[destination], self.out_bounds[destination + 1]

    def _shards(self, lists: HaloLists) -> dict[Piece, Shard]:
        shards = {Piece(self.rank, 0): Shard(self.rank, self.num_rows, self._own_blocks(), self.own)}
        pieces = [lists.pieces(count) for count in lists.receive_rows]
        edges: dict[int, list[BySource]] = {}
        for now in lists.rounds(self.rank):
            peer, number = now.piece
            first, last = pieces[peer][number] if number < len(pieces[peer]) else (0, 0)
            if peer not in edges:
                relations = range(len(self.schema.relations))
                edges = {peer: [BySource(*self.part.edges(peer, r), self.part.columns_of(peer, r)) for r in relations]}
            shards[now.piece] = Shard(peer, last - first, self._halo_blocks(peer, first, last, edges[peer]))
        return shards

    def _own_blocks(self) -> tuple[RelationBlock, ...]:
        blocks: list[RelationBlock] = []
        for r, relation in enumerate(self.schema.relations):
            src, dst = self.part.edges(self.rank, r)
            columns = self.part.columns_of(self.rank, r)
            if not self.schema.typed:
                rows = self.ids[: self.num_rows]
                ranks = self.id_ranks[: self.num_rows]
                return (self._block(r, src, dst, 0, 0, self.out_bounds[-1], rows, ranks, columns=columns),)
            (s0, s1), (d0, d1) = self.row_bounds[relation.source : relation.source + 2], self._out(r)
            # Cut, so that what is mapped at once stays as small as a message: along the side that has fewer rows.
            by_source = s1 - s0 <= len(np.unique(dst))
            if self.sources_first is not None:
                by_source = r in self.sources_first
            low, high = (s0, s1) if by_source else (d0, d1)
            pieces = max(1, -(-(high - low) // self.message_rows))
            edges = BySource(src, dst, columns) if by_source else None
            for j in range(pieces):
                a, b = low + (high - low) * j // pieces, low + (high - low) * (j + 1) // pieces
                (sa, sb), (da, db) = ((a, b), (d0, d1)) if by_source else ((s0, s1), (a, b))
                if edges is not None:
                    some_src, some_dst, some = edges.between(a, b)
                else:
                    inside = slice(*np.searchsorted(dst, (a, b)).tolist())  # edges are sorted by destination
                    some_src, some_dst = src[inside], dst[inside]
                    some = columns.run(inside)
                if len(some_src):
                    local = some_src - np.int32(sa), some_dst - np.int32(da)
                    rows, ranks = self.ids[sa:sb], self.id_ranks[sa:sb]
                    blocks.append(self._block(r, *local, sa, da, db, rows, ranks, columns=some, map_sources=by_source))
        return tuple(blocks)

    def _halo_blocks(self, peer: int, first: int, last: int, edges: list[BySource]) -> tuple[RelationBlock, ...]:
        """Edges from rows [first, last) of the peer's halo; ``edges``: all of that peer's, per relation."""
        blocks = []
        start = self.num_rows + int(self.part.halo_offsets[peer])
        for r, relation in enumerate(self.schema.relations):
            low, high = (self.halo_bounds[peer][relation.source + k] - self.halo_bounds[peer][0] for k in (0, 1))
            a, b = max(first, low), max(first, low, min(last, high))
            src, dst, columns = edges[r].between(a, b)
            d0, d1 = self._out(r)
            if len(src) or not self.schema.typed:
                local = src - np.int32(a), dst - np.int32(d0)
                rows = slice(start + a, start + b)
                ends = a - first, d0, d1
                blocks.append(self._block(r, *local, *ends, self.ids[rows], self.id_ranks[rows], columns=columns))
        return tuple(blocks)

    def _merged(self, layout: MergedRows) -> Shard:
        blocks = []
        ids, id_ranks = (self._by_merged_row(tensor, layout) for tensor in (self.ids, self.id_ranks))
        for r, relation in enumerate(self.schema.relations):
            sources, destinations = [], []
            at = {q: layout.halo[relation.source * self.world + q][0] for q in range(self.world)}
            first, (d0, d1) = layout.bounds[relation.source], self._out(r)
            for q in range(self.world):
                src, dst = self.part.edges(q, r)
                if q == self.rank:
                    shift = -self.row_bounds[relation.source]
                else:
                    begins = self.halo_bounds[q][relation.source] - self.halo_bounds[q][0]
                    shift = at[q] - begins - first
                sources.append(src + np.int32(shift))
                destinations.append(dst - np.int32(d0))
            all_src, all_dst = np.concatenate(sources), np.concatenate(destinations)
            order = np.argsort(all_dst, kind="stable")
            rows = slice(first, layout.bounds[relation.source + 1])
            edges = all_src[order], all_dst[order]
            columns = self.part.columns.runs([self.part.edge_span(q, r) for q in range(self.world)]).take(order)
            blocks.append(self._block(r, *edges, first, d0, d1, ids[rows], id_ranks[rows], columns=columns, compact=False))
        own = self.own  # of a homogeneous graph, whose own rows come first
        if self.schema.typed:
            own = tuple((at, first, n) for (at, _, _), (_, first, n) in zip(layout.own, self.own, strict=True))
        return Shard(-1, layout.bounds[-1], tuple(blocks), own)

    def _by_merged_row(self, values: Tensor, layout: MergedRows) -> Tensor:
        if layout.in_order:
            return values
        merged = torch.empty_like(values)
        layout.fill(merged, values[: self.num_rows], values[self.num_rows :])
        return merged

    def _block(
        self,
        relation: int,
        src: np.ndarray,
        dst: np.ndarray,
        first_src: int,
        first_out: int,
        last_out: int,
        src_ids: Tensor,
        id_ranks: Tensor,
        *,
        columns: EdgeColumns,
        compact: bool = True,
        map_sources: bool | None = None,
    ) -> RelationBlock:
        """``src`` and ``dst`` count from the beginning of their runs."""
        run, rows = last_out - first_out, None
        dst_ids = self.out_ids[first_out:last_out]
        if not self.schema.typed:
            map_sources = True
        else:
            listed = np.unique(dst)
            if map_sources is None:
                map_sources = len(src_ids) <= len(listed)
            if compact and not map_sources and len(listed) < _COMPACT * run:
                rows = _tensor(listed.astype(np.int32), self.device)
                dst = np.searchsorted(listed, dst).astype(np.int32)
                dst_ids = dst_ids[rows.long()]
        block = EdgeBlock(
            _tensor(src, self.device),
            _tensor(dst, self.device),
            len(src_ids),
            len(dst_ids),
            EndIds(src_ids, dst_ids, id_ranks),
            columns=columns.on(self.device, self.dtype),
        )
        in_type = first_out - self._out(relation)[0]
        return RelationBlock(relation, first_src, first_out, in_type, run, block, rows, map_sources)


class BySource:
    """Edges sorted by destination, of which those from a run of sources are asked for."""

    def __init__(self, src: np.ndarray, dst: np.ndarray, columns: EdgeColumns) -> None:
        self._src, self._dst, self._columns = src, dst, columns

    def between(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray, EdgeColumns]:
        """Sources, destinations and columns of the edges from rows [first, last), still sorted by destination."""
        src, dst = read_only(self._src), read_only(self._dst)
        count = count_from(src, first, last)
        if count == len(src):
            return self._src, self._dst, self._columns
        new_src, new_dst = np.empty(count, np.int32), np.empty(count, np.int32)
        edges = np.empty(count if self._columns else 0, np.int64)
        take_from(src, dst, first, last, new_src, new_dst, edges)
        return new_src, new_dst, self._columns.take(edges)


def id_ranks_of(part: Part) -> np.ndarray:
    """int32 [N + H], the rank of each own and halo row's original id among all of these."""
    ids = np.concatenate([part.node_ids, part.halo_ids])
    ranks = np.empty(len(ids), np.int32)
    ranks[np.argsort(ids)] = np.arange(len(ids), dtype=np.int32)
    return ranks


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """A tensor with memory of its own (stores are mapped read-only)."""
    return torch.from_numpy(np.array(array)).to(device)
