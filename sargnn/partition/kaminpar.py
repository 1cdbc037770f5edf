"""KaMinPar: k-way partitioning of a compressed graph, a tenth of METIS's memory (Gottesbüren et al., 2021; TeraPart, 2025).

The graph is streamed into a file. Where it has communities the graph of its clusters is made from the file, else it is taken
as it is; a process of its own (``interop.kaminpar``) reads it compressed and cuts it at balanced node weights. Of a typed graph
the labelled type and the total are balanced: nodes beyond a part's share move where most of their neighbours are that have
room.

The file has A + A^T without self-loops. A node's neighbours are the union of its in-edges' and out-edges' other ends; a weight
counts the directed edges between two nodes. Where every edge goes both ways equally often, A = A^T, so the rows of A are those
rows with half the weights, and one pass over the edges as they lie in the store makes them. Whether that is so is found by
comparing sums of hashes,

    sum over edges of h(u, v) = sum over edges of h(v, u)    modulo 2^64,

which an edge without its inverse breaks but for a chance of 2^-64. Other graphs are sorted on disk, with every edge both ways:
16 bytes an edge there.

Clusters make a graph smaller that must be held: multilevel partitioning (Karypis and Kumar, 1998) whose finest level is never
held. Three passes of size-constrained label propagation (Meyerhenke, Sanders and Schulz, 2014) put each node into the cluster c
that has room and most of its neighbours,

    argmax over c of  sum over u in c of  w(u, v),    W_c + w(v) <= W_max

the clusters become the nodes of a graph whose weights are sums,

    w'(c, d) = sum over u in c, v in d of  w(u, v),    w'(c) = sum over v in c of  w(v)

which is cut, and after that every node moves to the part that has most of its neighbours, if it has room. The file is read from
the first row to the last, and cluster by cluster once; what is held are at most 60 bytes a node.

W_max is the weight of N / (4 sqrt(M)) nodes: 4 sqrt(M) clusters have room for 16 M entries between them, so that clusters
found by chance leave nearly all entries as they were, and a graph that shrinks to half or less has communities. It is that of
4 nodes at least, so that clusters of clusters are fewer.

Letters: N nodes, E directed edges, M entries of the symmetric graph, C clusters, P parts.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sargnn.config.partitioner import PartitionerConfig
from sargnn.errors import ConfigError, StoreError
from sargnn.graph.claim import scratch_folder
from sargnn.graph.dataset import Dataset, in_edge_blocks
from sargnn.graph.edge_buckets import EdgeBuckets
from sargnn.interop.kaminpar import GraphFile, Rows, cut, file_bytes, write_graph
from sargnn.native import Entry
from sargnn.partition.balance import Room, even_out, node_weights, runs_of_nodes, trivial, weight_columns
from sargnn.partition.memory import LEAST_NODES, MOST_LEFT, available_bytes, entries_of, whole_bytes
from sargnn.steps import step

_CHUNK_EDGES = 1 << 22
_add_hashes = Entry("add_signed_hashes", "first int, indptr l, indices *, total u 1")
_unite = Entry("unite_rows", "first int, indptr l n+1, sources * E, weights i E, degrees l n")
_SORT_BYTES = 40
"""An edge of a run that is sorted: its key, those of another run that is read meanwhile, and what both become."""


def goes_both_ways(dataset: Dataset) -> bool:
    """Whether every edge has its inverse, as often as itself."""
    total = np.zeros(1, np.uint64)
    for first, indptr, indices in in_edge_blocks(dataset, "looking for inverse edges"):
        _add_hashes(first, indptr, indices, total)
    return int(total[0]) == 0


def rows_both_ways(dataset: Dataset, folder: Path, buffer_bytes: int) -> Iterator[Rows]:
    """In order. If edges must be sorted, that takes about ``buffer_bytes``."""
    if entries_of(dataset) == dataset.num_edges and goes_both_ways(dataset):  # else a sample has shown an edge without inverse
        for first, indptr, indices in in_edge_blocks(dataset, "writing the graph for the partitioner"):
            yield _united(first, indptr, indices)
        return
    if not folder.is_dir():
        raise StoreError("There is no folder to sort edges in.", given=str(folder))
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        EdgeBuckets(Path(scratch), dataset.num_nodes, 2 * dataset.num_edges, max(1, buffer_bytes // _SORT_BYTES)) as buckets,
    ):
        for first, indptr, indices in in_edge_blocks(dataset, "turning edges round"):
            destination = first + np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
            buckets.add(destination, indices)
            buckets.add(indices, destination)
        buckets.flush()
        done = 0
        for keys in buckets.runs():
            for rows in _of_run(keys, dataset.num_nodes, done):
                done = rows.first + len(rows.degrees)
                yield rows
            del keys
    if done < dataset.num_nodes:
        yield Rows(done, np.zeros(dataset.num_nodes - done, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32))


def _united(first: int, indptr: np.ndarray, indices: np.ndarray) -> Rows:
    sources = np.array(indices)
    weights = np.empty(len(sources), np.int32)
    degrees = np.empty(len(indptr) - 1, np.int64)
    count = _unite(first, indptr, sources, weights, degrees)
    return Rows(first, degrees, sources[:count], weights[:count])


def _of_run(keys: np.ndarray, n: int, done: int) -> Iterator[Rows]:
    """The rows of a run of sorted keys, and those without any edge before them."""
    start = 0
    while start < len(keys):
        stop = min(len(keys), start + _CHUNK_EDGES)
        if stop < len(keys):  # not within a row
            stop = int(np.searchsorted(keys, (keys[stop] // n) * n))
            if stop <= start:
                stop = int(np.searchsorted(keys, (keys[start] // n + 1) * n))
        some = keys[start:stop]
        first, last = done, int(some[-1] // n) + 1
        bounds = np.searchsorted(some, np.arange(first, last + 1) * n)
        yield _united(first, bounds, some % n)
        start, done = stop, last


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


_HINT = "store_dir=FOLDER on a larger disk, or partitioner=stream, which writes none"


def assign(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """KaMinPar's assignment, int32 [N]; with ``config.threads=1`` the same seed gives the same.

    Raises ``ConfigError`` where the graph's file does not fit the disk, or KaMinPar fails.
    """
    n, room = dataset.num_nodes, room or Room()
    if (uncut := trivial(n, world)) is not None:
        return uncut
    wanted = file_bytes(n, entries_of(dataset)) * (1 if config.coarsen == "never" else 1 + MOST_LEFT)
    if wanted > (free := shutil.disk_usage(room.folder).free):
        raise ConfigError(
            "The graph's file for KaMinPar does not fit the disk.",
            given=f"about {wanted / 1e9:.1f} GB; {free / 1e9:.1f} GB are free",
            hint=_HINT,
        )
    with scratch_folder(room.folder, ".kaminpar-") as folder:
        path = folder / "graph.parhip"
        try:
            weights = node_weights(dataset, config.balance)
            num_edges = write_graph(path, n, rows_both_ways(dataset, folder, room.buffer_bytes), weights)
            del weights
            part = _cut(path, world, config) if num_edges else None
        except OSError as error:
            raise ConfigError("The graph's file for KaMinPar could not be written.", given=str(error), hint=_HINT) from error
    if part is None:
        return runs_of_nodes(n, world)
    if dataset.schema.typed:
        even_out(dataset, part, world, weight_columns(dataset, config.balance), config.imbalance)
    return part


def _cut(path: Path, world: int, config: PartitionerConfig) -> np.ndarray:
    """Cut a file's graph, or the graph of its clusters where that is enough smaller, or what there is room for."""
    smaller = None if config.coarsen == "never" else _coarsen(path, world, config)
    if smaller is None:
        return _cut_whole(path, world, config)
    coarse, cluster = smaller
    if not GraphFile(coarse).entries:  # components that are clusters each
        return pack(GraphFile(coarse).weights_of_nodes(), world)[cluster]
    part = _cut(coarse, world, config)[cluster] if _too_large(coarse) else _cut_whole(coarse, world, config)[cluster]
    refine(GraphFile(path), part, world, config.imbalance)
    return part


def _coarsen(path: Path, world: int, config: PartitionerConfig) -> tuple[Path, np.ndarray] | None:
    """The graph of clusters in a file beside it, and each node's cluster; None where the graph itself is to be cut."""
    graph = GraphFile(path)
    if graph.num_nodes < LEAST_NODES * world:
        return None
    cluster = find_clusters(graph, world, config.seed)
    weights, rows = clusters_graph(graph, cluster)
    coarse = path.with_name(f"coarse-{path.name}")
    left = write_graph(coarse, len(weights), rows, weights)
    if config.coarsen == "auto" and left > MOST_LEFT * graph.entries and not _too_large(path):
        coarse.unlink()
        return None
    return (coarse, cluster) if len(weights) < graph.num_nodes else None


def pack(weights: np.ndarray, parts: int) -> np.ndarray:
    """Parts of clusters without edges between them, int32 [C]: consecutive ones, about as heavy each. weights: [C]."""
    ends = np.cumsum(weights, dtype=np.float64)
    middle = ends - np.asarray(weights, np.float64) / 2
    return np.minimum(parts - 1, middle * parts / ends[-1]).astype(np.int32)


def _too_large(path: Path) -> bool:
    graph = GraphFile(path)
    return whole_bytes(graph.num_nodes, graph.entries) > available_bytes()


def _cut_whole(path: Path, world: int, config: PartitionerConfig) -> np.ndarray:
    step("cutting with KaMinPar")
    return cut(path, world, seed=config.seed, imbalance=config.imbalance, threads=threads_of(config), preset=config.preset)


def threads_of(config: PartitionerConfig) -> int:
    return config.threads or len(os.sched_getaffinity(0))
