"""Sums of rows changed by their edges' features on a CPU, compiled with Numba: nothing of size E x F is held.

Work is shared out in chunks of equal edges forward, by destination. Backward walks sources, a lane for each thread with
gradients of the map of its own: two runs with the same number of threads give the same bits. Features are read from where they
lie.

Letters: S source rows, M destination rows, E edges, F columns of rows, D features of an edge, T lanes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.block_arrays import edges_of, numpy_of
from sargnn.backends.cpu.edge_features import (
    FLUSH_EDGES,
    ChangedTile,
    features_at,
    features_of,
    fetch_features,
    flush,
    read_only,
    table_of,
)
from sargnn.backends.cpu.sum_vector_code import each_tile
from sargnn.backends.cpu.vector_code import AHEAD, RowFormat, VectorCode, prefetch_row, row_intrinsic
from sargnn.backends.operations import GineOperation, Maps
from sargnn.bf16 import wide
from sargnn.numba_bf16 import array_of, narrow, widen


class FusedGine(GineOperation):
    """See ``GineOperation``. Needs, with T threads, 2 T tables of [D + 1, F] backward."""

    @staticmethod
    def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
        """The compiled functions with arguments of the types that they are called with."""
        z, x = (array_of(torch.zeros(1, 16, dtype=precision)) for precision in (dtype, wide(dtype)))
        ints, longs, attributes = np.zeros(2, np.int32), np.zeros(2, np.int64), np.zeros((1, 1), np.float32)
        edges, features = (longs, ints, ints, ints), (read_only(attributes), read_only(ints.copy()))
        return [
            (_fold, (edges, features, x[0], z, x, x)),
            (_write_gradients, (edges, features, ints, x[0], z, x, z, 1, z, np.zeros((1, 1, 16)))),
        ]

    def forward(self, block: EdgeBlock, z: Tensor, maps: Maps, out: Tensor) -> None:
        if block.num_edges:
            _fold(
                edges_of(block, "forward"),
                features_of(block),
                _weight(block, z),
                numpy_of(z),
                table_of(*maps),
                numpy_of(out),
            )

    def backward(
        self, block: EdgeBlock, z: Tensor, maps: Maps, grad: Tensor, out: Tensor | None, d_maps: Maps, *, add: bool = False
    ) -> None:
        if not block.num_edges:
            if out is not None and not add:
                out.zero_()
            return
        edges, weight, bias = edges_of(block, "backward", by_lane=True), *maps
        totals = np.zeros((len(edges[0]) - 1, weight.shape[1] + 1, len(weight)))
        into = numpy_of(z[:0] if out is None else out)
        _write_gradients(
            edges,
            features_of(block),
            block.t_edge.numpy(),
            _weight(block, z),
            numpy_of(z),
            table_of(*maps),
            numpy_of(grad),
            int(add),
            into,
            totals,
        )
        total = torch.from_numpy(totals.sum(0)).to(bias.dtype)
        d_maps[0].add_(total[:-1].T)
        d_maps[1].add_(total[-1])


def _weight(block: EdgeBlock, like: Tensor) -> np.ndarray:
    return numpy_of(like.new_empty(0, dtype=wide(like.dtype)) if block.weight is None else block.weight)


@row_intrinsic
def _add_changed(v: VectorCode, integers: Any, factor: Any, rows: RowFormat) -> None:
    """``total += factor relu(u)``. Arguments: total, then ``ChangedTile``'s; an element of z."""
    total, *arguments = integers
    factors = v.splat(factor)

    def emit(count: int, base: Any, final: Any) -> None:
        tile = ChangedTile(v, arguments, rows, count, base)
        tile.add([v.b.fmul(value, factors) for value in tile.positive(tile.values)], total)

    each_tile(v, arguments[-1], emit, overlaps=False)


@row_intrinsic
def _add_gradients(v: VectorCode, integers: Any, factor: Any, rows: RowFormat, of_gradients: RowFormat) -> None:
    """``h = factor g`` where u > 0, else 0; ``total += h``; ``sums[d] += f[d] h``.

    Arguments: total, g, sums, then ``ChangedTile``'s; an element of z and one of g.
    """
    total, grad, sums, *arguments = integers
    factors = v.splat(factor)

    def emit(count: int, base: Any, final: Any) -> None:
        tile = ChangedTile(v, arguments, rows, count, base)
        given = [v.b.fmul(of_gradients.load(grad, element, mask), factors) for element, mask in tile.each()]
        gradients = tile.positive(given)
        tile.add(gradients, total)
        for x, into in tile.features(sums):
            tile.add([v.b.fmul(x, gradient) for gradient in gradients], into)

    each_tile(v, arguments[-1], emit, overlaps=False)


@numba.njit(inline="always")
def _fetch_ahead(rows: Any, row: Any, features: Any, edge: Any, scalar: Any) -> None:  # pragma: no cover - compiled
    """Fetch a row that an edge further on will read, and the edge's features."""
    prefetch_row((rows.ctypes.data + np.int64(row) * rows.strides[0], np.int64(rows.shape[1] * rows.itemsize)), scalar)
    fetch_features(features, edge, scalar)


@numba.njit(parallel=True, cache=True, nogil=True)
def _fold(edges: Any, features: Any, weight: Any, z: Any, table: Any, out: Any) -> None:  # pragma: no cover - compiled
    """``out[i] += sum of weight[e] relu(z[j] + W f_e + b)``.

    Args:
        edges: as ``edges_of`` gives them, by destination.
        features: as ``features_of`` gives them.
        weight: [E]; empty: 1.
        z: [S, F].
        table: [D + 1, F].
        out: [M, F], wide.
    """
    chunks, rows, indptr, indices = edges
    everything, weighted, zero = len(rows) == 0, len(weight) > 0, table.dtype.type(0)
    last = np.int64(len(indices) - 1)
    for c in numba.prange(len(chunks) - 1):
        nothing = np.zeros(features[0].shape[1], np.float32)
        for a in range(chunks[c], chunks[c + 1]):
            total = out[np.int64(a) if everything else np.int64(rows[a])]
            for e in range(indptr[a], indptr[a + 1]):
                ahead = min(np.int64(e) + AHEAD, last)
                _fetch_ahead(z, indices[ahead], features, ahead, zero)
                given, row = features_at(features, e, nothing), z[indices[e]]
                factor = weight[e] if weighted else table.dtype.type(1)
                changed = (row.ctypes.data, given.ctypes.data, table.ctypes.data, table.strides[0])
                sizes = (np.int64(len(given)), np.int64(len(row)))
                _add_changed((total.ctypes.data,) + changed + sizes, factor, (z.dtype.type(0),))


@numba.njit(parallel=True, cache=True, nogil=True)
def _write_gradients(
    edges: Any, features: Any, order: Any, weight: Any, z: Any, table: Any, grad: Any, add: Any, out: Any, totals: Any
) -> None:  # pragma: no cover - compiled
    """Gradients of source rows, and of the map in each lane.

    Args:
        edges: by source, a run for each lane.
        features, weight, z, table: as of ``_fold``.
        order: int32 [E], the place of each edge among them.
        grad: [M, F].
        add: 1 to add to ``out``, 0 to overwrite it.
        out: [S, F]; without rows: not wanted.
        totals: fp64 [T, D + 1, F], added to.
    """
    bounds, rows, indptr, indices = edges
    everything, weighted, zero = len(rows) == 0, len(weight) > 0, table.dtype.type(0)
    last = np.int64(len(indices) - 1)
    for lane in numba.prange(len(bounds) - 1):
        total = np.empty(z.shape[1], table.dtype)
        nothing, mine = np.zeros(features[0].shape[1], np.float32), np.zeros(table.shape, table.dtype)
        of_bias, flushed = mine[len(mine) - 1], np.int64(indptr[bounds[lane]])
        for a in range(bounds[lane], bounds[lane + 1]):
            j = np.int64(a) if everything else np.int64(rows[a])
            row = z[j]
            total[:] = zero
            for e in range(indptr[a], indptr[a + 1]):
                ahead = min(np.int64(e) + AHEAD, last)
                _fetch_ahead(grad, indices[ahead], features, order[ahead], zero)
                given, g = features_at(features, order[e], nothing), grad[indices[e]]
                factor = weight[order[e]] if weighted else table.dtype.type(1)
                ends = (total.ctypes.data, g.ctypes.data, mine.ctypes.data)
                changed = (row.ctypes.data, given.ctypes.data, table.ctypes.data, table.strides[0])
                sizes = (np.int64(len(given)), np.int64(len(row)))
                _add_gradients(ends + changed + sizes, factor, (z.dtype.type(0), grad.dtype.type(0)))
            for f in range(len(total)):
                of_bias[f] += total[f]
            if len(out) > 0:
                target = out[j]
                for f in range(len(total)):
                    target[f] = narrow(total[f] + (widen(target[f]) if add != 0 else zero), out)
            if indptr[a + 1] - flushed > FLUSH_EDGES:
                flush(mine, totals[lane])
                flushed = np.int64(indptr[a + 1])
        flush(mine, totals[lane])
