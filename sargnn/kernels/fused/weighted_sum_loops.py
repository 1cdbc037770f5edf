"""Sums over edges with a weight for each edge, and the weights' gradients, on a CPU, compiled with Numba.

Work is shared out as in ``sum_loops``, whose loops without weights stay as they are.

Letters: S source rows, M destination rows, A listed destination rows, E edges, F features.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from sargnn.kernels.fused.sum_vector_code import (
    add_edge_weighted_row,
    add_placed_row,
    write_edge_dots,
    write_edge_weighted_row,
    write_placed_row,
    write_scaled_edge_weighted_row,
    write_scaled_placed_row,
)
from sargnn.kernels.fused.vector_code import VECTOR_BYTES


@numba.njit(parallel=True, cache=True, nogil=True)
def add_weighted_sums(
    chunks: Any, rows: Any, indptr: Any, indices: Any, src: Any, scale: Any, weight: Any, places: Any, out: Any
) -> None:  # pragma: no cover - compiled
    """``out[i] += scale[i] * sum of weight[places[e]] * src[indices[e]], e in [indptr[a], indptr[a + 1])``, i = rows[a].

    Args:
        weight: [E]. places: int32 [E]; empty: e itself. The others as for ``sum_loops.add_sums``.
    """
    item, width = src.itemsize, src.shape[1]
    everything, scaled, in_order = len(rows) == 0, len(scale) > 0, len(places) == 0
    one = src.dtype.type(1)
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            if start == end:
                continue
            i = np.int64(a) if everything else np.int64(rows[a])
            factor = scale[i] if scaled else one
            address = out.ctypes.data + i * out.strides[0]
            if width * item < VECTOR_BYTES:
                for e in range(start, end):
                    value = (weight[e] if in_order else weight[places[e]]) * factor
                    for f in range(width):
                        out[i, f] += src[indices[e], f] * value
            elif in_order:
                add_edge_weighted_row((
                    address, src.ctypes.data, src.strides[0], indices.ctypes.data,
                    start, end, np.int64(len(indices)), width * item, weight.ctypes.data,
                ), factor)  # fmt: skip
            else:
                add_placed_row((
                    address, src.ctypes.data, src.strides[0], indices.ctypes.data,
                    start, end, np.int64(len(indices)), width * item, weight.ctypes.data, places.ctypes.data,
                ), factor)  # fmt: skip


@numba.njit(parallel=True, cache=True, nogil=True)
def write_weighted_sums(
    chunks: Any, indptr: Any, indices: Any, src: Any, scale: Any, weight: Any, places: Any, out: Any
) -> None:  # pragma: no cover - compiled
    """``out[a] = sum of weight[places[e]] * scale[indices[e]] * src[indices[e]]``; rows without edges become 0.

    Args:
        scale: [S]; empty: 1. weight: [E]. places: int32 [E]; empty: e itself. The others as for ``sum_loops.write_sums``.
    """
    item, width = src.itemsize, src.shape[1]
    scaled, in_order = len(scale) > 0, len(places) == 0
    one = src.dtype.type(1)
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            address = out.ctypes.data + np.int64(a) * out.strides[0]
            if start == end or width * item < VECTOR_BYTES:
                out[a, :] = 0
                for e in range(start, end):
                    value = (weight[e] if in_order else weight[places[e]]) * (scale[indices[e]] if scaled else one)
                    for f in range(width):
                        out[a, f] += src[indices[e], f] * value
            elif scaled and in_order:
                write_scaled_edge_weighted_row((
                    address, src.ctypes.data, src.strides[0], indices.ctypes.data,
                    start, end, np.int64(len(indices)), width * item, weight.ctypes.data, scale.ctypes.data,
                ), one)  # fmt: skip
            elif in_order:
                write_edge_weighted_row((
                    address, src.ctypes.data, src.strides[0], indices.ctypes.data,
                    start, end, np.int64(len(indices)), width * item, weight.ctypes.data,
                ), one)  # fmt: skip
            elif scaled:
                write_scaled_placed_row((
                    address, src.ctypes.data, src.strides[0], indices.ctypes.data,
                    start, end, np.int64(len(indices)), width * item, weight.ctypes.data, places.ctypes.data,
                    scale.ctypes.data,
                ), one)  # fmt: skip
            else:
                write_placed_row((
                    address, src.ctypes.data, src.strides[0], indices.ctypes.data,
                    start, end, np.int64(len(indices)), width * item, weight.ctypes.data, places.ctypes.data,
                ), one)  # fmt: skip


@numba.njit(parallel=True, cache=True, nogil=True)
def write_weight_gradients(
    chunks: Any, rows: Any, indptr: Any, indices: Any, src: Any, grad: Any, scale: Any, out: Any
) -> None:  # pragma: no cover - compiled
    """``out[e] = scale[i] * <grad[i], src[indices[e]]>``, i = rows[a], for the edges e of every listed row a.

    Args:
        grad: [M, F]. out: [E]. The others as for ``sum_loops.add_sums``.
    """
    everything, scaled = len(rows) == 0, len(scale) > 0
    one = src.dtype.type(1)
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            i = np.int64(a) if everything else np.int64(rows[a])
            if start < end:
                write_edge_dots((
                    out.ctypes.data, grad.ctypes.data + i * grad.strides[0], src.ctypes.data, src.strides[0],
                    indices.ctypes.data, start, end, np.int64(len(indices)), src.shape[1] * src.itemsize,
                ), scale[i] if scaled else one)  # fmt: skip


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, ints, longs = torch.zeros(1, 16, dtype=dtype).numpy(), np.zeros(2, np.int32), np.zeros(2, np.int64)
    return [
        (add_weighted_sums, (longs, ints, ints, ints, x, x[0], x[0], ints, x)),
        (write_weighted_sums, (longs, ints, ints, x, x[0], x[0], ints, x)),
        (write_weight_gradients, (longs, ints, ints, ints, x, x, x[0], x[0])),
    ]
