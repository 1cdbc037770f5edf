"""Loops that put a block's edges into both orders, compiled.

Letters: S source rows, M destination rows, A listed destination rows, E edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import torch


@numba.njit(cache=True, nogil=True)
def list_rows(dst: np.ndarray, rows: np.ndarray, indptr: np.ndarray) -> int:
    """List the destination rows that have an edge. Returns A, their number.

    Args:
        dst: int32 [E], ascending. rows: int32 [min(M, E)], written. indptr: int32 [min(M, E) + 1], written.
    """
    listed = 0
    for edge in range(len(dst)):
        if edge == 0 or dst[edge] != dst[edge - 1]:
            rows[listed] = dst[edge]
            indptr[listed] = edge
            listed += 1
    indptr[listed] = len(dst)
    return listed


@numba.njit(cache=True, nogil=True)
def by_source(src: np.ndarray, values: np.ndarray, indptr: np.ndarray, out: np.ndarray) -> None:
    """Put numbers of edges into the order of their sources, those of one source in their order.

    Args:
        src: int32 [E] in [0, S). values: int32 [E]; the edges' own numbers if it has no entries.
        indptr: int32 [S + 1], written: where each source's begin. out: int32 [E], written.
    """
    indptr[:] = 0
    for edge in range(len(src)):
        indptr[src[edge] + 1] += 1
    for row in range(1, len(indptr)):
        indptr[row] += indptr[row - 1]
    numbers = len(values) == 0
    for edge in range(len(src)):
        at = indptr[src[edge]]
        indptr[src[edge]] = at + 1
        out[at] = edge if numbers else values[edge]
    for row in range(len(indptr) - 1, 0, -1):
        indptr[row] = indptr[row - 1]
    indptr[0] = 0


def samples(dtype: torch.dtype) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Arguments to compile the loops for."""
    ids = np.zeros(1, np.int32)
    yield list_rows, (ids, ids, ids)
    yield by_source, (ids, ids, ids, ids)
