"""Sums over edges on a CPU, compiled with Numba: they accumulate straight into the destination rows.

Work is shared out in chunks of equal edges, not of equal rows. Rows of at least one vector run in ``sum_vector_code``. Rows may
be bf16; what multiplies them, and sums on their way, are fp32 then.

Letters: S source rows, M destination rows, A listed destination rows, E edges, F features.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from sargnn.backends.cpu.sum_vector_code import add_row, write_row, write_weighted_row
from sargnn.backends.cpu.vector_code import VECTOR_BYTES
from sargnn.bf16 import array_of, narrow, wide, widen


@numba.njit(parallel=True, cache=True, nogil=True)
def add_sums(
    chunks: Any, rows: Any, indptr: Any, indices: Any, src: Any, scale: Any, out: Any, lower: Any
) -> None:  # pragma: no cover - compiled
    """``out[i] += scale[i] * sum of src[indices[indptr[a]:indptr[a + 1]]]``, i = rows[a], for every listed row a.

    Args:
        chunks: int64, boundaries of runs of listed rows with about equal edges.
        rows: int32 [A]; empty: row a itself.
        indptr: int32 [A + 1]. indices: int32 [E]. src: [S, F].
        scale: [M]; empty: 1.
        out: [M, F].
        lower: ``out`` again, or of bf16 rows of at least one vector int16 [M, F], the lower halves of fp32 sums whose upper
            halves ``out`` holds.
    """
    width, kinds = src.shape[1], (src.dtype.type(0), lower.dtype.type(0))
    everything, scaled, behind = len(rows) == 0, len(scale) > 0, np.int64(lower.ctypes.data) - np.int64(out.ctypes.data)
    unit, zero = scale.dtype.type(1), scale.dtype.type(0)
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            if start == end:
                continue
            i = np.int64(a) if everything else np.int64(rows[a])
            factor = scale[i] if scaled else unit
            if width * scale.itemsize >= VECTOR_BYTES:
                add_row(
                    (
                        out.ctypes.data + i * out.strides[0],
                        src.ctypes.data,
                        src.strides[0],
                        indices.ctypes.data,
                        start,
                        end,
                        np.int64(len(indices)),
                        width,
                        np.int64(0),
                        behind,
                    ),
                    factor,
                    kinds,
                )
            else:
                for f in range(width):
                    total = zero
                    for e in range(start, end):
                        total += widen(src[indices[e], f])
                    out[i, f] = narrow(widen(out[i, f]) + total * factor, out)


@numba.njit(parallel=True, cache=True, nogil=True)
def write_sums(chunks: Any, indptr: Any, indices: Any, src: Any, weight: Any, out: Any) -> None:  # pragma: no cover
    """``out[a] = sum of weight[j] * src[j], j = indices[indptr[a]:indptr[a + 1]]``; rows without edges become 0.

    Args:
        weight: [S]; empty: 1.
    """
    width, kinds = src.shape[1], (src.dtype.type(0), out.dtype.type(0))
    weighted = len(weight) > 0
    unit, zero = weight.dtype.type(1), weight.dtype.type(0)
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            address = out.ctypes.data + np.int64(a) * out.strides[0]
            if start == end:
                out[a, :] = 0
            elif width * weight.itemsize < VECTOR_BYTES:
                for f in range(width):
                    total = zero
                    for e in range(start, end):
                        value = widen(src[indices[e], f])
                        total += value * weight[indices[e]] if weighted else value
                    out[a, f] = narrow(total, out)
            elif weighted:
                write_weighted_row(
                    (
                        address,
                        src.ctypes.data,
                        src.strides[0],
                        indices.ctypes.data,
                        start,
                        end,
                        np.int64(len(indices)),
                        width,
                        weight.ctypes.data,
                    ),
                    unit,
                    kinds,
                )
            else:
                write_row(
                    (
                        address,
                        src.ctypes.data,
                        src.strides[0],
                        indices.ctypes.data,
                        start,
                        end,
                        np.int64(len(indices)),
                        width,
                        np.int64(0),
                    ),
                    unit,
                    kinds,
                )


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, y = (array_of(torch.zeros(1, 16, dtype=precision)) for precision in (dtype, wide(dtype)))
    ints, longs = np.zeros(2, np.int32), np.zeros(2, np.int64)
    return [
        *((add_sums, (longs, ints, ints, ints, x, y[0], *out)) for out in add_targets(x, y)),
        (write_sums, (longs, ints, ints, x, y[0], x)),
    ]


def add_targets(rows: Any, sums: Any) -> list[tuple[Any, Any]]:
    """What rows are added to: (out, lower)."""
    return [(sums, sums)] if sums.dtype == rows.dtype else [(sums, sums), (rows, rows), (rows, rows.view(np.int16))]
