"""Shared preloading: what a server holds so that its workers need no other server's rows (Song et al., 2023, 4.2 and 4.3).

A server's inner nodes I are those that its workers own. Layer l of L computes every node from which an inner node is L - l hops
away, so the server holds all nodes within L hops of I, and the in-edges of those within L - 1:

    C_0 = I        C_h = C_(h-1) + sources of all edges into C_(h-1)

Nodes beyond I are copies: another server owns them. They are spread over the server's workers: each goes, hop by hop, to the
worker whose rows it has most edges with, as long as that worker's share of the work leaves room for it,

    work of a node h hops away = (L - h) (in-degree + ROW_WORK)        score = (1 + edges) (1 - work so far / share)

(linear deterministic greedy partitioning: Stanton and Kliot, KDD 2012).

Expansion-aware sampling bounds C: at most ``max_hop`` hops, and from each node on at most ``fanout`` of its in-neighbours
outside of I, those with the smallest Philox numbers of (seed; source id, destination id). Then every layer computes all of C,
from the edges between nodes of C: the subgraph that they induce. No edge between two inner nodes is ever left out.

Letters: N nodes of the graph, S servers, G workers of a server, P = S G, K copies, L hops.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from sargnn.graph.dataset import Dataset
from sargnn.graph.store import StoreWriter
from sargnn.native import Entry
from sargnn.partition.cut import Cutter
from sargnn.partition.ground import lay_ground
from sargnn.partition.part import Part, offsets_of
from sargnn.partition.quality import part_figures, partition_stats
from sargnn.partition.store import PartitionStats
from sargnn.partition.write import put_features, put_part, put_send_lists
from sargnn.rng import Purpose
from sargnn.steps import step

ROW_WORK = 32
"""What computing a row costs beside its edges, in edges: linear map, norm and dropout."""
_SLACK = 1.02
_TAG = int(Purpose.PRELOAD) << 24
_GRAPH = "indptr l N+1, indices *"
_spread = Entry("spread_hops", _GRAPH, "frontier l, hop int, most int, seed int, tag int, hops h N")
_vote = Entry("count_votes", _GRAPH, "rows l, worker_of i N, place l N, votes i K G")
_choose = Entry("choose_workers", _GRAPH, "rows l, worker_of i N, place l N, votes i K G, work d N, load d G, share float")


@dataclass(frozen=True)
class Bounds:
    """L, the model's layers that aggregate; bounds of expansion-aware sampling, None: none; and its seed."""

    hops: int
    max_hop: int | None = None
    fanout: int | None = None
    seed: int = 0

    @property
    def exact(self) -> bool:
        """Whether all is preloaded that inner nodes depend on."""
        return self.fanout is None and (self.max_hop is None or self.max_hop >= self.hops)

    @property
    def reach(self) -> int:
        """How many hops away nodes are held."""
        return self.hops if self.max_hop is None else min(self.max_hop, self.hops)

    def identity(self) -> dict[str, Any]:
        """What decides a preloaded store beside the partition; JSON-able."""
        if self.exact:
            return {"hops": self.hops}
        return dataclasses.asdict(self) | {"max_hop": self.reach}


def find_hops(dataset: Dataset, inner: np.ndarray, bounds: Bounds) -> np.ndarray:
    """How many hops each node is from a server's inner nodes (int64), int16 [N]; -1: it is not preloaded."""
    hops = np.full(dataset.num_nodes, -1, np.int16)
    hops[inner] = 0
    frontier, most = inner, dataset.num_edges if bounds.fanout is None else bounds.fanout
    for hop in range(1, bounds.reach + 1):
        _spread(np.asarray(dataset.indptr), np.asarray(dataset.indices), frontier, hop, most, bounds.seed, _TAG, hops)
        frontier = np.flatnonzero(hops == hop)
        if not len(frontier):
            break
    return hops


def assign_copies(dataset: Dataset, hops: np.ndarray, worker_of: np.ndarray, workers: int, layers: int) -> np.ndarray:
    """The worker of each node of a server, int32 [N]; -1: none. ``hops``: int16 [N]; ``worker_of``: inner nodes', int32 [N]."""
    assignment = worker_of.astype(np.int32, copy=True)
    if workers == 1:
        assignment[hops >= 0] = 0
        return assignment
    indptr, indices = np.asarray(dataset.indptr), np.asarray(dataset.indices)
    held = np.flatnonzero(hops >= 0)
    left = np.maximum(layers - hops[held], 0).astype(np.float64)
    work = np.zeros(len(hops))
    work[held] = left * (indptr[held + 1] - indptr[held] + ROW_WORK) + 1
    load = np.bincount(assignment[assignment >= 0], weights=work[assignment >= 0], minlength=workers)
    share = _SLACK * max(work[held].sum() / workers, load.max())
    votes, place = np.zeros((len(held), workers), np.int32), np.full(len(hops), -1, np.int64)
    place[held] = np.arange(len(held))
    for hop in range(1, int(hops.max()) + 1):
        now = np.flatnonzero(hops == hop)
        before = held[hops[held] == hop - 1]
        _vote(indptr, indices, before, assignment, place, votes)
        _choose(indptr, indices, now, assignment, place, votes, work, load, share)
    return assignment


def write_preloaded(
    writer: StoreWriter, dataset: Dataset, offsets: np.ndarray, nodes: np.ndarray, servers: int, bounds: Bounds
) -> tuple[PartitionStats, list[dict[str, list[int]]]]:
    """Cut a dataset, partitioned by ``offsets`` and ``nodes`` as of ``Ground``, into parts that hold all that their server's
    inner nodes depend on.

    Gives the quality, and of each server, by hop from the inner nodes on, ``nodes`` and those nodes' in-edges that it holds,
    ``edges``.
    """
    world = len(offsets) - 1
    workers = world // servers
    cutter = Cutter(dataset, lay_ground(dataset, offsets, nodes))
    rank_of, position = np.empty(dataset.num_nodes, np.int32), cutter.place
    for rank in range(world):
        rank_of[nodes[offsets[rank] : offsets[rank + 1]]] = rank
    places, figures, held = _Places(dataset, world), [], []
    for server in range(servers):
        first = server * workers
        mine, hops = cut_server(cutter, rank_of, range(first, first + workers), bounds)
        edges_by_hop = np.zeros(bounds.reach + 1, np.int64)
        for worker in range(workers):
            step("preloading parts", first + worker, world)
            part = mine.part(worker, mine.edges(worker), [np.zeros(0, np.int32)])
            edges_by_hop += np.bincount(hops[part.node_ids[part.edge_dst]], minlength=len(edges_by_hop))
            figures.append(part_figures(worker, part))
            put_part(writer, first + worker, part)
            put_features(writer, first + worker, mine, worker)
            places.add(first + worker, part, hops, rank_of, position)
        put_send_lists(writer, mine, first)
        counts = np.bincount(hops[hops >= 0], minlength=len(edges_by_hop))
        held.append({"nodes": counts.tolist(), "edges": edges_by_hop.tolist()})
    places.put(writer)
    return partition_stats(figures), held


def cut_server(cutter: Cutter, rank_of: np.ndarray, ranks: range, bounds: Bounds) -> tuple[Cutter, np.ndarray]:
    """What cuts one server's parts, by their places in it, and how many hops each node is from its inner nodes, int16 [N].

    ``rank_of``: int32 [N], each node's owner; ``ranks``: the server's.
    """
    dataset, inside = cutter.dataset, (rank_of >= ranks.start) & (rank_of < ranks.stop)
    inner = cutter.nodes[cutter.offsets[ranks.start] : cutter.offsets[ranks.stop]]
    hops = find_hops(dataset, inner, bounds)
    worker_of = np.where(inside, rank_of - ranks.start, -1).astype(np.int32)
    worker_of = assign_copies(dataset, hops, worker_of, len(ranks), bounds.hops)
    read = hops >= 0
    if bounds.exact:  # else nodes that were found late may be near all the same
        read &= hops < bounds.hops
    lists = []
    for worker in range(len(ranks)):  # type by type, inner nodes first, in the partition's order
        own = np.flatnonzero(worker_of == worker)
        lists.append(own[np.lexsort((cutter.place[own], hops[own] > 0, dataset.schema.types_of(own)))])
    return cutter.among(offsets_of(lists), np.concatenate(lists), read, open_ended=not bounds.exact), hops


class _Places:
    """Which rows of which part are copies of which rows of which other, collected part by part."""

    def __init__(self, dataset: Dataset, world: int) -> None:
        self._row = np.empty(dataset.num_nodes, np.int32)
        self._world = world
        self._nodes: dict[tuple[int, int], np.ndarray] = {}

    def add(self, rank: int, part: Part, hops: np.ndarray, rank_of: np.ndarray, position: np.ndarray) -> None:
        ids = np.asarray(part.node_ids)
        inner = hops[ids] == 0
        self._row[ids[inner]] = np.flatnonzero(inner)
        copies = np.flatnonzero(~inner)
        copies = copies[np.argsort(position[ids[copies]], kind="stable")]
        owners = rank_of[ids[copies]]  # ascending: positions go part by part
        for owner in range(self._world):
            rows = copies[owners == owner]
            if len(rows):
                self._nodes[rank, owner] = np.stack([rows, ids[rows]])

    def put(self, writer: StoreWriter) -> None:
        nothing = np.zeros((2, 0), np.int64)
        for rank in range(self._world):
            held = [self._nodes.get((rank, owner), nothing)[0].astype(np.int32) for owner in range(self._world)]
            lent = [self._row[self._nodes.get((holder, rank), nothing)[1]] for holder in range(self._world)]
            for name, lists in (("copy", held), ("copied", lent)):
                writer.put(f"part_{rank:03d}/{name}_rows", np.concatenate(lists))
                writer.put(f"part_{rank:03d}/{name}_offsets", offsets_of(lists))
