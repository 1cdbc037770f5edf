"""Loops over edges that message flows are made with, compiled: nothing as large as all edges is held, and what samples are
drawn with is fast enough to be run before every step.

Edges of one source part and relation are given by their sources and destinations, int32 [E] each, sorted by destination. Of
drawn samples a source row is numbered n if it is the worker's own row n, and N + h if it is its halo row h.

Letters: S source rows, N own rows, H halo rows, M output rows, E edges, C chosen edges, P workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import torch

from sargnn.numba_rng import philox_words

_CHUNK_ROWS = 256
_FEW = 64
"""Of up to so many smallest numbers the largest is found by counting."""


@numba.njit(cache=True, nogil=True)
def mark_sources(src: np.ndarray, dst: np.ndarray, wanted: np.ndarray, marks: np.ndarray) -> int:
    """Set ``marks`` (uint8 [S]) where an edge goes to a wanted row (uint8 [N]). Returns the number of such edges."""
    count = 0
    for edge in range(len(src)):
        if wanted[dst[edge]]:
            marks[src[edge]] = 1
            count += 1
    return count


@numba.njit(cache=True, nogil=True)
def count_into(dst: np.ndarray, places: np.ndarray, ends: np.ndarray) -> int:
    """How many edges end in rows that have a place (int32 [N], -1: none).

    Args:
        ends: int64 [M + 1], written: where each place's edges begin.
    """
    ends[:] = 0
    count = 0
    for edge in range(len(dst)):
        place = places[dst[edge]]
        if place >= 0:
            ends[place + 1] += 1
            count += 1
    for place in range(1, len(ends)):
        ends[place] += ends[place - 1]
    return count


@numba.njit(cache=True, nogil=True)
def renumber(
    src: np.ndarray,
    dst: np.ndarray,
    source_places: np.ndarray,
    places: np.ndarray,
    begins: np.ndarray,
    new_src: np.ndarray,
    new_dst: np.ndarray,
    edges: np.ndarray,
) -> None:
    """The edges that end in rows with a place, by place, those of one row in their order.

    Args:
        source_places: int32 [S], the sources' new numbers.
        begins: int64 [M + 1] from ``count_into``; moved on.
        new_src, new_dst: int32, written.
        edges: int64, which edge each was; not written if it has no entries.
    """
    for edge in range(len(src)):
        place = places[dst[edge]]
        if place >= 0:
            at = begins[place]
            begins[place] = at + 1
            new_src[at] = source_places[src[edge]]
            new_dst[at] = place
            if len(edges):
                edges[at] = edge


@numba.njit(cache=True, nogil=True)
def count_from(src: np.ndarray, first: int, last: int) -> int:
    """How many edges start from rows [first, last)."""
    count = 0
    for edge in range(len(src)):
        count += first <= src[edge] < last
    return count


@numba.njit(cache=True, nogil=True)
def take_from(
    src: np.ndarray, dst: np.ndarray, first: int, last: int, new_src: np.ndarray, new_dst: np.ndarray, edges: np.ndarray
) -> None:
    """Those edges, in their order.

    Args:
        new_src, new_dst: int32, written.
        edges: int64, which edge each was; not written if it has no entries.
    """
    at = 0
    for edge in range(len(src)):
        if first <= src[edge] < last:
            new_src[at], new_dst[at] = src[edge], dst[edge]
            if len(edges):
                edges[at] = edge
            at += 1


def read_only(array: np.ndarray) -> np.ndarray:
    """The array as the loops take it: one of a store is mapped read-only, and each kind would be compiled anew."""
    seen = np.asarray(array).view()
    seen.flags.writeable = False
    return seen


@numba.njit(cache=True, nogil=True)
def count_in_edges(dst: np.ndarray, first_row: int, begins: np.ndarray) -> None:
    """Add to ``begins[row + 1]`` (int64 [rows + 1]) the edges into each row; rows count from ``first_row``."""
    for edge in range(len(dst)):
        begins[dst[edge] - first_row + 1] += 1


@numba.njit(cache=True, nogil=True)
def place_in_edges(
    src: np.ndarray,
    dst: np.ndarray,
    first_row: int,
    shift: int,
    first_edge: int,
    cursor: np.ndarray,
    sources: np.ndarray,
    edges: np.ndarray,
) -> None:
    """Write one span's edges behind those that each destination has already.

    Args:
        shift: of the sources' numbers.
        first_edge: the number of the span's first edge.
        cursor: int64, where each row's next edge goes; moved on.
        sources: int32 [E], written.
        edges: int32 [E], which edge each was; not written if it has no entries.
    """
    for edge in range(len(src)):
        row = dst[edge] - first_row
        at = cursor[row]
        cursor[row] = at + 1
        sources[at] = src[edge] + shift
        if len(edges):
            edges[at] = first_edge + edge


@numba.njit(cache=True, nogil=True)
def has_parallel_edges(begins: np.ndarray, sources: np.ndarray) -> bool:
    """Whether a row has two edges from one source, which stand side by side."""
    for row in range(len(begins) - 1):
        for edge in range(begins[row] + 1, begins[row + 1]):
            if sources[edge] == sources[edge - 1]:
                return True
    return False


@numba.njit(cache=True, nogil=True)
def count_kept(rows: np.ndarray, first_row: int, begins: np.ndarray, loops: int, fanout: int, offsets: np.ndarray) -> None:
    """How many edges each row keeps.

    Args:
        rows: int32 [M], own rows.
        loops: of each row's edges, those that are always kept and not counted.
        fanout: the others that are kept at most; -1: all.
        offsets: int64 [M + 1], written: where each row's begin.
    """
    offsets[0] = 0
    for i in range(len(rows)):
        row = rows[i] - first_row
        count = begins[row + 1] - begins[row]
        if fanout >= 0 and count > fanout + loops:
            count = fanout + loops
        offsets[i + 1] = offsets[i] + count


@numba.njit(inline="always")
def _kth_smallest(keys: np.ndarray, count: int, k: int, few: np.ndarray) -> np.uint64:
    """The k-th smallest of ``keys[:count]``, which are different uniform numbers.

    Most are ruled out by where it must lie; of the others, the one that k - 1 are smaller than is found by counting. Both are
    loops without branches. Where too many were ruled out, or k is large, the keys are partitioned.

    Args:
        few: room for count + 1.
    """
    share = (k + 1.5 * np.sqrt(k)) / count
    bound = np.uint64(share * 2.0**64) if share < 0.999 else np.uint64(0xFFFFFFFFFFFFFFFF)
    held = 0
    for j in range(count):
        few[held] = keys[j]
        held += 1 if keys[j] <= bound else 0
    if k > _FEW or held < k:
        return np.partition(keys[:count], k - 1)[k - 1]
    kth = bound
    for a in range(held):
        smaller = 0
        for b in range(held):
            smaller += 1 if few[b] < few[a] else 0
        if smaller == k - 1:
            kth = few[a]
    return kth


@numba.njit(parallel=True, cache=True, nogil=True)
def choose_edges(
    rows: np.ndarray,
    first_row: int,
    begins: np.ndarray,
    sources: np.ndarray,
    ids: np.ndarray,
    parallel_edges: bool,
    loops: int,
    seed: Any,
    sample: Any,
    tag: Any,
    offsets: np.ndarray,
    chosen: np.ndarray,
    edges: np.ndarray,
) -> None:
    """The edges that each row keeps: those with the smallest Philox numbers, in the order that they have in the part.

    Args:
        rows: int32 [M].
        begins: int64, where each row's edges begin in ``sources`` (int32).
        ids: uint32 [N + H], original ids.
        parallel_edges: whether there are any, which are numbered then.
        loops: 1: each row has one edge from itself, which is always kept.
        seed, sample, tag: uint64, of the draw.
        offsets: int64 [M + 1] of ``count_kept``.
        chosen: int32 [C], written: the sources.
        edges: int32 [C], written: positions in ``sources``; not if it has no entries.
    """
    low = np.uint64(0xFFFFFFFF)
    for c in numba.prange(-(-len(rows) // _CHUNK_ROWS)):
        first, last = c * _CHUNK_ROWS, min(len(rows), (c + 1) * _CHUNK_ROWS)
        largest = 0
        for i in range(first, last):
            row = rows[i] - first_row
            largest = max(largest, begins[row + 1] - begins[row])
        keys = np.empty(largest, np.uint64)
        names, numbers = np.empty(largest, np.uint32), np.zeros(largest, np.uint32)
        few, places = np.empty(largest + 1, np.uint64), np.empty(largest + 1, np.int32)
        for i in range(first, last):
            own = rows[i]
            begin = begins[own - first_row]
            count = begins[own - first_row + 1] - begin
            kept, at = offsets[i + 1] - offsets[i], offsets[i]
            if kept == count:
                for j in range(count):
                    chosen[at + j] = sources[begin + j]
                if len(edges):
                    for j in range(count):
                        edges[at + j] = begin + j
                continue
            mine = sources[begin : begin + count]
            if parallel_edges:
                numbers[0] = 0
                for j in range(1, count):
                    numbers[j] = numbers[j - 1] + 1 if mine[j] == mine[j - 1] else 0
            destination = np.uint64(ids[own])
            for j in range(count):
                names[j] = ids[mine[j]]
            for j in range(count):  # vectorised
                words = philox_words(np.uint64(names[j]), destination, np.uint64(numbers[j]), tag, seed, sample)
                keys[j] = (words[0] << np.uint64(32)) | (words[1] & low)
            if loops:
                for j in range(count):
                    if mine[j] == own:
                        keys[j] = np.uint64(0)
            if kept == 0:
                continue
            threshold = _kth_smallest(keys, count, kept, few)
            held = 0
            for j in range(count):
                places[held] = j
                held += 1 if keys[j] <= threshold else 0
            for j in range(kept):
                chosen[at + j] = mine[places[j]]
            if len(edges):
                for j in range(kept):
                    edges[at + j] = begin + places[j]


@numba.njit(parallel=True, cache=True, nogil=True)
def mark_chosen(chosen: np.ndarray, marks: np.ndarray) -> None:
    """Set ``marks`` (uint8 [N + H]) of the chosen edges' sources (int32 [C])."""
    for edge in numba.prange(len(chosen)):
        marks[chosen[edge]] = 1


@numba.njit(cache=True, nogil=True)
def count_chosen(chosen: np.ndarray, counts: np.ndarray) -> None:
    """Add to ``counts`` (int32 [N + H]) the chosen edges out of each source."""
    for edge in range(len(chosen)):
        counts[chosen[edge]] += 1


@numba.njit(cache=True, nogil=True)
def count_peers(chosen: np.ndarray, num_own: int, rank: int, peers: np.ndarray, counts: np.ndarray) -> None:
    """Add to ``counts`` (int64 [P]) the chosen edges from each worker's rows. peers: int32 [H], a halo row's owner."""
    if len(peers) == 0:
        counts[rank] += len(chosen)
        return
    for edge in range(len(chosen)):
        source = chosen[edge]
        counts[rank if source < num_own else peers[source - num_own]] += 1


@numba.njit(cache=True, nogil=True)
def split_by_peer(
    chosen: np.ndarray,
    edges: np.ndarray,
    offsets: np.ndarray,
    first_out: int,
    num_own: int,
    rank: int,
    peers: np.ndarray,
    in_places: np.ndarray,
    halo_places: np.ndarray,
    cursor: np.ndarray,
    src: np.ndarray,
    dst: np.ndarray,
    numbers: np.ndarray,
) -> None:
    """Write the chosen edges by the owner of their source, those of one owner in their order, with new numbers.

    Args:
        offsets: int64 [M + 1], each output row's edges.
        first_out: the number of the first output row.
        in_places: int32 [N] and halo_places: int32 [H], the sources' new numbers.
        cursor: int64 [P], where each worker's next edge goes; moved on.
        src, dst: int32, written.
        numbers: int32, written from ``edges`` (int32 [C]); not if it has no entries.
    """
    for i in range(len(offsets) - 1):
        for edge in range(offsets[i], offsets[i + 1]):
            source = chosen[edge]
            if source < num_own:
                peer, place = rank, in_places[source]
            else:
                peer, place = peers[source - num_own], halo_places[source - num_own]
            at = cursor[peer]
            cursor[peer] = at + 1
            src[at] = place
            dst[at] = first_out + i
            if len(numbers):
                numbers[at] = edges[edge]


def samples(dtype: torch.dtype) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Arguments to compile the loops for."""
    ids, offsets, names, marks = (np.zeros(1, kind) for kind in (np.int32, np.int64, np.uint32, np.uint8))
    edges, begins, word = read_only(ids), np.zeros(2, np.int64), np.uint64(0)
    yield mark_sources, (edges, edges, marks, marks)
    yield count_into, (edges, ids, offsets)
    yield renumber, (edges, edges, ids, ids, offsets, ids, ids, offsets)
    yield count_from, (edges, 0, 0)
    yield take_from, (edges, edges, 0, 0, ids, ids, offsets)
    yield count_in_edges, (edges, 0, begins)
    yield place_in_edges, (edges, edges, 0, 0, 0, offsets, ids, ids)
    yield has_parallel_edges, (begins, edges)
    yield count_kept, (ids, 0, begins, 0, 0, begins)
    yield choose_edges, (ids, 0, begins, edges, names, False, 0, word, word, word, begins, ids, ids)
    yield mark_chosen, (ids, marks)
    yield count_chosen, (ids, ids)
    yield count_peers, (ids, 0, 0, ids, offsets)
    yield split_by_peer, (ids, ids, begins, 0, 0, 0, ids, ids, ids, offsets, ids, ids, ids)
