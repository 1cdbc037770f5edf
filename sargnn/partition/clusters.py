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
from typing import Any

import numba
import numpy as np

from sargnn.interop.kaminpar import GraphFile
from sargnn.partition.both_ways import Rows
from sargnn.steps import step

_PASSES, _BLOCK_ENTRIES, _LEAST_CLUSTERS, _ROOM, _LEAST_JOINED = 3, 1 << 22, 20, 4, 4
_MOST_SEED = 2**31
_STILL = 1e-3
"""Of all nodes: where fewer move, no further pass is made."""


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
            moved += _gather(a, b, graph.arrays, cluster, load, cap, counts, touched, seed % _MOST_SEED + number)
        if moved < _STILL * n:
            break
    _number(cluster, counts)
    return cluster


def clusters_graph(graph: GraphFile, cluster: np.ndarray) -> tuple[np.ndarray, Iterator[Rows]]:
    """The graph of clusters: their weights, int64 [C], and their rows in order.

    Args:
        cluster: int32 [N], from 0 without gaps.
    """
    count = int(cluster.max()) + 1
    starts = np.zeros(count + 1, np.int64)
    members = np.empty(len(cluster), np.int32)
    weights = np.zeros(count, np.int64)
    _group(cluster, graph.arrays[4], starts, members, weights)
    return weights, _rows(graph, cluster, starts, members)


def _rows(graph: GraphFile, cluster: np.ndarray, starts: np.ndarray, members: np.ndarray) -> Iterator[Rows]:
    count = len(starts) - 1
    sums, degrees = np.zeros(count, np.int64), np.empty(count, np.int64)
    room = max(count, _BLOCK_ENTRIES)
    neighbours, weights = np.empty(room, np.int32), np.empty(room, np.int32)
    first = 0
    while first < count:
        step("writing the graph of clusters", first, count)
        last, used = _merge(first, graph.arrays, starts, members, cluster, sums, neighbours, weights, degrees)
        yield Rows(first, degrees[first:last], neighbours[:used].copy(), weights[:used].copy())
        first = last


def refine(graph: GraphFile, part: np.ndarray, parts: int, imbalance: float) -> None:
    """Move nodes, in place, to the part that has most of their neighbours, if it has room.

    Args:
        part: int32 [N].
        imbalance: a part may be heavier by so much than the mean.
    """
    weights = graph.weights_of_nodes()
    load = np.bincount(part, weights=weights, minlength=parts).astype(np.int64)
    cap = max(math.ceil(weights.sum(dtype=np.int64) / parts * (1 + imbalance)), int(load.max()))
    sums, touched = np.zeros(parts, np.int64), np.empty(parts, np.int64)
    for number in range(_PASSES):
        moved = 0
        for a, b in _blocks(graph, f"moving nodes, pass {number + 1} of {_PASSES}"):
            moved += _move(a, b, graph.arrays, part, load, cap, sums, touched)
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


@numba.njit(cache=True)
def _tally(v: Any, graph: Any, label: Any, sums: Any, touched: Any) -> Any:  # pragma: no cover - compiled
    """Add the weights of a node's neighbours up by their label; gives how many labels were touched."""
    addresses, base, neighbours, entry_weights, _ = graph
    num_touched = 0
    for e in range((np.int64(addresses[v]) - base) // 4, (np.int64(addresses[v + 1]) - base) // 4):
        neighbour_label = label[neighbours[e]]
        if sums[neighbour_label] == 0:
            touched[num_touched] = neighbour_label
            num_touched += 1
        sums[neighbour_label] += entry_weights[e] if len(entry_weights) else 1
    return num_touched


@numba.njit(cache=True)
def _gather(
    a: Any, b: Any, graph: Any, cluster: Any, load: Any, cap: Any, counts: Any, touched: Any, salt: Any
) -> Any:  # pragma: no cover - compiled
    """A pass over rows a to b; gives how many nodes moved. Of clusters that are alike a hash decides."""
    node_weights = graph[4]
    moved = 0
    for v in range(a, b):
        own = cluster[v]
        weight = node_weights[v] if len(node_weights) else 1
        num_touched = _tally(v, graph, cluster, counts, touched)
        best, score = own, counts[own]
        for j in range(num_touched):
            c = touched[j]
            if c == own or counts[c] < score or load[c] + weight > cap:
                continue
            if counts[c] > score or _dice(c, salt) > _dice(best, salt):
                best, score = c, counts[c]
        for j in range(num_touched):
            counts[touched[j]] = 0
        if best != own:
            load[own] -= weight
            load[best] += weight
            cluster[v] = best
            moved += 1
    return moved


@numba.njit(cache=True)
def _dice(c: Any, salt: Any) -> Any:  # pragma: no cover - compiled
    return (np.int64(c) * 2654435761 + salt * 7919) & 0xFFFF


@numba.njit(cache=True)
def _number(cluster: Any, numbers: Any) -> None:  # pragma: no cover - compiled
    """Number clusters without gaps, in place, in their order. numbers: int32 [N], overwritten."""
    numbers[:] = 0
    for v in range(len(cluster)):
        numbers[cluster[v]] = 1
    count = 0
    for c in range(len(numbers)):
        if numbers[c]:
            numbers[c] = count
            count += 1
    for v in range(len(cluster)):
        cluster[v] = numbers[cluster[v]]


@numba.njit(cache=True)
def _group(cluster: Any, node_weights: Any, starts: Any, members: Any, weights: Any) -> None:  # pragma: no cover - compiled
    """Nodes by cluster, and what clusters weigh."""
    n = len(cluster)
    for v in range(n):
        starts[cluster[v] + 1] += 1
        weights[cluster[v]] += node_weights[v] if len(node_weights) else 1
    for c in range(len(weights)):
        starts[c + 1] += starts[c]
    for v in range(n):
        members[starts[cluster[v]]] = v
        starts[cluster[v]] += 1
    for c in range(len(weights), 0, -1):
        starts[c] = starts[c - 1]
    starts[0] = 0


@numba.njit(cache=True)
def _merge(
    first: Any, graph: Any, starts: Any, members: Any, cluster: Any, sums: Any, out: Any, out_weights: Any, degrees: Any
) -> Any:  # pragma: no cover - compiled
    """Rows of clusters from the first on, as many as there is room for; gives the next one, and how many entries."""
    addresses, base, neighbours, entry_weights, _ = graph
    used, count, c = 0, len(starts) - 1, first
    while c < count:
        bound = np.int64(0)
        for i in range(starts[c], starts[c + 1]):
            bound += np.int64(addresses[members[i] + 1] - addresses[members[i]]) // 4
        if used + (bound if bound < count else count) > len(out):
            break
        begin = used
        for i in range(starts[c], starts[c + 1]):
            v = members[i]
            for e in range((np.int64(addresses[v]) - base) // 4, (np.int64(addresses[v + 1]) - base) // 4):
                d = cluster[neighbours[e]]
                if d == c:
                    continue
                if sums[d] == 0:
                    out[used] = d
                    used += 1
                sums[d] += entry_weights[e] if len(entry_weights) else 1
        out[begin:used].sort()
        for j in range(begin, used):
            out_weights[j] = sums[out[j]]
            sums[out[j]] = 0
        degrees[c] = used - begin
        c += 1
    return c, used


@numba.njit(cache=True)
def _move(
    a: Any, b: Any, graph: Any, part: Any, load: Any, cap: Any, sums: Any, touched: Any
) -> Any:  # pragma: no cover - compiled
    """A pass over rows a to b; gives how many nodes moved. Of parts that are alike the lighter one, by more than the node."""
    node_weights = graph[4]
    moved = 0
    for v in range(a, b):
        own = part[v]
        weight = node_weights[v] if len(node_weights) else 1
        num_touched = _tally(v, graph, part, sums, touched)
        best, score = own, sums[own]
        for j in range(num_touched):
            p = touched[j]
            if p == own or load[p] + weight > cap:
                continue
            if sums[p] > score or (sums[p] == score and load[p] < load[best] - weight):
                best, score = p, sums[p]
        for j in range(num_touched):
            sums[touched[j]] = 0
        if best != own:
            load[own] -= weight
            load[best] += weight
            part[v] = best
            moved += 1
    return moved
