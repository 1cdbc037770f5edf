"""A part's in-edges, sorted by (source part, relation, destination, source), by counting: nothing but short runs is compared.

The rows are gone through in order twice. The first pass finds each source's position and counts the edges of each (source part,
relation); the second puts every edge behind the others of its pair, where destinations thus ascend. What is left is to sort the
sources of each destination, a few at a time.

12 bytes an edge are held at most, 16 where edges carry something: which edge of the graph each is.

Letters: E in-edges of the part, P parts, R relations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from sargnn.graph.check import index_dtype
from sargnn.graph.dataset import Dataset, row_runs
from sargnn.graph.edge_columns import EdgeColumns

Report = Callable[[int], None]
"""Told how much more is done, in bytes (``partition.stages``)."""
EDGE_BYTES = 16
"""What sorting an edge counts as where progress is told."""
_TABLE = 1 << 14
_SHORT = 24
_TOUCHED, _LINE = 64, 16
"""Rows at a time; numbers of four bytes in a line of the cache."""


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

    Args:
        chunk_edges: about how many are gone through between two reports.

    Returns:
        edge_src int32 [E], edge_dst int32 [E], offsets int64 [P R + 1], and what they carry.
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
        _count(indptr, relation, nodes, parts, relations, piece, counts[1:])
        report(len(piece) * EDGE_BYTES // 2)
    offsets = np.cumsum(counts)[: (len(wanted.offsets) - 1) * relations + 1]
    edge_src, edge_dst = (np.empty(offsets[-1], np.int32) for _ in range(2))
    numbers = np.empty(offsets[-1] if dataset.columns else 0, index_dtype(dataset.num_edges))
    cursor = offsets[:-1].copy()
    for a, b in pieces:
        piece = source[ends[a] : ends[b]]
        _put(indptr, relation, own, rows[a:b], parts, relations, piece, cursor, (edge_src, edge_dst, numbers))
        report(len(piece) * (EDGE_BYTES - EDGE_BYTES // 2))
    del source
    _sort_runs(offsets, edge_src, edge_dst, numbers)
    return edge_src, edge_dst, offsets, dataset.columns.take(numbers)


@numba.njit(cache=True)
def _part_of(position: Any, parts: Any) -> Any:  # pragma: no cover - compiled
    """The part whose positions include this one."""
    offsets, table, shift = parts
    part = table[position >> shift]
    while position >= offsets[part + 1]:
        part += 1
    return part


@numba.njit(cache=True)
def gather_sources(indptr: Any, indices: Any, nodes: Any, place: Any, source: Any) -> Any:  # pragma: no cover - compiled
    """The places of the sources of all in-edges of some nodes, node by node.

    A row lies anywhere in memory, so the processor waits for it; rows are touched a few at a time first, for it waits for these
    together. Then all places are looked up alone, with nothing that waits for what one of them is. Gives a number that nobody
    needs, so that the touch is not left out.
    """
    k, touched = 0, 0
    starts, stops = indptr[nodes], indptr[nodes + 1]
    for first in range(0, len(nodes), _TOUCHED):
        last = min(len(nodes), first + _TOUCHED)
        for i in range(first, last):
            for e in range(starts[i], stops[i], _LINE):
                touched += indices[e]
        for i in range(first, last):
            for e in range(starts[i], stops[i]):
                source[k] = indices[e]
                k += 1
    for k in range(len(source)):
        source[k] = place[source[k]]
    return touched


@numba.njit(cache=True)
def _leave_out(indptr: Any, nodes: Any, place: Any, read: Any, source: Any) -> None:  # pragma: no cover - compiled
    """Mark with -1 the edges, but loops, of nodes that are not read."""
    k = 0
    for node in nodes:
        degree = indptr[node + 1] - indptr[node]
        if not read[node]:
            for j in range(k, k + degree):
                if source[j] != place[node]:
                    source[j] = -1
        k += degree


@numba.njit(cache=True)
def _count(
    indptr: Any, relation: Any, nodes: Any, parts: Any, relations: Any, source: Any, counts: Any
) -> None:  # pragma: no cover - compiled
    """Count the edges of each (part, relation), those marked left out."""
    if relations == 1:
        for position in source:
            if position >= 0:
                counts[_part_of(position, parts)] += 1
        return
    k = 0
    for node in nodes:
        for e in range(indptr[node], indptr[node + 1]):
            if source[k] >= 0:
                counts[_part_of(source[k], parts) * relations + relation[e]] += 1
            k += 1


@numba.njit(cache=True)
def _put(
    indptr: Any, relation: Any, own: Any, rows: Any, parts: Any, relations: Any, source: Any, cursor: Any, out: Any
) -> None:  # pragma: no cover - compiled
    """Put some rows' edges behind those of the same (part, relation) that were there before."""
    edge_src, edge_dst, numbers = out
    starts, stops = indptr[own[rows]], indptr[own[rows] + 1]
    k = 0
    for i in range(len(rows)):
        row = rows[i]
        for e in range(starts[i], stops[i]):
            position = source[k]
            k += 1
            if position < 0:
                continue
            part = _part_of(position, parts)
            group = part if relations == 1 else part * relations + relation[e]
            slot = cursor[group]
            cursor[group] = slot + 1
            edge_src[slot] = position - parts[0][part]
            edge_dst[slot] = row
            if len(numbers):
                numbers[slot] = e


@numba.njit(cache=True)
def _sort_runs(offsets: Any, edge_src: Any, edge_dst: Any, numbers: Any) -> None:  # pragma: no cover - compiled
    """Sort the sources of each destination within a (part, relation); numbers of equal sources stay in their order."""
    numbered = len(numbers) > 0
    for group in range(len(offsets) - 1):
        begin, last = offsets[group], offsets[group + 1]
        while begin < last:
            end = begin + 1
            while end < last and edge_dst[end] == edge_dst[begin]:
                end += 1
            if end - begin > _SHORT:
                if numbered:
                    order = np.argsort(edge_src[begin:end], kind="mergesort")
                    numbers[begin:end] = numbers[begin:end][order]
                    edge_src[begin:end] = edge_src[begin:end][order]
                else:
                    edge_src[begin:end].sort()
            else:
                for k in range(begin + 1, end):
                    source, j = edge_src[k], k
                    number = numbers[k] if numbered else 0
                    while j > begin and edge_src[j - 1] > source:
                        edge_src[j] = edge_src[j - 1]
                        if numbered:
                            numbers[j] = numbers[j - 1]
                        j -= 1
                    edge_src[j] = source
                    if numbered:
                        numbers[j] = number
            begin = end
