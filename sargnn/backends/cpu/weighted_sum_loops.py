"""Sums over edges with a weight for each edge, and the weights' gradients, on a CPU, compiled with Numba.

Work is shared out as in ``sum_loops``, whose loops without weights stay as they are.

Letters: S source rows, M destination rows, A listed destination rows, E edges, F features.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from sargnn.backends.cpu.sum_loops import add_targets
from sargnn.backends.cpu.sum_vector_code import (
    add_edge_weighted_row,
    add_placed_row,
    write_edge_dots,
    write_edge_weighted_row,
    write_placed_row,
    write_scaled_edge_weighted_row,
    write_scaled_placed_row,
)
from sargnn.backends.cpu.vector_code import VECTOR_BYTES
from sargnn.bf16 import array_of, narrow, wide, widen


@numba.njit(parallel=True, cache=True, nogil=True)
def add_weighted_sums(
    chunks: Any, rows: Any, indptr: Any, indices: Any, src: Any, scale: Any, weight: Any, places: Any, out: Any, lower: Any
) -> None:  # pragma: no cover - compiled
    """``out[i] += scale[i] * sum of weight[places[e]] * src[indices[e]], e in [indptr[a], indptr[a + 1])``, i = rows[a].

    Args:
        weight: [E]. places: int32 [E]; empty: e itself. The others as for ``sum_loops.add_sums``.
    """
    width, kinds = src.shape[1], (src.dtype.type(0), lower.dtype.type(0))
    everything, scaled, in_order = len(rows) == 0, len(scale) > 0, len(places) == 0
    behind = np.int64(lower.ctypes.data) - np.int64(out.ctypes.data)
    unit = weight.dtype.type(1)
    for c in numba.prange(len(chunks) - 1):
        sums = np.empty(width, weight.dtype)
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            if start == end:
                continue
            i = np.int64(a) if everything else np.int64(rows[a])
            factor = scale[i] if scaled else unit
            address = out.ctypes.data + i * out.strides[0]
            if width * weight.itemsize < VECTOR_BYTES:
                for f in range(width):
                    sums[f] = widen(out[i, f])
                for e in range(start, end):
                    value = (weight[e] if in_order else weight[places[e]]) * factor
                    for f in range(width):
                        sums[f] += widen(src[indices[e], f]) * value
                for f in range(width):
                    out[i, f] = narrow(sums[f], out)
            elif in_order:
                add_edge_weighted_row(
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
                        behind,
                    ),
                    factor,
                    kinds,
                )
            else:
                add_placed_row(
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
                        places.ctypes.data,
                        behind,
                    ),
                    factor,
                    kinds,
                )


@numba.njit(parallel=True, cache=True, nogil=True)
def write_weighted_sums(
    chunks: Any, indptr: Any, indices: Any, src: Any, scale: Any, weight: Any, places: Any, out: Any
) -> None:  # pragma: no cover - compiled
    """``out[a] = sum of weight[places[e]] * scale[indices[e]] * src[indices[e]]``; rows without edges become 0.

    Args:
        scale: [S]; empty: 1. weight: [E]. places: int32 [E]; empty: e itself. The others as for ``sum_loops.write_sums``.
    """
    width, kinds = src.shape[1], (src.dtype.type(0), out.dtype.type(0))
    scaled, in_order = len(scale) > 0, len(places) == 0
    unit, zero = weight.dtype.type(1), weight.dtype.type(0)
    for c in numba.prange(len(chunks) - 1):
        sums = np.empty(width, weight.dtype)
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            address = out.ctypes.data + np.int64(a) * out.strides[0]
            if start == end:
                out[a, :] = 0
            elif width * weight.itemsize < VECTOR_BYTES:
                sums[:] = zero
                for e in range(start, end):
                    value = (weight[e] if in_order else weight[places[e]]) * (scale[indices[e]] if scaled else unit)
                    for f in range(width):
                        sums[f] += widen(src[indices[e], f]) * value
                for f in range(width):
                    out[a, f] = narrow(sums[f], out)
            elif scaled and in_order:
                write_scaled_edge_weighted_row(
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
                        scale.ctypes.data,
                    ),
                    unit,
                    kinds,
                )
            elif in_order:
                write_edge_weighted_row(
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
            elif scaled:
                write_scaled_placed_row(
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
                        places.ctypes.data,
                        scale.ctypes.data,
                    ),
                    unit,
                    kinds,
                )
            else:
                write_placed_row(
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
                        places.ctypes.data,
                    ),
                    unit,
                    kinds,
                )


@numba.njit(parallel=True, cache=True, nogil=True)
def write_weight_gradients(
    chunks: Any, rows: Any, indptr: Any, indices: Any, src: Any, grad: Any, scale: Any, out: Any
) -> None:  # pragma: no cover - compiled
    """``out[e] = scale[i] * <grad[i], src[indices[e]]>``, i = rows[a], for the edges e of every listed row a.

    Args:
        grad: [M, F]. out: [E]. The others as for ``sum_loops.add_sums``.
    """
    everything, scaled = len(rows) == 0, len(scale) > 0
    unit, kinds = out.dtype.type(1), (src.dtype.type(0), grad.dtype.type(0))
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            i = np.int64(a) if everything else np.int64(rows[a])
            if start < end:
                write_edge_dots(
                    (
                        out.ctypes.data,
                        grad.ctypes.data + i * grad.strides[0],
                        src.ctypes.data,
                        src.strides[0],
                        indices.ctypes.data,
                        start,
                        end,
                        np.int64(len(indices)),
                        src.shape[1],
                    ),
                    scale[i] if scaled else unit,
                    kinds,
                )


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, y = (array_of(torch.zeros(1, 16, dtype=precision)) for precision in (dtype, wide(dtype)))
    ints, longs, row = np.zeros(2, np.int32), np.zeros(2, np.int64), y[0]
    return [
        *((add_weighted_sums, (longs, ints, ints, ints, x, row, row, ints, *out)) for out in add_targets(x, y)),
        (write_weighted_sums, (longs, ints, ints, x, row, row, ints, x)),
        (write_weight_gradients, (longs, ints, ints, ints, x, x, row, row)),
    ]
