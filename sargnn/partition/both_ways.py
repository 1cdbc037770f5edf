"""A + A^T without self-loops, row block by row block, from a graph's in-edges: for partitioners that take it as a stream.

A node's neighbours are the union of its in-edges' and out-edges' other ends; a weight counts the directed edges between two
nodes. Where every edge goes both ways equally often, A = A^T, so the rows of A are those rows with half the weights, and one
pass over the edges as they lie in the store makes them. Whether that is so is found by comparing sums of hashes,

    sum over edges of h(u, v) = sum over edges of h(v, u)    modulo 2^64,

which an edge without its inverse breaks but for a chance of 2^-64. Other graphs are sorted on disk, with every edge both ways:
16 bytes an edge there.

Letters: N nodes, E directed edges, M entries.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sargnn.errors import StoreError
from sargnn.graph.dataset import Dataset, in_edge_blocks
from sargnn.graph.edge_buckets import EdgeBuckets
from sargnn.native import Entry
from sargnn.partition.memory import entries_of

_CHUNK_EDGES = 1 << 22
_add_hashes = Entry("add_signed_hashes", "first int, indptr l, indices *, total u 1")
_unite = Entry("unite_rows", "first int, indptr l n+1, sources * E, weights i E, degrees l n")
_SORT_BYTES = 40
"""An edge of a run that is sorted: its key, those of another run that is read meanwhile, and what both become."""


@dataclass(frozen=True)
class Rows:
    """The neighbours of some nodes from ``first`` on, int64 or int32 [M], ascending in each row; ``weights``, int32 [M], count
    the directed edges that join two nodes, or half of them.
    """

    first: int
    degrees: np.ndarray
    neighbours: np.ndarray
    weights: np.ndarray


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
            yield _merge(first, indptr, indices)
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


def _merge(first: int, indptr: np.ndarray, indices: np.ndarray) -> Rows:
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
        yield _merge(first, bounds, some % n)
        start, done = stop, last
