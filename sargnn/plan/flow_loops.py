"""Loops over edges that message flows are made with, compiled: nothing as large as all edges is held.

Edges of one source part and relation are given by their sources and destinations, int32 [E] each, sorted by destination.

Letters: S source rows, N own rows, M output rows, E edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import torch


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
        source_places: int32 [S], the sources' new numbers. begins: int64 [M + 1] from ``count_into``; moved on.
        new_src, new_dst: int32, written. edges: int64, which edge each was; not written if it has no entries.
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
        new_src, new_dst: int32, written. edges: int64, which edge each was; not written if it has no entries.
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


def samples(dtype: torch.dtype) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Arguments to compile the loops for."""
    ids, marks, numbers, offsets = (np.zeros(1, kind) for kind in (np.int32, np.uint8, np.int32, np.int64))
    edges = read_only(ids)
    yield mark_sources, (edges, edges, marks, marks)
    yield count_into, (edges, numbers, offsets)
    yield renumber, (edges, edges, numbers, numbers, offsets, numbers, numbers, offsets)
    yield count_from, (edges, 0, 0)
    yield take_from, (edges, edges, 0, 0, numbers, numbers, offsets)
