"""The layer plan: everything about the graph that one layer needs on one worker.

Letters: N input rows, M output rows, H halo rows, S source rows of a shard, T node types, R relations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.comm.lists import HaloLists, PartialLists, Piece
from sargnn.graph.schema import Schema
from sargnn.plan.relation_degrees import OfRelations, WeightSums


@dataclass(frozen=True)
class RelationBlock:
    """Edges of one relation from a run of a shard's source rows to a run of output rows.

    Attributes:
        relation: its number.
        first_src: where the run of source rows begins.
        first_out: where the run of output rows begins.
        out_in_type: where that begins among the output rows of its type.
        num_out: length of the run of output rows.
        block: the edges; its source rows are the run's, its destination rows too unless ``rows`` names them.
        rows: int32, the places in the run of the block's destination rows, ascending; None: all, in order.
        map_sources: whether a linear map is taken of the source rows, not of their sums: where they are fewer, or where mapped
            rows serve several blocks.
    """

    relation: int
    first_src: int
    first_out: int
    out_in_type: int
    num_out: int
    block: EdgeBlock
    rows: Tensor | None
    map_sources: bool

    @property
    def src(self) -> slice:
        return slice(self.first_src, self.first_src + self.block.num_src)

    @property
    def out(self) -> slice:
        return slice(self.first_out, self.first_out + self.num_out)


@dataclass(frozen=True)
class Shard:
    """The edges from (a piece of) one partition's rows to the own rows.

    Attributes:
        peer: the source partition; the own rank for the local shard; -1 for the merged shard of all partitions.
        num_src: S. The source rows are the piece's rows, for the local shard all own rows, for the merged one the own and all
            halo rows as ``MergedRows`` lays them out.
        relations: the edges; without blocks for relations that have none here, except in the merged shard.
        own: (first source row, first output row, length): where the output rows themselves lie among the source rows.
    """

    peer: int
    num_src: int
    relations: tuple[RelationBlock, ...]
    own: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def whole(cls, peer: int, block: EdgeBlock) -> Shard:
        """One relation between all rows, as homogeneous graphs have it."""
        return cls(peer, block.num_src, (RelationBlock(0, 0, 0, 0, block.num_dst, block, None, map_sources=True),))

    @property
    def num_edges(self) -> int:
        return sum(relation.block.num_edges for relation in self.relations)

    @property
    def block(self) -> EdgeBlock:
        """The edges of a homogeneous graph's shard."""
        assert len(self.relations) == 1, "this reducer knows no relations"
        return self.relations[0].block


@dataclass(frozen=True)
class Joint:
    """Own rows' edges of a typed graph, into own output rows and into pieces of peers' output rows, aggregated together: a
    linear map of the sources serves all of them.

    Attributes:
        shard: the blocks of the own shard and further ones. Blocks that map the same run of sources stand side by side.
        scales: for each block None, for own output rows, or what the means of its destination rows, which are rows of one table
            for all pieces, are multiplied by.
        rows: where each piece lies in that table.
    """

    shard: Shard
    scales: tuple[Tensor | None, ...]
    rows: dict[Piece, slice]

    @property
    def num_rows(self) -> int:
        """Of the table."""
        return max((run.stop for run in self.rows.values()), default=0)


@dataclass(frozen=True)
class Partials:
    """Edges between this worker's rows and a peer's that are aggregated where their sources are (``plan.partials``).

    Attributes:
        lists: which partial results travel.
        shards: for each piece of a peer's output rows that is not in ``joint``, the edges into it from the own rows.
        joint: pieces that are aggregated together with the own output rows; None: none is.
        scales: of typed graphs, likewise, for each of the shard's blocks the factors of its destination rows' means.
        blocks: for each piece of own output rows, an edge to each from the partial result that comes for it.
        num_edges: edges into the own output rows that peers aggregate.
        halo_rows: H without partial results.
        peer_ranks: per peer int32 ascending, ``EdgeBlock.src_id_rank`` here of its rows that edges into the own rows start
            from; a partial result names a winner by its place in this list. None where no reducer needs it.
    """

    lists: PartialLists
    shards: dict[Piece, Shard]
    scales: dict[Piece, tuple[Tensor, ...]]
    blocks: dict[Piece, EdgeBlock]
    num_edges: int
    halo_rows: int
    peer_ranks: tuple[Tensor, ...] | None
    joint: Joint | None = None


@dataclass(frozen=True)
class MergedRows:
    """Where own and halo rows lie side by side, [N + H], for modes that work on one merged graph.

    Type by type: the own rows first, then the peers' in rank order. So the rows of one type are a run, and those of a
    homogeneous graph are the own rows followed by all halo rows, as they arrive.

    Attributes:
        bounds: T + 1, the merged rows of each type.
        own: (first merged row, first own row, length) per type.
        halo: (first merged row, first halo row, length) per type and peer; halo rows go by peer in rank order, each by type.
    """

    bounds: tuple[int, ...]
    own: tuple[tuple[int, int, int], ...]
    halo: tuple[tuple[int, int, int], ...]

    @classmethod
    def lay_out(cls, row_bounds: Sequence[int], halo_bounds: Sequence[Sequence[int]]) -> MergedRows:
        """Per type, own rows before halo rows.

        Args:
            row_bounds: T + 1, the own rows of each type.
            halo_bounds: per peer T + 1, where its halo rows of each type begin among all halo rows.
        """
        bounds: list[int] = [0]
        own: list[tuple[int, int, int]] = []
        halo: list[tuple[int, int, int]] = []
        for t in range(len(row_bounds) - 1):
            at = bounds[-1]
            for pieces, first, last in (
                (own, row_bounds[t], row_bounds[t + 1]),
                *((halo, peer[t], peer[t + 1]) for peer in halo_bounds),
            ):
                pieces.append((at, first, last - first))
                at += last - first
            bounds.append(at)
        return cls(tuple(bounds), tuple(own), tuple(halo))

    @property
    def in_order(self) -> bool:
        """Whether the halo rows lie in one run behind the own rows."""
        return len(self.bounds) == 2

    def room_for_halo(self, merged: Tensor) -> Tensor:
        """[H, F] to receive halo rows into, by peer: a part of ``merged`` [N + H, F] if they lie there in that order."""
        own, halo = (sum(n for *_, n in pieces) for pieces in (self.own, self.halo))
        return merged[own:] if self.in_order else merged.new_empty(halo, merged.shape[1])

    def fill(self, merged: Tensor, own: Tensor, halo: Tensor) -> None:
        """Put own rows [N, F] and halo rows [H, F], as ``room_for_halo`` gave them, into ``merged``."""
        for at, first, n in self.own:
            merged[at : at + n] = own[first : first + n]
        if not self.in_order:
            for at, first, n in self.halo:
                merged[at : at + n] = halo[first : first + n]

    def by_type(self, own: Tensor, halo: Tensor) -> tuple[Tensor, ...]:
        """Per type the merged rows, [own + halo rows of the type, F], in memory of their own."""
        joined, peers = [], len(self.halo) // len(self.own)
        for t, (_, first, n) in enumerate(self.own):
            pieces = self.halo[t * peers : (t + 1) * peers]
            joined.append(torch.cat([own[first : first + n], *(halo[a : a + k] for _, a, k in pieces)]))
        return tuple(joined)

    def own_part(self, tables: Sequence[Tensor]) -> Tensor:
        """[N, F]: the own rows of merged rows given type by type, in memory of their own."""
        return torch.cat([tables[t][:n] for t, (_, _, n) in enumerate(self.own)])

    def halo_part(self, tables: Sequence[Tensor]) -> Tensor:
        """[H, F], by peer: the halo rows of merged rows given type by type."""
        if self.in_order:
            return tables[0][self.own[0][2] :]
        out, peers = tables[0].new_empty(sum(n for *_, n in self.halo), tables[0].shape[1]), len(self.halo) // len(self.own)
        for number, (at, first, n) in enumerate(self.halo):
            t = number // peers
            out[first : first + n] = tables[t][at - self.bounds[t] : at - self.bounds[t] + n]
        return out

    def split(self, merged: Tensor) -> tuple[Tensor, ...]:
        """``merged`` [N + H, F] type by type, without copies."""
        return tuple(merged[a:b] for a, b in zip(self.bounds, self.bounds[1:], strict=False))


@dataclass(frozen=True)
class Relations:
    """A typed graph's layer: each relation by itself, and all joined (``plan.relations``).

    ``plans``: per relation, from input rows of its source type to output rows of its destination type, with degrees of that
    relation in the whole graph and lists of the rows that it reads; none where nobody calls a relation by itself.
    """

    plans: tuple[LayerPlan, ...]
    join: Callable[[], tuple[LayerPlan, Tensor]]

    @cached_property
    def joined(self) -> tuple[LayerPlan, Tensor]:
        """The layer's rows, type by type, with all edges as a homogeneous graph; and int64 [E], each edge's relation.

        Made the first time it is asked for, from what this worker has: no rank waits for another.
        """
        return self.join()


@dataclass(frozen=True)
class RowCounts:
    """A layer's rows over all workers: that it reads, that it computes, and halo rows that travel for it."""

    rows: int
    out: int
    halo: int


@dataclass(frozen=True)
class LayerPlan:
    """One layer's view of the graph on one worker. Passed with every call, so that layers may differ.

    A plan of one relation (``schema`` is homogeneous then) numbers its worker's E edges: shard after shard in the order of
    ``shards``, in each the block's edges in their order.

    Attributes:
        schema: node types and relations of the whole graph.
        row_bounds: T + 1, the input rows of each type: ``[bounds[t], bounds[t + 1])``.
        out_bounds: T + 1, the output rows of each type, which are the first of its input rows.
        node_ids: int64 [N], original ids of the input rows.
        in_degrees: int64 [M], edges into each output row in the whole graph, as trained on (with the self-loop, if added). All
            degrees and sums of weights of a sampled layer are those of the sample (``plan.drawn``).
        out_degrees: int64 [N], edges out of each input row in the whole graph, likewise.
        relation_degrees: per relation int64, its edges into each output row of its destination type.
        lists: which rows travel.
        shards: the own one, then one for each round of the exchange in its order, also where a round brings no rows; None for
            modes that work on one merged graph, and where ``relations`` have plans of their own.
        merged: for modes that work on one merged graph; else None.
        merged_rows: where its source rows lie.
        out_type: the one type whose rows are computed; None: all.
        own: (first input row, first output row, length) of rows that are both; None: each type's output rows are the first of
            its input rows. () where the outputs are nodes of another type.
        weights: sums of edge weights; None: edges have none. The weights themselves are a column.
        relations: of typed graphs, where asked for; else None.
        partials: cut edges that are aggregated where their sources are, and are in no shard here; None: there are none.
        counts: over all workers; None where a layer computes all rows that it reads.
        constant: [M, F], the aggregate of constant rows, where it is known beforehand.
        counted: uint8 [M], 1 for output rows that statistics over rows are taken of: of several copies of a node one
            (``plan.copies``); None: of all.
    """

    rank: int
    world: int
    schema: Schema
    row_bounds: tuple[int, ...]
    out_bounds: tuple[int, ...]
    node_ids: Tensor
    in_degrees: Tensor
    out_degrees: Tensor
    relation_degrees: Sequence[Tensor]
    lists: HaloLists
    shards: dict[Piece, Shard] | None
    merged: Shard | None
    merged_rows: MergedRows
    out_type: int | None = None
    own: tuple[tuple[int, int, int], ...] | None = None
    weights: WeightSums | None = None
    relations: Relations | None = None
    partials: Partials | None = None
    counts: RowCounts | None = None
    constant: Tensor | None = None
    counted: Tensor | None = None

    @property
    def weighted(self) -> bool:
        return self.weights is not None

    @property
    def num_rows(self) -> int:
        return self.row_bounds[-1]

    @property
    def num_out(self) -> int:
        return self.out_bounds[-1]

    def self_rows(self, h: Tensor) -> Tensor:
        """The rows of ``h`` [N, F] that the output rows are, [M, F]: ``h`` itself if all are, a view where they are one run."""
        assert self.own != (), "output rows are nodes of another type"
        if self.own is None and self.out_bounds == self.row_bounds:
            return h
        runs = [h[at : at + n] for at, _, n in self.own_runs() if n]
        return torch.cat(runs) if len(runs) > 1 else runs[0] if runs else h[:0]

    def own_runs(self) -> tuple[tuple[int, int, int], ...]:
        """Per type (first input row, first output row, length) of the rows that are both."""
        if self.own is not None:
            return self.own
        ends = zip(self.row_bounds, self.out_bounds, self.out_bounds[1:], strict=False)
        return tuple((at, first, last - first) for at, first, last in ends)

    @property
    def halo_rows(self) -> int:
        return self.lists.halo_rows

    @property
    def num_edges(self) -> int:
        """Into this worker's output rows."""
        if self.relations is not None:
            return sum(plan.num_edges for plan in self.relations.plans or self.relations.joined[:1])
        elsewhere = 0 if self.partials is None else self.partials.num_edges
        return elsewhere + sum(part.block.num_edges for shard in self._all_shards().values() for part in shard.relations)

    def release_columns(self) -> None:
        """Give back the pages of what its edges carry in a file; they are read again where they are needed."""
        for shard in self._all_shards().values():
            for part in shard.relations:
                part.block.columns.release()

    def ready_for_gradients(self) -> None:
        """Make what backward passes read of its edges, before memory is measured, or anybody waits for them."""
        plans = [self] if self.relations is None else self.relations.plans
        shards = [shard for plan in plans for shard in plan._all_shards().values()]
        if self.partials is not None and self.partials.joint is not None:
            shards.append(self.partials.joint.shard)
        for part in (part for shard in shards for part in shard.relations):
            part.block.ready_for_gradients()

    def _all_shards(self) -> dict[Piece, Shard]:
        """The merged one is piece 0 of peer -1."""
        if self.shards is not None:
            return self.shards
        return {} if self.merged is None else {Piece(self.merged.peer, 0): self.merged}

    def edge_runs(self) -> dict[Piece, slice]:
        """Which of the worker's edges each shard holds; ``Piece(-1, 0)`` is the merged one. Plans of one relation only."""
        runs, first = {}, 0
        for piece, shard in self._all_shards().items():
            runs[piece] = slice(first, first + shard.block.num_edges)
            first = runs[piece].stop
        return runs

    @cached_property
    def _runs_by_shard(self) -> dict[int, slice]:
        return {id(shard): run for shard, run in zip(self._all_shards().values(), self.edge_runs().values(), strict=True)}

    def edge_run(self, shard: Shard) -> slice:
        """As ``edge_runs``, of a shard of the plan; what a reducer's step asks for."""
        return self._runs_by_shard[id(shard)]

    def edge_ends(self) -> tuple[Tensor, Tensor]:
        """The original ids of all edges' sources and destinations, int64 [E] each, computed on every call."""
        blocks = [shard.block for shard in self._all_shards().values()]
        sources = [block.src_ids.index_select(0, block.src) for block in blocks]
        return torch.cat(sources), torch.cat([block.dst_ids[block.dst_per_edge()] for block in blocks])

    def edge_column(self, name: str, like: Tensor | None = None) -> Tensor:
        """What all edges carry of one name, [E] or [E, D], put together on every call; ``like``: see ``EdgeColumns.tensor``.

        Raises ``KeyError`` where edges do not carry it.
        """
        return torch.cat([shard.block.columns.tensor(name, like) for shard in self._all_shards().values()])

    def column_width(self, name: str) -> int | None:
        """D of what edges carry of one name, [E, D]; None: they do not carry it. All relations carry the same."""
        plan = self if self.relations is None else (self.relations.plans or self.relations.joined[:1])[0]
        columns = next(iter(plan._all_shards().values())).block.columns
        return int(columns.columns[name].array.shape[1]) if name in columns else None

    @cached_property
    def isolated(self) -> Tensor:
        """int64, the output rows without an edge."""
        return torch.nonzero(self.in_degrees == 0)[:, 0]

    @cached_property
    def kept(self) -> dict[Any, Any]:
        """What layers derive from the plan alone, such as scales of rows, by their own keys. It is pickled with the plan."""
        return {}

    def with_constant(self, constant: Tensor | None) -> LayerPlan:
        """With ``constant``, and with what layers have derived from the plan."""
        plan = dataclasses.replace(self, constant=constant)
        plan.kept.update(self.kept)
        return plan

    def out_of(self, relation: int) -> slice:
        """The output rows of a relation's destination type."""
        destination = self.schema.relations[relation].destination
        return slice(self.out_bounds[destination], self.out_bounds[destination + 1])

    def num_into(self, relation: int) -> int:
        """M_r."""
        run = self.out_of(relation)
        return run.stop - run.start

    def by_type(self, out: Tensor) -> list[Tensor]:
        """Output rows [M, F] type by type, without copies."""
        return list(out.split([b - a for a, b in zip(self.out_bounds, self.out_bounds[1:], strict=False)]))

    def by_input_type(self, h: Tensor) -> list[Tensor]:
        """Input rows [N, F] likewise."""
        return list(h.split([b - a for a, b in zip(self.row_bounds, self.row_bounds[1:], strict=False)]))

    def in_one_table(self, tables: list[Tensor]) -> Tensor:
        """The inverse of ``by_type``. Types without rows here take part, so that no worker's graph of operations lacks them."""
        if self.out_type is not None:
            return tables[self.out_type]
        return tables[0] if len(tables) == 1 else torch.cat(tables)

    def relation_scale(self, relation: int, dtype: torch.dtype, run: slice | None = None) -> Tensor:
        """1 / |N_r(i)| for each output row of the relation's destination type, or a run of these, 1 without edges.

        Of a graph with edge weights: 1 / the sum of the weights, 0 where that is 0.
        """
        each = self.relation_degrees if self.weights is None else self.weights.by_relation
        if run is None:
            totals = each[relation]
        else:
            totals = each.run(relation, run) if isinstance(each, OfRelations) else each[relation][run]
        if self.weights is not None:
            return torch.where(totals > 0, totals.reciprocal(), 0).to(dtype)
        return totals.clamp(min=1).to(dtype).reciprocal_()

    def only(self, node_type: int) -> LayerPlan:
        """The plan that computes the rows of one type only. Shares all edges with this one, and exchanges the same rows."""
        assert self.out_bounds == self.row_bounds and self.relations is None and self.partials is None
        first, last = self.row_bounds[node_type], self.row_bounds[node_type + 1]
        bounds = tuple(0 if t <= node_type else last - first for t in range(len(self.row_bounds)))
        into = [r for r, relation in enumerate(self.schema.relations) if relation.destination == node_type]

        def kept(shard: Shard) -> Shard:
            blocks = (b for b in shard.relations if b.relation in into)
            shifted = tuple(dataclasses.replace(b, first_out=b.first_out - first) for b in blocks)
            own = tuple((src, out - first, n) for src, out, n in shard.own if out == first and n == last - first)
            return Shard(shard.peer, shard.num_src, shifted, own)

        def in_place(by_relation: Sequence[Tensor]) -> OfRelations:
            assert isinstance(by_relation, OfRelations)
            return by_relation.only(into)

        weights = self.weights
        if weights is not None:
            weights = WeightSums(weights.inward[first:last], weights.outward, in_place(weights.by_relation))
        return dataclasses.replace(
            self,
            out_type=node_type,
            out_bounds=bounds,
            in_degrees=self.in_degrees[first:last],
            weights=weights,
            relation_degrees=in_place(self.relation_degrees),
            shards=None if self.shards is None else {piece: kept(shard) for piece, shard in self.shards.items()},
            merged=None if self.merged is None else kept(self.merged),
        )
