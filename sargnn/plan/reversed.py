"""The plan of the reversed graph: a worker's out-edges in place of its in-edges.

Of an edge j -> i into one of its own rows i a worker knows j as a place in its halo. The owner of j gets the edge, in one
message from each worker to each other one, and has it as i -> j of the reversed graph: j is its own row, i a halo row.

Letters: N own rows, E edges, P workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.collectives import swap
from sargnn.comm.group import Group
from sargnn.comm.lists import Run
from sargnn.partition.cut import Part
from sargnn.plan.layer_plan import LayerPlan
from sargnn.plan.load import Layout, PlanSettings, edge_positions, load_plan

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
