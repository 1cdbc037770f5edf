"""Sums over edges on a CPU, compiled with Numba: they accumulate straight into the destination rows.

Work is shared out in chunks of equal edges, not of equal rows. Rows of at least one vector run in ``sum_vector_code``. Rows may
be bf16; what multiplies them, and sums on their way, are fp32 then. Loops with a weight for each edge stand apart from those
without.

Letters: S source rows, M destination rows, A listed destination rows, E edges, F features.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.block_arrays import ALL_EDGES, edges_of, numpy_of
from sargnn.backends.cpu.sum_vector_code import (
    add_edge_weighted_row,
    add_placed_row,
    add_row,
    write_edge_dots,
    write_edge_weighted_row,
    write_placed_row,
    write_row,
    write_scaled_edge_weighted_row,
    write_scaled_placed_row,
    write_weighted_row,
)
from sargnn.backends.cpu.vector_code import LATER, VECTOR_BYTES, prefetch_row
from sargnn.backends.operations import WeightedSumOperation
from sargnn.bf16 import array_of, narrow, wide, widen


class FusedSum(WeightedSumOperation):
    """Needs no temporary. Backward with weights reads what is made the first time: of the block's own weights
    ``EdgeBlock.t_weight``, in order; of others ``EdgeBlock.t_edge``, which says where each is."""

    lists_sources = True
    splits_sums = True
    writes_sums = True

    @staticmethod
    def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
        """The compiled functions with arguments of the types that they are called with."""
        x, y = (array_of(torch.zeros(1, 16, dtype=precision)) for precision in (dtype, wide(dtype)))
        ints, longs, factor = np.zeros(2, np.int32), np.zeros(2, np.int64), y[0]
        edges = longs, ints, ints, ints
        targets = [(y, y)] if y.dtype == x.dtype else [(y, y), (x, x), (x, x.view(np.int16))]
        return [
            *((_add_sums, (edges, x, factor, *out)) for out in targets),
            (_write_sums, (edges, x, factor, x)),
            *((_add_weighted_sums, (edges, x, factor, factor, ints, *out)) for out in targets),
            (_write_weighted_sums, (edges, x, factor, factor, ints, x)),
            (_write_weight_gradients, (edges, x, x, factor, factor)),
        ]

    def forward(
        self,
        block: EdgeBlock,
        src: Tensor,
        out: Tensor,
        scale: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        lower: Tensor | None = None,
        add: bool = True,
    ) -> None:
        """``lower``: int16 [M, F], the lower halves of fp32 sums whose upper halves ``out`` holds, which is bf16."""
        if not add:
            assert scale is None and block.visits is None
            if block.num_listed < block.num_dst:
                out.zero_()
        if not block.num_edges:
            return
        edges, values = edges_of(block, "forward"), numpy_of(src)
        if not add:
            if weight is None:
                _write_sums(edges, values, _factors(None, src), numpy_of(out))
            else:
                _write_weighted_sums(edges, values, _factors(None, src), _weights(weight, block, src), ALL_EDGES, numpy_of(out))
            return
        target = numpy_of(out), numpy_of(out if lower is None else lower)
        if weight is None:
            _add_sums(edges, values, _factors(scale, src), *target)
        else:
            _add_weighted_sums(edges, values, _factors(scale, src), _weights(weight, block, src), ALL_EDGES, *target)

    def backward(
        self,
        block: EdgeBlock,
        grad: Tensor,
        out: Tensor,
        scale: Tensor | None = None,
        *,
        add: bool = False,
        weight: Tensor | None = None,
    ) -> None:
        if not block.num_edges:
            if not add:
                out.zero_()
            return
        assert add or block.src_rows is None, "source rows that are not listed would not be written"
        assert not add or scale is None
        edges, values = edges_of(block, "backward"), numpy_of(grad)
        factors, target = _factors(scale, grad), numpy_of(out)
        if weight is None:
            if add:
                _add_sums(edges, values, factors, target, target)
            else:
                _write_sums(edges, values, factors, target)
            return
        own = weight is block.weight
        weights = _weights(block.t_weight if own else weight, block, grad), ALL_EDGES if own else block.t_edge.numpy()
        if add:
            _add_weighted_sums(edges, values, factors, *weights, target, target)
        else:
            _write_weighted_sums(edges, values, factors, *weights, target)

    def weight_gradient(self, block: EdgeBlock, src: Tensor, grad: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        if block.num_edges:
            edges, factors = edges_of(block, "forward"), _factors(scale, src)
            _write_weight_gradients(edges, numpy_of(src), numpy_of(grad), factors, numpy_of(out))


def _factors(scale: Tensor | None, like: Tensor) -> np.ndarray:
    """``scale`` as the loops take it: empty for ones."""
    return numpy_of(like.new_empty(0, dtype=wide(like.dtype)) if scale is None else scale)


def _weights(weight: Tensor, block: EdgeBlock, like: Tensor) -> np.ndarray:
    """``weight`` as the loops take it, which check nothing."""
    assert weight.shape == (block.num_edges,) and weight.dtype == wide(like.dtype)
    return numpy_of(weight)


@numba.njit(parallel=True, cache=True, nogil=True)
def _add_sums(edges: Any, src: Any, scale: Any, out: Any, lower: Any) -> None:  # pragma: no cover - compiled
    """``out[i] += scale[i] * sum of src[indices[indptr[a]:indptr[a + 1]]]``, i = rows[a], for every listed row a.

    Args:
        edges: as ``edges_of`` gives them, by destination.
        src: [S, F].
        scale: [M]; empty: 1.
        out: [M, F].
        lower: ``out`` again, or of bf16 rows of at least one vector int16 [M, F], the lower halves of fp32 sums whose upper
            halves ``out`` holds.
    """
    chunks, rows, indptr, indices = edges
    width, kinds = src.shape[1], (src.dtype.type(0), lower.dtype.type(0))
    everything, scaled, behind = len(rows) == 0, len(scale) > 0, np.int64(lower.ctypes.data) - np.int64(out.ctypes.data)
    unit, zero = scale.dtype.type(1), scale.dtype.type(0)
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            if start == end:
                continue
            i = np.int64(a) if everything else np.int64(rows[a])
            if not everything:
                later = out.ctypes.data + np.int64(rows[min(a + LATER, len(rows) - 1)]) * out.strides[0]
                prefetch_row((later, out.strides[0]), unit)
                if behind != 0:
                    prefetch_row((later + behind, out.strides[0]), unit)
            factor = scale[i] if scaled else unit
            if width * scale.itemsize >= VECTOR_BYTES:
                row = (out.ctypes.data + i * out.strides[0], src.ctypes.data, src.strides[0], indices.ctypes.data)
                add_row(row + (start, end, np.int64(len(indices)), width, np.int64(0), behind), factor, kinds)
            else:
                for f in range(width):
                    total = zero
                    for e in range(start, end):
                        total += widen(src[indices[e], f])
                    out[i, f] = narrow(widen(out[i, f]) + total * factor, out)


@numba.njit(parallel=True, cache=True, nogil=True)
def _write_sums(edges: Any, src: Any, weight: Any, out: Any) -> None:  # pragma: no cover - compiled
    """``out[i] = sum of weight[j] * src[j], j = indices[indptr[a]:indptr[a + 1]]``, i = rows[a], for every listed row a.

    Args:
        edges: as of ``_add_sums``.
        weight: [S]; empty: 1.
    """
    chunks, rows, indptr, indices = edges
    width, kinds = src.shape[1], (src.dtype.type(0), out.dtype.type(0))
    everything, weighted = len(rows) == 0, len(weight) > 0
    unit, zero = weight.dtype.type(1), weight.dtype.type(0)
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            i = np.int64(a) if everything else np.int64(rows[a])
            row = (out.ctypes.data + i * out.strides[0], src.ctypes.data, src.strides[0], indices.ctypes.data)
            run = (start, end, np.int64(len(indices)), width)
            if start == end:
                out[i, :] = 0
            elif width * weight.itemsize < VECTOR_BYTES:
                for f in range(width):
                    total = zero
                    for e in range(start, end):
                        value = widen(src[indices[e], f])
                        total += value * weight[indices[e]] if weighted else value
                    out[i, f] = narrow(total, out)
            elif weighted:
                write_weighted_row(row + run + (weight.ctypes.data,), unit, kinds)
            else:
                write_row(row + run + (np.int64(0),), unit, kinds)


@numba.njit(parallel=True, cache=True, nogil=True)
def _add_weighted_sums(
    edges: Any, src: Any, scale: Any, weight: Any, places: Any, out: Any, lower: Any
) -> None:  # pragma: no cover - compiled
    """``out[i] += scale[i] * sum of weight[places[e]] * src[indices[e]], e in [indptr[a], indptr[a + 1])``, i = rows[a].

    Args:
        weight: [E].
        places: int32 [E]; empty: e itself. The others as for ``_add_sums``.
    """
    chunks, rows, indptr, indices = edges
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
            if not everything:
                later = out.ctypes.data + np.int64(rows[min(a + LATER, len(rows) - 1)]) * out.strides[0]
                prefetch_row((later, out.strides[0]), unit)
                if behind != 0:
                    prefetch_row((later + behind, out.strides[0]), unit)
            factor = scale[i] if scaled else unit
            row = (out.ctypes.data + i * out.strides[0], src.ctypes.data, src.strides[0], indices.ctypes.data)
            run = (start, end, np.int64(len(indices)), width, weight.ctypes.data)
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
                add_edge_weighted_row(row + run + (behind,), factor, kinds)
            else:
                add_placed_row(row + run + (places.ctypes.data, behind), factor, kinds)


@numba.njit(parallel=True, cache=True, nogil=True)
def _write_weighted_sums(
    edges: Any, src: Any, scale: Any, weight: Any, places: Any, out: Any
) -> None:  # pragma: no cover - compiled
    """``out[i] = sum of weight[places[e]] * scale[indices[e]] * src[indices[e]]``, as ``_write_sums``.

    Args:
        scale: [S]; empty: 1.
        weight: [E].
        places: int32 [E]; empty: e itself. The others as for ``_write_sums``.
    """
    chunks, rows, indptr, indices = edges
    width, kinds = src.shape[1], (src.dtype.type(0), out.dtype.type(0))
    everything, scaled, in_order = len(rows) == 0, len(scale) > 0, len(places) == 0
    unit, zero = weight.dtype.type(1), weight.dtype.type(0)
    for c in numba.prange(len(chunks) - 1):
        sums = np.empty(width, weight.dtype)
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            i = np.int64(a) if everything else np.int64(rows[a])
            row = (out.ctypes.data + i * out.strides[0], src.ctypes.data, src.strides[0], indices.ctypes.data)
            run = (start, end, np.int64(len(indices)), width, weight.ctypes.data)
            if start == end:
                out[i, :] = 0
            elif width * weight.itemsize < VECTOR_BYTES:
                sums[:] = zero
                for e in range(start, end):
                    value = (weight[e] if in_order else weight[places[e]]) * (scale[indices[e]] if scaled else unit)
                    for f in range(width):
                        sums[f] += widen(src[indices[e], f]) * value
                for f in range(width):
                    out[i, f] = narrow(sums[f], out)
            elif scaled and in_order:
                write_scaled_edge_weighted_row(row + run + (scale.ctypes.data,), unit, kinds)
            elif in_order:
                write_edge_weighted_row(row + run, unit, kinds)
            elif scaled:
                write_scaled_placed_row(row + run + (places.ctypes.data, scale.ctypes.data), unit, kinds)
            else:
                write_placed_row(row + run + (places.ctypes.data,), unit, kinds)


@numba.njit(parallel=True, cache=True, nogil=True)
def _write_weight_gradients(edges: Any, src: Any, grad: Any, scale: Any, out: Any) -> None:  # pragma: no cover - compiled
    """``out[e] = scale[i] * <grad[i], src[indices[e]]>``, i = rows[a], for the edges e of every listed row a.

    Args:
        grad: [M, F].
        out: [E]. The others as for ``_add_sums``.
    """
    chunks, rows, indptr, indices = edges
    everything, scaled = len(rows) == 0, len(scale) > 0
    unit, kinds = out.dtype.type(1), (src.dtype.type(0), grad.dtype.type(0))
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            start, end = np.int64(indptr[a]), np.int64(indptr[a + 1])
            i = np.int64(a) if everything else np.int64(rows[a])
            if start < end:
                row = (out.ctypes.data, grad.ctypes.data + i * grad.strides[0], src.ctypes.data, src.strides[0])
                run = (indices.ctypes.data, start, end, np.int64(len(indices)), src.shape[1])
                write_edge_dots(row + run, scale[i] if scaled else unit, kinds)
