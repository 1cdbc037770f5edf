"""A part's in-edges are sorted by (source part, relation, destination, source) by counting: nothing but short runs is compared.
The rows are gone through in order twice. The first pass finds each source's position and counts the edges of each (source part,
relation); the second puts every edge behind the others of its pair, where destinations thus ascend. What is left is to sort the
sources of each destination, a few at a time. 12 bytes an edge are held at most, 16 where edges carry something: which edge of
the graph each is.

Letters: E in-edges of the part, P parts, R relations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sargnn.graph.check import index_dtype
from sargnn.graph.dataset import Dataset, row_runs
from sargnn.graph.edge_columns import EdgeColumns
from sargnn.native import Entry

Report = Callable[[int], None]
"""Told how much more is done, in bytes (``partition.stages``)."""
EDGE_BYTES = 16
"""What sorting an edge counts as where progress is told."""
_TABLE = 1 << 14
_PARTS = "offsets l P+1, near l, shift int"
gather_sources = Entry("gather_sources", "indptr l N+1, indices *, nodes l, place * N, source * E")
"""The places (int32 or int64 [N]) of the sources of all in-edges of some nodes, node by node."""
_leave_out = Entry("leave_out", "indptr l N+1, nodes l, place * N, read b N, source *")
_count = Entry("count_groups", "indptr l, relation *, nodes l", _PARTS, "relations int, source *, counts l")
_put = Entry(
    "put_edges",
    "indptr l, relation *, own l, rows l",
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
