"""Sums over edges on a CPU, compiled with Numba: they accumulate straight into the destination rows.

Work is shared out in chunks of equal edges, not of equal rows. Rows of at least one vector run in ``sum_vector_code``.

Letters: S source rows, M destination rows, A listed destination rows, E edges, F features.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from sargnn.kernels.fused.sum_vector_code import add_row, write_row, write_weighted_row
from sargnn.kernels.fused.vector_code import VECTOR_BYTES


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


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, ints, longs = torch.zeros(1, 16, dtype=dtype).numpy(), np.zeros(2, np.int32), np.zeros(2, np.int64)
    return [(add_sums, (longs, ints, ints, ints, x, x[0], x)), (write_sums, (longs, ints, ints, x, x[0], x))]
