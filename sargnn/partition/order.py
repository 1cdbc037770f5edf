"""The order of nodes inside a part. Neighbours with near row numbers share caches and pages.

It follows from clusters of the symmetric graph between the part's nodes, A + A^T without self-loops; an entry counts the
directed edges between two nodes. Rows of A are found in the order of the part's nodes and A^T by counting, so both have
ascending rows, which are merged. Held are at most 24 bytes an in-edge of the part: its source, and of one from the part itself
its inverse and two entries.

A part's in-edges are sorted by (source part, relation, destination, source) by counting: nothing but short runs is compared.
The rows are gone through in order twice. The first pass finds each source's position and counts the edges of each (source part,
relation); the second puts every edge behind the others of its pair, where destinations thus ascend. What is left is to sort the
sources of each destination, a few at a time. 12 bytes an edge are held at most, 16 where edges carry something: which edge of
the graph each is.

Letters: N nodes of the graph, n nodes of the part, E its in-edges, P parts, R relations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from sargnn.errors import ConfigError
from sargnn.graph.check import index_dtype
from sargnn.graph.claim import scratch_folder
from sargnn.graph.dataset import Dataset, group_by, row_runs
from sargnn.graph.edge_columns import EdgeColumns
from sargnn.interop.kaminpar import cut, write_graph
from sargnn.native import Entry
from sargnn.partition.both_ways import Rows
from sargnn.partition.ground import places_of
from sargnn.partition.metis import kway
from sargnn.steps import step

VERSION = 2
"""Of the orders; part of a partition store's key."""
_CLUSTER_ROWS, _IMBALANCE = 1000, 0.1
_keep_inside = Entry("keep_inside", "degrees l n, source *, first int, last int, ends l n+1, counts l n+1")
_turn_round = Entry("turn_round", "ends l n+1, forward * E, cursor l n, backward i E")
_merge = Entry("merge_rows", "ends l n+1, forward * E, starts l n+1, backward i E, rows l n+1, neighbours i M, weights i M")
_HINT = "partitioner.order=original keeps the nodes of a part in the original order"


@dataclass(frozen=True)
class Members:
    """Whose node is whose: part p has ``nodes[offsets[p]:offsets[p + 1]]``, by original id; ``place`` of each node in
    ``nodes``, int32 [N] (int64 from 2**31 nodes on). Arrays may be memory-mapped.
    """

    offsets: np.ndarray
    nodes: np.ndarray
    place: np.ndarray

    def own(self, p: int) -> np.ndarray:
        return self.nodes[self.offsets[p] : self.offsets[p + 1]]


def group_members(assignment: np.ndarray, world: int) -> Members:
    offsets, nodes = group_by(assignment, world)
    return Members(offsets, nodes, places_of(nodes))


@dataclass(frozen=True)
class KaMinPar:
    folder: Path
    threads: int

    def cut_graph(self, graph: sparse.csr_array, parts: int) -> np.ndarray:
        """The cluster of each row of a graph of ``metis.symmetric``, int32 [N]."""
        with scratch_folder(self.folder, ".kaminpar-") as folder:
            path = folder / "part.parhip"
            rows = Rows(0, np.diff(graph.indptr), graph.indices, graph.data)
            try:
                write_graph(path, graph.shape[0], iter([rows]))
            except OSError as error:
                raise ConfigError("A part's file for KaMinPar could not be written.", given=str(error), hint=_HINT) from error
            return cut(path, parts, seed=0, imbalance=_IMBALANCE, threads=self.threads, preset="large", hint=_HINT)


def order_nodes(
    dataset: Dataset, assignment: np.ndarray, world: int, how: str, kaminpar: KaMinPar | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of all parts, part by part, for an assignment int32 [N].

    Args:
        how: ``original`` keeps the original order inside a part; ``locality`` cuts the part's own subgraph into clusters of
            about a thousand nodes, whose rows fit a core's second-level cache, and goes cluster by cluster. Of a typed graph
            type by type either way.
        kaminpar: finds the clusters in METIS's place.

    Returns:
        offsets int64 [P + 1] and nodes int64 [N]: part p owns ``nodes[offsets[p]:offsets[p + 1]]`` in this order.
    """
    members = group_members(assignment, world)
    if how == "original":
        return members.offsets, members.nodes
    nodes = members.nodes.copy()
    for p in range(world):
        step("ordering nodes", p, world)
        if (order := order_part(dataset, members, p, kaminpar)) is not None:
            nodes[members.offsets[p] : members.offsets[p + 1]] = members.own(p)[order]
    return members.offsets, nodes


def order_part(dataset: Dataset, members: Members, p: int, kaminpar: KaMinPar | None = None) -> np.ndarray | None:
    """Part p's nodes by locality, as places among them by original id, int64; None: they stay as they are."""
    own = members.own(p)
    clusters = -(-len(own) // _CLUSTER_ROWS)
    if clusters < 2:
        return None
    graph = graph_within(dataset, members, p)
    if not graph.nnz:
        return None
    if kaminpar is None:
        cluster = kway(graph, clusters, seed=0, imbalance=_IMBALANCE)
    else:
        cluster = kaminpar.cut_graph(graph, clusters)
    order = np.argsort(cluster, kind="stable")
    return order[np.argsort(dataset.schema.types_of(own[order]), kind="stable")]


def graph_within(dataset: Dataset, members: Members, p: int) -> sparse.csr_array:
    """The symmetric graph between part p's nodes, int32 [n, n]."""
    indptr, own = np.asarray(dataset.indptr), members.own(p)
    degrees = indptr[own + 1] - indptr[own]
    source = np.empty(int(degrees.sum()), members.place.dtype)
    gather_sources(indptr, np.asarray(dataset.indices), own, members.place, source)
    ends, counts = np.zeros(len(own) + 1, np.int64), np.zeros(len(own) + 1, np.int64)
    count = _keep_inside(degrees, source, members.offsets[p], members.offsets[p + 1], ends, counts)
    forward, backward, starts = source[:count], np.empty(count, np.int32), np.cumsum(counts)
    _turn_round(ends, forward, starts[:-1].copy(), backward)
    neighbours, weights, rows = np.empty(2 * count, np.int32), np.empty(2 * count, np.int32), np.zeros(len(own) + 1, np.int64)
    entries = _merge(ends, forward, starts, backward, rows, neighbours, weights)
    return sparse.csr_array((weights[:entries], neighbours[:entries], rows), shape=(len(own), len(own)))


Report = Callable[[int], None]
"""Told how much more is done, in bytes (``partition.stages``)."""
EDGE_BYTES = 16
"""What sorting an edge counts as where progress is told."""
_TABLE = 1 << 14
_PARTS = "offsets l P+1, near l, shift int"
gather_sources = Entry("gather_sources", "indptr l N+1, indices *, nodes l, place * N, source * E")
"""The places (int32 or int64 [N]) of the sources of all in-edges of some nodes, node by node."""
_leave_out = Entry("leave_out", "indptr l N+1, nodes l, place * N, read b N, source *")
_count = Entry("count_groups", "indptr l, relation b, nodes l", _PARTS, "relations int, source *, counts l")
_put = Entry(
    "put_edges",
    "indptr l, relation b, own l, rows l",
    _PARTS,
    "relations int, source *, cursor l, edge_src i E, edge_dst i E, numbers *",
)
_sort_runs = Entry("sort_runs", "offsets l, edge_src i E, edge_dst i E, numbers *")


@dataclass(frozen=True)
class Wanted:
    """Which edges.

    Attributes:
        own: int64, the part's nodes.
        rows: int64, those of their places whose in-edges are looked at, ascending.
        position: of each node of the graph, negative: its edges are left out.
        offsets: int64 [P + 1], of positions.
        read: bool [N of the graph], of whose in-edges only loops are wanted where it is False; None: all are.
    """

    own: np.ndarray
    rows: np.ndarray
    position: np.ndarray
    offsets: np.ndarray
    read: np.ndarray | None = None


def sort_edges(
    dataset: Dataset, wanted: Wanted, chunk_edges: int, report: Report
) -> tuple[np.ndarray, np.ndarray, np.ndarray, EdgeColumns]:
    """The edges, sorted; sources are numbered from their part's first node on.

    Gives edge_src int32 [E], edge_dst int32 [E], offsets int64 [P R + 1], and what they carry. ``chunk_edges``: about how many
    are gone through between two reports.
    """
    indptr, indices, own, rows = np.asarray(dataset.indptr), np.asarray(dataset.indices), wanted.own, wanted.rows
    relations = len(dataset.schema.relations)
    relation = np.zeros(0, np.uint8) if dataset.relation is None else np.asarray(dataset.relation)
    ends = np.concatenate([[0], np.cumsum(indptr[own[rows] + 1] - indptr[own[rows]])])
    pieces = list(row_runs(ends, chunk_edges))
    # For each position, shifted, a part that is not behind that of the position, and is near it.
    shift = 0
    while (int(wanted.offsets[-1]) >> shift) >= _TABLE:
        shift += 1
    starts = np.arange((int(wanted.offsets[-1]) >> shift) + 1, dtype=np.int64) << shift
    parts = wanted.offsets, np.searchsorted(wanted.offsets, starts, side="right") - 1, shift
    source = np.empty(ends[-1], index_dtype(len(indptr) - 1))
    counts = np.zeros(max(1, (len(wanted.offsets) - 1) * relations) + 1, np.int64)
    for a, b in pieces:
        piece, nodes = source[ends[a] : ends[b]], own[rows[a:b]]
        gather_sources(indptr, indices, nodes, wanted.position, piece)
        if wanted.read is not None:
            _leave_out(indptr, nodes, wanted.position, wanted.read, piece)
        _count(indptr, relation, nodes, *parts, relations, piece, counts[1:])
        report(len(piece) * EDGE_BYTES // 2)
    offsets = np.cumsum(counts)[: (len(wanted.offsets) - 1) * relations + 1]
    edge_src, edge_dst = (np.empty(offsets[-1], np.int32) for _ in range(2))
    numbers = np.empty(offsets[-1] if dataset.columns else 0, index_dtype(dataset.num_edges))
    cursor = offsets[:-1].copy()
    for a, b in pieces:
        piece = source[ends[a] : ends[b]]
        _put(indptr, relation, own, rows[a:b], *parts, relations, piece, cursor, edge_src, edge_dst, numbers)
        report(len(piece) * (EDGE_BYTES - EDGE_BYTES // 2))
    del source
    _sort_runs(offsets, edge_src, edge_dst, numbers)
    return edge_src, edge_dst, offsets, dataset.columns.take(numbers)
