"""Edges that the owners of their sources aggregate: found when a plan is made, and left out of the destinations' shards.

A part's edges from a peer are shared out (``plan.cover``). For those that the peer aggregates, it learns between which of its
own rows and which of this worker's rows they run, and makes shards of them: from its own rows to a piece of the peer's output
rows. What remains of the part is one with fewer edges and fewer halo rows, of which plans are made as of any other.

Letters: N own rows, M output rows, H halo rows, E edges, A rows of a piece, R relations.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock, EndIds
from sargnn.comm.collectives import swap
from sargnn.comm.group import Group
from sargnn.comm.lists import PartialLists, Piece, cut_list
from sargnn.graph.edge_columns import EdgeColumns, join
from sargnn.partition.part import Part, offsets_of
from sargnn.plan.cover import Share, choose_edges
from sargnn.plan.layer_plan import Joint, LayerPlan, Partials, RelationBlock, Shard
from sargnn.plan.load import Edges, PlanSettings, id_ranks_of, load_plan, peer_span

_DOING = "sharing out cut edges"
JOINT_ROWS = 0.7
"""Of peers' output rows no more are aggregated together with the own ones than this many times a worker's rows."""
LEAST_ROOM = 0.2
"""Of a message's room for rows, and for partial results."""
_COPIED = 4
"""Their messages are copied from a table or into it, and may be this many times shorter."""


@dataclass(frozen=True)
class _Asked:
    """Edges of a peer's that this worker aggregates, sorted by relation, destination and source.

    Attributes:
        src: int32 [E], own input rows.
        dst: int32 [E], places among the peer's rows.
        relations: int64 [R + 1], where each begins.
        ids: int64, original ids of the peer's rows.
        columns: what the edges carry.
        scale: fp64, for each pair of a relation and a row that has edges of it, in their order, what its mean is multiplied by.
        sent: int32, all own rows that the peer's part reads: winners are ranked among these.
    """

    src: np.ndarray
    dst: np.ndarray
    relations: np.ndarray
    ids: np.ndarray
    columns: EdgeColumns
    scale: np.ndarray
    sent: np.ndarray

    def edges(self, relation: int) -> Edges:
        run = slice(int(self.relations[relation]), int(self.relations[relation + 1]))
        return Edges(self.src[run], self.dst[run], self.columns.run(run))


def share_room(rows: float, results: float, widest: float, message_rows: int, *, typed: bool) -> tuple[int, int]:
    """How many rows, and how many partial results, a message holds at most.

    Args:
        rows: that travel.
        results: that travel, counted by the rows that the widest message of one is as wide as.
        widest: how many rows that are.
        message_rows: the room that they share.
    """
    of_rows = min(max(rows / max(rows + results, 1.0), LEAST_ROOM), 1 - LEAST_ROOM)
    of_results = max(1, int((1 - of_rows) * message_rows / widest))
    return max(1, int(of_rows * message_rows)), max(1, of_results // (_COPIED if typed else 1))


def load_shared_plan(
    part: Part, settings: PlanSettings, group: Group, share: Share | None, *, out_bounds: tuple[int, ...] | None = None
) -> LayerPlan:
    """``load_plan`` with some edges aggregated where their sources are; all ranks must call it together.

    Args:
        part: with self-loops, if the model adds them.
        settings: what all plans have in common; with a share, messages of rows and of partial results share ``message_rows``
            out between them, in the proportion of what travels.
        share: how cut edges are shared out; None: the destinations' owners aggregate all.
    """
    if share is None or group.world == max(1, len(settings.near)):
        return load_plan(part, settings, out_bounds=out_bounds)
    rank, device, typed = settings.rank, settings.device, part.schema.typed
    whole = load_plan(part, dataclasses.replace(settings, layout=None), out_bounds=out_bounds)
    kept, kept_halo, wanted, asked, moved = _share_out(part, settings, group, share, whole)
    rows, results = group.sum_(torch.tensor([float(len(kept.halo_ids)), share.widest * sum(map(len, wanted))])).tolist()
    rows, results = share_room(rows, results, share.widest, settings.message_rows, typed=typed)
    ranks, in_order = id_ranks_of(part), torch.arange(whole.num_rows, dtype=torch.int32, device=device)
    out_rows = tuple(torch.from_numpy(to_peer).to(device) for to_peer in wanted)
    lists = PartialLists(out_rows, tuple(len(request.ids) for request in asked), results)
    table = _joint_rows(rank, whole, lists) if typed else {}
    joined = _joined(table, asked)
    plan = load_plan(
        kept,
        dataclasses.replace(settings, message_rows=rows),
        out_bounds=out_bounds,
        id_ranks=np.concatenate([ranks[: whole.num_rows], ranks[whole.num_rows :][kept_halo]]),
        sources_first=_map_first(part, rank, joined, whole) if typed else None,
    )
    shards: dict[Piece, Shard] = {}
    scales: dict[Piece, tuple[Tensor, ...]] = {}
    for p, request in enumerate(asked):
        if p != rank:
            id_rank = _ranks_of(whole.node_ids, request.sent) if share.ranked else in_order
            for number, (first, last) in enumerate(lists.pieces(len(request.ids))):
                if (piece := Piece(p, number)) not in table:
                    shards[piece], scales[piece] = _shard(p, request, (first, last), whole, id_rank, settings.dtype)
    blocks = {now.piece: EdgeBlock.one_each(now.wanted, whole.num_out) for now in lists.rounds(rank) if len(now.wanted)}
    peer_ranks = None
    if share.ranked:
        by_peer = (np.sort(ranks[whole.num_rows :][a:b]) for a, b in pairwise(part.halo_offsets))
        peer_ranks = tuple(torch.from_numpy(of_peer).to(device) for of_peer in by_peer)
    joint = _joint(plan, table, joined, whole, rows, settings.dtype) if joined else None
    partials = Partials(lists, shards, scales, blocks, moved, whole.halo_rows, peer_ranks, joint)
    return dataclasses.replace(plan, partials=partials, relation_degrees=whole.relation_degrees, weights=whole.weights)


def _share_out(
    part: Part, settings: PlanSettings, group: Group, share: Share, whole: LayerPlan
) -> tuple[Part, np.ndarray, list[np.ndarray], list[_Asked], int]:
    """The part that remains and its halo rows, output rows that each peer computes, its requests, and how many edges moved."""
    rank, world = settings.rank, group.world
    spans = [peer_span(part, q) for q in range(world)]
    edges = [(np.asarray(part.edge_src[edge_span]), np.asarray(part.edge_dst[edge_span])) for edge_span in spans]
    moved = choose_edges(group, edges, [int(count) for count in np.diff(part.halo_offsets)], share)
    for q in {rank, *settings.near}:  # rows of ranks in this process cost nothing on their way
        moved[q][:] = False
    starts = [_starts(part, q, moved[q]) for q in range(world)]
    wanted, places = [], []
    for (_, dst), chosen in zip(edges, moved, strict=True):
        rows, place = np.unique(dst[chosen], return_inverse=True)
        wanted.append(rows.astype(np.int32))
        places.append(place.astype(np.int32))
    read = [
        np.bincount(src[~chosen], minlength=int(part.halo_offsets[q + 1] - part.halo_offsets[q])) > 0
        for q, ((src, _), chosen) in enumerate(zip(edges, moved, strict=True))
    ]
    read[rank] = np.zeros(0, bool)
    out_ids = whole.self_rows(whole.node_ids).cpu().numpy()
    told = [
        swap(group, arrays, _DOING)
        for arrays in (
            [mask.view(np.uint8) for mask in read],
            [src[chosen] for (src, _), chosen in zip(edges, moved, strict=True)],
            places,
            starts,
            [out_ids[rows] for rows in wanted],
            [_scales(part, q, moved[q], whole) for q in range(world)],
        )
    ]
    given = [part.columns.run(span).take(chosen) for span, chosen in zip(spans, moved, strict=True)]
    carried: list[dict[str, Any]] = [{} for _ in range(world)]
    for name in part.columns.columns:
        for q, numbers in enumerate(swap(group, [np.asarray(columns[name]) for columns in given], _DOING)):
            carried[q][name] = numbers
    send = [np.asarray(part.send_rows[a:b]) for a, b in pairwise(part.send_offsets)]
    asked = []
    for q, (src, dst, relation, ids, scale) in enumerate(zip(*told[1:], strict=True)):
        asked.append(
            _Asked(send[q][src] if q != rank else src[:0], dst, relation, ids, EdgeColumns.of(carried[q]), scale, send[q])
        )
    kept = _without(part, rank, moved, read, [rows[keep.view(bool)] for rows, keep in zip(send, told[0], strict=True)])
    return kept, np.concatenate(read), wanted, asked, sum(int(mask.sum()) for mask in moved)


def _starts(part: Part, q: int, chosen: np.ndarray) -> np.ndarray:
    """int64 [R + 1], where each relation begins among the chosen edges from part ``q``."""
    ends = [part.edge_span(q, r).stop for r in range(len(part.schema.relations))]
    before = np.concatenate([[0], np.cumsum(chosen)])
    return before[np.array([0, *(end - peer_span(part, q).start for end in ends)])]


def _scales(part: Part, q: int, chosen: np.ndarray, whole: LayerPlan) -> np.ndarray:
    """fp64, see ``_Asked.scale``."""
    scales = [np.zeros(0)]
    for r in range(len(part.schema.relations)):
        span, first = part.edge_span(q, r), peer_span(part, q).start
        rows = np.unique(np.asarray(part.edge_dst[span])[chosen[span.start - first : span.stop - first]])
        scales.append(whole.relation_scale(r, torch.float64).cpu().numpy()[rows - whole.out_of(r).start])
    return np.concatenate(scales)


def _without(part: Part, rank: int, moved: list[np.ndarray], read: list[np.ndarray], send: list[np.ndarray]) -> Part:
    """The part without the edges that were moved, and without halo rows that no other edge reads."""
    sources, destinations, counts, halos = [], [], [], []
    for q in range(len(read)):
        span, stays = peer_span(part, q), ~moved[q]
        src = np.asarray(part.edge_src[span])[stays]
        sources.append(src if q == rank else (np.cumsum(read[q]) - 1).astype(np.int32)[src] if len(src) else src)
        destinations.append(np.asarray(part.edge_dst[span])[stays])
        counts.append(np.diff(_starts(part, q, stays)))
        halo = part.halo_ids[part.halo_offsets[q] : part.halo_offsets[q + 1]] if q != rank else part.halo_ids[:0]
        halos.append(np.asarray(halo)[read[q]])
    stay = np.concatenate([~mask for mask in moved])
    return dataclasses.replace(
        part,
        edge_src=np.concatenate(sources),
        edge_dst=np.concatenate(destinations),
        edge_offsets=np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64),
        columns=part.columns.take(stay),
        halo_ids=np.concatenate(halos),
        halo_offsets=offsets_of(halos),
        send_rows=np.concatenate(send),
        send_offsets=offsets_of(send),
    )


def _joint_rows(rank: int, whole: LayerPlan, lists: PartialLists) -> dict[Piece, slice]:
    """The pieces of peers' rows that are aggregated together with the own ones, each with its place in their table."""
    table: dict[Piece, slice] = {}
    first, most = 0, int(JOINT_ROWS * whole.num_rows)
    for now in lists.rounds(rank):
        if first + now.served > most:
            break
        if now.served:
            table[now.to] = slice(first, first + now.served)
            first += now.served
    return table


def _joined(table: dict[Piece, slice], asked: list[_Asked]) -> dict[int, _Asked]:
    """By peer the edges into its rows of the table, which they number; a peer's pieces lie there one behind the other."""
    by_peer = {}
    for p in dict.fromkeys(piece.peer for piece in table):
        runs = [run for piece, run in table.items() if piece.peer == p]
        first, count = runs[0].start, runs[-1].stop - runs[0].start
        request = asked[p]
        spans = [slice(a, a + int(np.searchsorted(request.dst[a:b], count))) for a, b in pairwise(request.relations.tolist())]
        listed = [np.unique(request.dst[a:b]) for a, b in pairwise(request.relations.tolist())]
        ends = np.cumsum([0, *(len(rows) for rows in listed)])
        scale = [request.scale[a : a + int(np.searchsorted(rows, count))] for a, rows in zip(ends[:-1], listed, strict=True)]
        by_peer[p] = _Asked(
            src=np.concatenate([request.src[span] for span in spans]),
            dst=np.concatenate([request.dst[span] for span in spans]) + np.int32(first),
            relations=np.cumsum([0, *(span.stop - span.start for span in spans)]),
            ids=request.ids[:count],
            columns=request.columns.runs(spans),
            scale=np.concatenate(scale),
            sent=request.sent,
        )
    return by_peer


def _map_first(part: Part, rank: int, joined: dict[int, _Asked], whole: LayerPlan) -> set[int]:
    """The relations that have no more sources here than destinations, own and joined ones."""
    relations = set()
    for r, relation in enumerate(part.schema.relations):
        sums = len(np.unique(part.edges(rank, r)[1]))
        sums += sum(len(np.unique(request.edges(r).dst)) for request in joined.values())
        if whole.row_bounds[relation.source + 1] - whole.row_bounds[relation.source] <= sums:
            relations.add(r)
    return relations


def _joint(
    plan: LayerPlan,
    table: dict[Piece, slice],
    joined: dict[int, _Asked],
    whole: LayerPlan,
    message_rows: int,
    dtype: torch.dtype,
) -> Joint:
    device, asked = whole.node_ids.device, list(joined.values())
    ids = torch.from_numpy(np.concatenate([request.ids for request in asked])).to(device)
    assert plan.shards is not None
    own = plan.shards[Piece(plan.rank, 0)]
    in_order = torch.arange(whole.num_rows, dtype=torch.int32, device=device)
    blocks: list[RelationBlock] = []
    scales: list[Tensor | None] = []
    scale_at = [0] * len(asked)
    for r, relation in enumerate(plan.schema.relations):
        s0, s1 = whole.row_bounds[relation.source], whole.row_bounds[relation.source + 1]
        by_peer = [request.edges(r) for request in asked]
        src = np.concatenate([edges.src for edges in by_peer]) - np.int32(s0)
        dst = np.concatenate([edges.dst for edges in by_peer])  # ascending
        edges = Edges(src, dst, join([edges.columns for edges in by_peer], [len(edges.src) for edges in by_peer]))
        scale = torch.zeros(len(ids), dtype=dtype, device=device)
        for k, (request, of_peer) in enumerate(zip(asked, by_peer, strict=True)):
            rows = torch.from_numpy(np.unique(of_peer.dst))
            numbers = request.scale[scale_at[k] : scale_at[k] + len(rows)]
            scale[rows.long()] = torch.from_numpy(numbers).to(device, dtype)
            scale_at[k] += len(rows)
        mine = [own_block for own_block in own.relations if own_block.relation == r]
        blocks += [own_block for own_block in mine if not own_block.map_sources]
        scales += [None] * (len(blocks) - len(scales))
        listed = np.unique(dst)
        if any(own_block.map_sources for own_block in mine) or (not mine and s1 - s0 <= len(listed)):
            pieces = max(1, -(-(s1 - s0) // message_rows))
            for a, b in (((s1 - s0) * j // pieces, (s1 - s0) * (j + 1) // pieces) for j in range(pieces)):
                beside = [own_block for own_block in mine if own_block.map_sources and own_block.first_src == s0 + a]
                blocks += beside
                scales += [None] * len(beside)
                some = edges.of_sources(a, b)
                if len(some.src):
                    ends = EndIds(whole.node_ids[s0 + a : s0 + b], ids, in_order[: b - a])
                    block = some.shifted(a, 0).block(ends, b - a, dtype)
                    blocks.append(RelationBlock(r, s0 + a, 0, 0, len(ids), block, None, map_sources=True))
                    scales.append(scale)
            continue
        for a, b in cut_list(len(listed), message_rows):
            some = edges.of_destinations(int(listed[a]), int(listed[b - 1]) + 1)
            local = some._replace(dst=np.searchsorted(listed[a:b], some.dst).astype(np.int32))
            places = torch.from_numpy(listed[a:b].astype(np.int32)).to(device)
            ends = EndIds(whole.node_ids[s0:s1], ids[places.long()], in_order[: s1 - s0])
            block = local.block(ends, s1 - s0, dtype, lists_sources=True)
            blocks.append(RelationBlock(r, s0, 0, 0, len(ids), block, places, map_sources=False))
            scales.append(scale[places.long()])
    return Joint(Shard(plan.rank, whole.num_rows, tuple(blocks), own.own), tuple(scales), table)


def _shard(
    peer: int, asked: _Asked, piece: tuple[int, int], whole: LayerPlan, id_rank: Tensor, dtype: torch.dtype
) -> tuple[Shard, tuple[Tensor, ...]]:
    """The edges into a piece of the peer's rows, and per block the scales of its destination rows."""
    device, typed, (first, last) = whole.node_ids.device, whole.schema.typed, piece
    ids = torch.from_numpy(asked.ids[first:last]).to(device)
    blocks, scales, scale_at = [], [], 0
    for r, relation in enumerate(whole.schema.relations):
        edges = asked.edges(r)
        listed, some = np.unique(edges.dst), edges.of_destinations(first, last)
        s0, s1 = (whole.row_bounds[relation.source], whole.row_bounds[relation.source + 1])
        if len(some.src) or not typed:
            local, rows, dst_ids = some.shifted(s0, first), None, ids
            if typed:
                places, inverse = np.unique(local.dst, return_inverse=True)
                local, rows = local._replace(dst=inverse.astype(np.int32)), torch.from_numpy(places.astype(np.int32)).to(device)
                dst_ids = ids[rows.long()]
            begin, end = scale_at + np.searchsorted(listed, (first, last))
            scales.append(torch.from_numpy(asked.scale[begin:end]).to(device, dtype))
            ends = EndIds(whole.node_ids[s0:s1], dst_ids, id_rank[s0:s1])
            block = local.block(ends, s1 - s0, dtype, lists_sources=True)
            blocks.append(RelationBlock(r, s0, 0, 0, last - first, block, rows, map_sources=False))
        scale_at += len(listed)
    return Shard(peer, whole.num_rows, tuple(blocks)), tuple(scales)


def _ranks_of(node_ids: Tensor, rows: np.ndarray) -> Tensor:
    """int32 [N], the rank of each of ``rows`` among them by original id; -1 for others."""
    ranks = torch.full((len(node_ids),), -1, dtype=torch.int32, device=node_ids.device)
    chosen = torch.from_numpy(rows).long().to(node_ids.device)
    order = chosen[torch.argsort(node_ids[chosen])]
    ranks[order] = torch.arange(len(order), dtype=torch.int32, device=node_ids.device)
    return ranks
