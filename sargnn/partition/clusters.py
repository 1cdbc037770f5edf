"""A graph on disk made smaller for a partitioner that must hold it: clusters of nodes, their graph, and the way back.

Multilevel partitioning (Karypis and Kumar, 1998) whose finest level is never held. Three passes of size-constrained label
propagation (Meyerhenke, Sanders and Schulz, 2014) put each node into the cluster c that has room and most of its neighbours,

    argmax over c of  sum over u in c of  w(u, v),    W_c + w(v) <= W_max

the clusters become the nodes of a graph whose weights are sums,

    w'(c, d) = sum over u in c, v in d of  w(u, v),    w'(c) = sum over v in c of  w(v)

which is cut, and after that every node moves to the part that has most of its neighbours, if it has room. The graph lies in a
file that is read from the first row to the last, and cluster by cluster once; what is held are at most 60 bytes a node.

W_max is the weight of N / (4 sqrt(M)) nodes: 4 sqrt(M) clusters have room for 16 M entries between them, so that clusters
found by chance leave nearly all entries as they were, and a graph that shrinks to half or less has communities. It is that of
4 nodes at least, so that clusters of clusters are fewer.

Letters: N nodes, M entries of the symmetric graph, C clusters, P parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sargnn.interop.kaminpar import GraphFile
from sargnn.native import Entry
from sargnn.partition.both_ways import Rows
from sargnn.steps import step

_PASSES, _BLOCK_ENTRIES, _LEAST_CLUSTERS, _ROOM, _LEAST_JOINED = 3, 1 << 22, 20, 4, 4
_MOST_SEED = 2**31
_STILL = 1e-3
"""Of all nodes: where fewer move, no further pass is made."""
_GRAPH = "addresses u N+1, base int, neighbours k, entry_weights k, node_weights k"
_join = Entry(
    "join_clusters",
    "first int, last int",
    _GRAPH,
    "cluster i N, load l N, cap float, counts i N, touched i, salt int",
)
_move = Entry("move_nodes", "first int, last int", _GRAPH, "part i N, load l P, cap int, sums l P, touched i P")
_merge = Entry(
    "merge_clusters",
    "first int",
    _GRAPH,
    "starts i C+1, members i N, cluster i N, sums l C, out i R, out_weights i R, degrees l C",
)
_number = Entry("number_present", "cluster i N, numbers i N")
_group = Entry("group", "cluster i N, values i? N, starts i C+1, members i N")
_add = Entry("add_each", "cluster i N, node_weights k N, weights l C")


def find_clusters(graph: GraphFile, parts: int, seed: int) -> np.ndarray:
    """The cluster of each node, int32 [N], numbered from 0 without gaps; none is heavier than a twentieth of a part."""
    n = graph.num_nodes
    cluster, load = np.arange(n, dtype=np.int32), graph.weights_of_nodes().astype(np.int64)
    total = int(load.sum())
    cap = max(_LEAST_JOINED / n, 1 / (_ROOM * math.sqrt(max(1, graph.entries))))
    cap = max(2.0, total * min(cap, 1 / (_LEAST_CLUSTERS * parts)))
    counts, touched = np.zeros(n, np.int32), np.empty(graph.most_neighbours(), np.int32)
    for number in range(_PASSES):
        moved = 0
        for a, b in _blocks(graph, f"clustering nodes, pass {number + 1} of {_PASSES}"):
            moved += _join(a, b, *graph.arrays, cluster, load, cap, counts, touched, seed % _MOST_SEED + number)
        if moved < _STILL * n:
            break
    _number(cluster, counts)
    return cluster


def clusters_graph(graph: GraphFile, cluster: np.ndarray) -> tuple[np.ndarray, Iterator[Rows]]:
    """Of clusters numbered from 0 without gaps: their weights, int64 [C], and their rows in order."""
    count = int(cluster.max()) + 1
    starts, members = np.empty(count + 1, np.int32), np.empty(len(cluster), np.int32)
    _group(cluster, None, starts, members)
    node_weights, weights = graph.arrays[4], np.zeros(count, np.int64)
    if len(node_weights):
        _add(cluster, node_weights, weights)
    else:
        weights += np.diff(starts)
    return weights, _rows(graph, cluster, starts, members)


def _rows(graph: GraphFile, cluster: np.ndarray, starts: np.ndarray, members: np.ndarray) -> Iterator[Rows]:
    count = len(starts) - 1
    sums, degrees = np.zeros(count, np.int64), np.empty(count, np.int64)
    room = max(count, _BLOCK_ENTRIES)
    neighbours, weights = np.empty(room, np.int32), np.empty(room, np.int32)
    first = 0
    while first < count:
        step("writing the graph of clusters", first, count)
        last = _merge(first, *graph.arrays, starts, members, cluster, sums, neighbours, weights, degrees)
        used = int(degrees[first:last].sum())
        yield Rows(first, degrees[first:last], neighbours[:used].copy(), weights[:used].copy())
        first = last


def refine(graph: GraphFile, part: np.ndarray, parts: int, imbalance: float) -> None:
    """Move nodes, in place, to the part (int32 [N]) that has most of their neighbours, if it has room.

    ``imbalance``: a part may be heavier by so much than the mean.
    """
    weights = graph.weights_of_nodes()
    load = np.bincount(part, weights=weights, minlength=parts).astype(np.int64)
    cap = max(math.ceil(weights.sum(dtype=np.int64) / parts * (1 + imbalance)), int(load.max()))
    sums, touched = np.zeros(parts, np.int64), np.empty(parts, np.int32)
    for number in range(_PASSES):
        moved = 0
        for a, b in _blocks(graph, f"moving nodes, pass {number + 1} of {_PASSES}"):
            moved += _move(a, b, *graph.arrays, part, load, cap, sums, touched)
        if moved < _STILL * graph.num_nodes:
            break


def _blocks(graph: GraphFile, what: str) -> Iterator[tuple[int, int]]:
    """Ranges of rows with about as many entries each."""
    first, n = 0, graph.num_nodes
    while first < n:
        step(what, first, n)
        last = max(first + 1, graph.row_after(first, _BLOCK_ENTRIES))
        yield first, last
        first = last
