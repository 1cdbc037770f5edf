"""Sums and maxima over edges on a CPU, compiled with Numba: they accumulate straight into the destination rows.

Work is shared out in chunks of equal edges, not of equal rows. Sums run in ``cpu_rows``.

Letters: S source rows, M destination rows, A listed destination rows, E edges, F features.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from sargnn.kernels.cpu_rows import add_row, write_row, write_weighted_row
from sargnn.kernels.llvm import VECTOR_BYTES

CHUNK_EDGES = 1 << 14
NO_WINNER = np.iinfo(np.int32).max


@numba.njit(parallel=True, cache=True, nogil=True)
def add_sums(chunks: Any, rows: Any, indptr: Any, indices: Any, src: Any, scale: Any, out: Any) -> None:  # pragma: no cover
    """``out[i] += scale[i] * sum of src[indices[indptr[a]:indptr[a + 1]]]``, i = rows[a], for every listed row a.

    Args:
        chunks: int64, boundaries of runs of listed rows with about equal edges.
        rows: int32 [A]; empty: row a itself.
        indptr: int32 [A + 1]. indices: int32 [E]. src: [S, F].
        scale: [M]; empty: 1.
        out: [M, F].
    """
    item, width = src.itemsize, src.shape[1]
    everything, scaled = len(rows) == 0, len(scale) > 0
    one = src.dtype.type(1)
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            if start == end:
                continue
            i = np.int64(a) if everything else np.int64(rows[a])
            factor = scale[i] if scaled else one
            if width * item >= VECTOR_BYTES:
                add_row((
                    out.ctypes.data + i * out.strides[0], src.ctypes.data, src.strides[0], indices.ctypes.data,
                    start, end, np.int64(len(indices)), width * item, np.int64(0),
                ), factor)  # fmt: skip
            else:
                for f in range(width):
                    total = src.dtype.type(0)
                    for e in range(start, end):
                        total += src[indices[e], f]
                    out[i, f] += total * factor


@numba.njit(parallel=True, cache=True, nogil=True)
def write_sums(chunks: Any, indptr: Any, indices: Any, src: Any, weight: Any, out: Any) -> None:  # pragma: no cover
    """``out[a] = sum of weight[j] * src[j], j = indices[indptr[a]:indptr[a + 1]]``; rows without edges become 0.

    Args:
        weight: [S]; empty: 1.
    """
    item, width = src.itemsize, src.shape[1]
    weighted = len(weight) > 0
    one = src.dtype.type(1)
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            address = out.ctypes.data + np.int64(a) * out.strides[0]
            if start == end:
                out[a, :] = 0
            elif width * item < VECTOR_BYTES:
                for f in range(width):
                    total = src.dtype.type(0)
                    for e in range(start, end):
                        value = src[indices[e], f]
                        total += value * weight[indices[e]] if weighted else value
                    out[a, f] = total
            elif weighted:
                write_weighted_row((
                    address, src.ctypes.data, src.strides[0], indices.ctypes.data,
                    start, end, np.int64(len(indices)), width * item, weight.ctypes.data,
                ), one)  # fmt: skip
            else:
                write_row((
                    address, src.ctypes.data, src.strides[0], indices.ctypes.data,
                    start, end, np.int64(len(indices)), width * item, np.int64(0),
                ), one)  # fmt: skip


@numba.njit(parallel=True, cache=True, nogil=True)
def fold_max(
    chunks: Any, rows: Any, indptr: Any, indices: Any, src: Any, order: Any, best: Any, winner: Any
) -> None:  # pragma: no cover
    """Fold source rows into running maxima; of equal values the source with the smallest ``order`` wins.

    Not a number wins over all, so that a run that has diverged is not hidden.

    Args:
        order: int32 [S], the source rows' places among all that this worker sees, by original id.
        best: [M, F], starts at -inf. winner: int32 [M, F], the winner's ``order``, starts at ``NO_WINNER``.
    """
    everything = len(rows) == 0
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            top, who = best[i], winner[i]
            for e in range(indptr[a], indptr[a + 1]):
                values, place = src[indices[e]], order[indices[e]]
                for f in range(len(top)):
                    better = values[f] > top[f] or (values[f] == top[f] and place < who[f]) or values[f] != values[f]
                    top[f] = values[f] if better else top[f]
                    who[f] = place if better else who[f]


@numba.njit(parallel=True, cache=True, nogil=True)
def write_max_errors(
    chunks: Any, indptr: Any, indices: Any, grad: Any, winner: Any, order: Any, out: Any
) -> None:  # pragma: no cover
    """``out[j] = sum of grad[i] over edges j -> i where j won``; parallel edges, which lie side by side, count once."""
    zero = grad.dtype.type(0)
    for c in numba.prange(len(chunks) - 1):
        for j in range(chunks[c], chunks[c + 1]):
            target, place = out[j], order[j]
            target[:] = 0
            for e in range(indptr[j], indptr[j + 1]):
                if e > indptr[j] and indices[e] == indices[e - 1]:
                    continue
                error, who = grad[indices[e]], winner[indices[e]]
                for f in range(len(target)):
                    target[f] += error[f] if who[f] == place else zero


def chunks_of(indptr: np.ndarray) -> np.ndarray:
    """Boundaries, int64, of runs of rows with about ``CHUNK_EDGES`` edges each (rows count a little too)."""
    rows = len(indptr) - 1
    work = indptr.astype(np.int64) + np.arange(rows + 1)
    number = max(1, int(work[-1]) // CHUNK_EDGES)
    return np.unique(np.searchsorted(work, np.linspace(0, work[-1], number + 1)).clip(0, rows))


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, ints, longs = torch.zeros(1, 16, dtype=dtype).numpy(), np.zeros(2, np.int32), np.zeros(2, np.int64)
    table = np.zeros((1, 16), np.int32)
    return [
        (add_sums, (longs, ints, ints, ints, x, x[0], x)),
        (write_sums, (longs, ints, ints, x, x[0], x)),
        (fold_max, (longs, ints, ints, ints, x, ints, x, table)),
        (write_max_errors, (longs, ints, ints, x, table, ints, x)),
    ]
