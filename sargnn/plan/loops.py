"""Loops over edges that message flows are made with: nothing as large as all edges is held, and what samples are drawn with is
fast enough to be run before every step.

Edges of one source part and relation are given by their sources and destinations, int32 [E] each, sorted by destination. Of
drawn samples a source row is numbered n if it is the worker's own row n, and N + h if it is its halo row h.

Letters: S source rows, N own rows, H halo rows, M output rows, E edges, C chosen edges, P workers.
"""

from __future__ import annotations

from sargnn.native import Entry

mark_sources = Entry("mark_sources", "src i E, dst i E, wanted b N, marks b S")
"""Set ``marks`` (uint8 [S]) where an edge goes to a wanted row (bool [N]). Returns the number of such edges."""

count_into = Entry("count_into", "dst i E, places i N, begins l M+1")
"""How many edges end in rows that have a place (int32 [N], -1: none).

Args:
    begins: int64 [M + 1], written: where each place's edges begin.
"""

renumber = Entry("renumber", "src i E, dst i E, source_places i S, places i N, begins l M+1, new_src i C, new_dst i C, edges l")
"""The edges that end in rows with a place, by place, those of one row in their order.

Args:
    source_places: int32 [S], the sources' new numbers.
    begins: int64 [M + 1] from ``count_into``; moved on.
    new_src, new_dst: int32, written.
    edges: int64, which edge each was; not written if it has no entries.
"""

count_from = Entry("count_from", "src i E, first int, last int")
"""How many edges start from rows [first, last)."""

take_from = Entry("take_from", "src i E, dst i E, first int, last int, new_src i C, new_dst i C, edges l")
"""Those edges, in their order.

Args:
    new_src, new_dst: int32, written.
    edges: int64, which edge each was; not written if it has no entries.
"""

count_each = Entry("count_each", "rows i E, first int, counts *")
"""Add to ``counts[row - first]`` (int32 or int64) the edges of each row."""

place_in_edges = Entry(
    "place_in_edges",
    "src i E, dst i E, first_row int, shift int, first_edge int, cursor l, sources i, edges i",
)
"""Write one span's edges behind those that each destination has already.

Args:
    first_row: destinations count from it.
    shift: of the sources' numbers.
    first_edge: the number of the span's first edge.
    cursor: int64, where each row's next edge goes; moved on.
    sources: int32 [E], written.
    edges: int32 [E], which edge each was; not written if it has no entries.
"""

has_parallel_edges = Entry("has_parallel_edges", "begins l, sources i")
"""Whether a row has two edges from one source, which stand side by side."""

count_kept = Entry("count_kept", "rows i M, first_row int, begins l, loops int, fanout int, offsets l M+1")
"""How many edges each row keeps.

Args:
    rows: int32 [M], own rows.
    loops: of each row's edges, those that are always kept and not counted.
    fanout: the others that are kept at most; -1: all.
    offsets: int64 [M + 1], written: where each row's begin.
"""

choose_edges = Entry(
    "choose_edges",
    "rows i M, first_row int, begins l, sources i, ids k, parallel_edges int, loops int, seed int, sample int, tag int",
    "offsets l M+1, chosen i C, edges i",
)
"""The edges that each row keeps: those with the smallest Philox numbers, in the order that they have in the part.

Args:
    rows: int32 [M].
    begins: int64, where each row's edges begin in ``sources`` (int32).
    ids: uint32 [N + H], original ids.
    parallel_edges: whether there are any, which are numbered then.
    loops: 1: each row has one edge from itself, which is always kept.
    seed, sample, tag: of the draw, each below 2**32.
    offsets: int64 [M + 1] of ``count_kept``.
    chosen: int32 [C], written: the sources.
    edges: int32 [C], written: positions in ``sources``; not if it has no entries.
"""

mark_chosen = Entry("mark_chosen", "chosen i C, marks b")
"""Set ``marks`` (uint8 [N + H]) of the chosen edges' sources (int32 [C])."""

count_peers = Entry("count_peers", "chosen i C, num_own int, rank int, peers i H, counts l P")
"""Add to ``counts`` (int64 [P]) the chosen edges from each worker's rows. peers: int32 [H], a halo row's owner."""

split_by_peer = Entry(
    "split_by_peer",
    "chosen i C, edges i, offsets l M+1, first_out int, num_own int, rank int, peers i H, in_places i N, halo_places i H",
    "cursor l P, src i, dst i, numbers i",
)
"""Write the chosen edges by the owner of their source, those of one owner in their order, with new numbers.

Args:
    offsets: int64 [M + 1], each output row's edges.
    first_out: the number of the first output row.
    in_places: int32 [N] and halo_places: int32 [H], the sources' new numbers.
    cursor: int64 [P], where each worker's next edge goes; moved on.
    src, dst: int32, written.
    numbers: int32, written from ``edges`` (int32 [C]); not if it has no entries.
"""
