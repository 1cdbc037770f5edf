"""Plans made of a plan: with some of its edges, with other self-loops, or of the reversed graph.

With other edges or loops the rows and the messages stay those of the plan, and a worker makes it alone: a self-loop's both ends
are its own row, and edges that are left out are nobody else's.

The reversed graph has a worker's out-edges in place of its in-edges. Of an edge j -> i into one of its own rows i a worker
knows j as a place in its halo. The owner of j gets the edge, in one message from each worker to each other one, and has it
as i -> j of the reversed graph: j is its own row, i a halo row.

Letters: N own rows, M output rows, E edges of this worker, P workers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock, EndIds, keep_edges
from sargnn.comm.collectives import swap
from sargnn.comm.group import Group
from sargnn.comm.lists import Piece, Run
from sargnn.partition.part import Part
from sargnn.plan.layer_plan import LayerPlan, Shard
from sargnn.plan.load import Layout, PlanSettings, edge_positions, load_plan

Loops = Literal["without", "each", "only"]
"""Edges without self-loops; these and one self-loop of each output row; nothing but self-loops."""


def are_loops(plan: LayerPlan) -> Tensor:
    """bool [E], which edges of a plan of one relation are self-loops."""
    sources, destinations = plan.edge_ends()
    return sources == destinations


def with_edges(plan: LayerPlan, kept: Tensor) -> tuple[LayerPlan, Tensor]:
    """A plan of one relation with some of its edges, bool [E], which its degrees count; and int64, each edge's old number."""
    assert plan.partials is None
    runs = plan.edge_runs()
    new = {}
    for piece, shard in _shards(plan).items():
        some = kept[runs[piece]]
        new[piece] = shard if bool(some.all()) else Shard.whole(shard.peer, keep_edges(shard.block, some))
    return _replaced(plan, new), torch.nonzero(kept)[:, 0]


def with_loops(plan: LayerPlan, loops: Loops) -> tuple[LayerPlan, Tensor]:
    """The plan with other self-loops, and each edge's old number, int64; -1: a new self-loop.

    ``plan`` is of one relation whose ends are nodes of one type.
    """
    made, positions = with_edges(plan, are_loops(plan) if loops == "only" else ~are_loops(plan))
    if loops != "each":
        return _counting_sources(made, plan, loops), positions
    shards, runs = _shards(made), made.edge_runs()
    piece = next(piece for piece in shards if piece.peer in (plan.rank, -1))
    block, run = shards[piece].block, runs[piece]
    rows = torch.arange(block.num_dst, dtype=torch.int32, device=block.src.device)
    src, dst = torch.cat([block.src, _own_rows(plan, rows)]), torch.cat([block.dst_per_edge().to(torch.int32), rows])
    order = torch.argsort(dst, stable=True)
    ids = EndIds(block.src_ids, block.dst_ids, block.src_id_rank)
    added = torch.full((len(rows),), -1, dtype=torch.int64, device=rows.device)
    places = torch.cat([torch.arange(block.num_edges, device=rows.device), added])[order]
    columns = block.columns.take(places) if block.columns else block.columns
    looped = Shard.whole(shards[piece].peer, EdgeBlock(src[order], dst[order], block.num_src, block.num_dst, ids, columns))
    own = torch.cat([positions[run], torch.full((len(rows),), -1, device=positions.device)])[order]
    looped_plan = _counting_sources(_replaced(made, {**shards, piece: looped}), plan, loops)
    return looped_plan, torch.cat([positions[: run.start], own, positions[run.stop :]])


def _counting_sources(made: LayerPlan, plan: LayerPlan, loops: Loops) -> LayerPlan:
    """With the degrees of sources, which self-loops change like those of destinations; where all rows are both."""
    if plan.num_rows != plan.num_out or len(plan.out_degrees) != plan.num_rows:
        return made
    out_degrees = made.in_degrees if loops == "only" else plan.out_degrees + made.in_degrees - plan.in_degrees
    return dataclasses.replace(made, out_degrees=out_degrees)


def _own_rows(plan: LayerPlan, rows: Tensor) -> Tensor:
    """Which source row of the own block each output row is."""
    own = torch.empty_like(rows)
    for at, first, count in plan.own_runs():
        own[first : first + count] = torch.arange(at, at + count, dtype=rows.dtype, device=rows.device)
    return own


def _shards(plan: LayerPlan) -> dict[Piece, Shard]:
    if plan.shards is not None:
        return dict(plan.shards)
    assert plan.merged is not None
    return {piece: plan.merged for piece in plan.edge_runs()}


def _replaced(plan: LayerPlan, shards: dict[Piece, Shard]) -> LayerPlan:
    """Degrees of sources are not known without asking other workers, so that they are left out."""
    degrees = torch.zeros_like(plan.in_degrees)
    for shard in shards.values():
        degrees += torch.bincount(shard.block.dst_per_edge(), minlength=plan.num_out)
    new = dataclasses.replace(
        plan,
        shards=None if plan.shards is None else shards,
        merged=None if plan.shards is not None else next(iter(shards.values())),
        in_degrees=degrees,
        out_degrees=plan.out_degrees[:0],
        relation_degrees=(degrees,),
    )
    return new


_Edges = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
_NO_EDGES = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)


@dataclass(frozen=True)
class Crossing:
    """The way of what edges carry from those who have them to those who have them reversed.

    Attributes:
        sent: per peer int64, which of the own edges go there.
        order: int64 [E], where each of the reversed edges stands among what arrives.
    """

    sent: tuple[np.ndarray, ...]
    order: np.ndarray

    def carry(self, group: Group, values: Tensor) -> Tensor:
        """Values [E, ...] of the own edges as those of the own reversed edges; all workers must call it together."""
        rows = np.ascontiguousarray(values.detach().cpu().numpy())
        arrived = swap(group, [rows[edges] for edges in self.sent], "what the reversed edges carry")
        return torch.from_numpy(np.concatenate(arrived)[self.order]).to(values.device)


def reversed_plan(plan: LayerPlan, group: Group, dtype: torch.dtype) -> tuple[LayerPlan, Crossing]:
    """The same worker's plan of the reversed graph, whose edges carry nothing, and the way of what they do carry.

    All workers must call it together. ``plan`` computes all rows, of a homogeneous graph or a node type's relation to itself.
    """
    assert plan.num_out == plan.num_rows and plan.partials is None
    needed: list[np.ndarray] = []
    numbers: list[np.ndarray] = []
    sent: list[np.ndarray] = []
    for peer, (src, dst, edges) in enumerate(_edges_by_peer(plan)):
        own = peer == plan.rank
        rows = np.empty(0, np.int32) if own else np.unique(dst).astype(np.int32)
        needed.append(rows)
        numbers.append(edges)
        sent.append(np.stack([dst if own else np.searchsorted(rows, dst), src], 1).astype(np.int32))
    node_ids = plan.node_ids.cpu().numpy()
    received = swap(group, sent, "the edges of the reversed graph")
    halo_ids = swap(group, [node_ids[rows] for rows in needed], "the nodes of the reversed graph's halo")
    halo_ids[plan.rank] = np.empty(0, np.int64)
    sources, destinations, orders, first = [], [], [], 0
    for peer, pairs in enumerate(received):
        src, own_rows = pairs[:, 0], pairs[:, 1]
        if peer != plan.rank:  # the peer named the row by its place in its halo, which is that among the rows sent to it
            own_rows = plan.lists.send_rows[peer].cpu().numpy()[own_rows]
        order = np.lexsort((src, own_rows))
        sources.append(src[order])
        destinations.append(own_rows[order].astype(np.int32))
        orders.append(first + order)
        first += len(order)
    count = plan.num_rows
    part = Part(
        schema=plan.schema,
        features=(np.empty((count, 0), np.float32),),
        node_ids=node_ids,
        labels=np.zeros(count, np.int64),
        split=np.zeros(count, np.uint8),
        in_degrees=np.bincount(np.concatenate(destinations), minlength=count),
        out_degrees=plan.in_degrees.cpu().numpy(),
        edge_src=np.concatenate(sources),
        edge_dst=np.concatenate(destinations),
        edge_offsets=_offsets(sources),
        halo_ids=np.concatenate(halo_ids),
        halo_offsets=_offsets(halo_ids),
        send_rows=np.concatenate(needed),
        send_offsets=_offsets(needed),
    )
    layout: Layout = "merged" if plan.shards is None else "sharded"
    lists = plan.lists
    settings = PlanSettings(plan.rank, layout, plan.node_ids.device, lists.message_rows, dtype, lists.near, lists.windows)
    made = load_plan(part, settings)
    order = np.concatenate(orders)[edge_positions(part, made)]
    return made, Crossing(tuple(numbers), order)


def _edges_by_peer(plan: LayerPlan) -> _Edges:
    """Per source partition [E]: rows of its halo, of the own part own rows; own rows; and numbers of the edges."""
    edges: _Edges = []
    runs = plan.edge_runs()
    if plan.shards is not None:
        by_peer: dict[int, _Edges] = {peer: [_NO_EDGES] for peer in range(plan.world)}
        arrivals = {now.piece: now.runs for now in plan.lists.arrivals(plan.rank)}
        for piece, shard in plan.shards.items():
            src, dst = shard.block.src.cpu().numpy(), shard.block.dst_per_edge().cpu().numpy()
            at = 0
            for peer, first, last, _ in arrivals.get(piece, (Run(plan.rank, 0, shard.num_src, ends=True),)):
                places = np.flatnonzero((src >= at) & (src < at + last - first))
                by_peer[peer].append((src[places] + np.int32(first - at), dst[places], runs[piece].start + places))
                at += last - first
        for parts in by_peer.values():
            src, dst, numbers = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            edges.append((src, dst, numbers))
        return edges
    assert plan.merged is not None
    all_src, all_dst = plan.merged.block.src.cpu().numpy(), plan.merged.block.dst_per_edge().cpu().numpy()
    bounds = plan.num_rows + np.cumsum([0, *plan.lists.receive_rows])
    for peer, (first, last) in enumerate(pairwise(bounds.tolist())):
        low, high = (0, plan.num_rows) if peer == plan.rank else (first, last)
        inside = (all_src >= low) & (all_src < high)
        edges.append((all_src[inside] - np.int32(low), all_dst[inside], np.flatnonzero(inside)))
    return edges


def _offsets(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(array) for array in arrays])]).astype(np.int64)
