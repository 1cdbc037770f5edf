"""Sums of rows changed by their edges' features on a CPU, compiled with Numba: nothing of size E x F is held.

Work is shared out in chunks of equal edges forward, by destination. Backward walks sources, a lane for each thread with
gradients of the map of its own: two runs with the same number of threads give the same bits. Features are read from where they
lie.

Letters: S source rows, M destination rows, E edges, F columns of rows, D features of an edge, T lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.block_arrays import ALL_EDGES, edges_of, numpy_of
from sargnn.backends.cpu.sum_vector_code import each_tile
from sargnn.backends.cpu.vector_code import AHEAD, RowFormat, VectorCode, const, prefetch_row, row_intrinsic
from sargnn.backends.operations import GineOperation, Maps
from sargnn.bf16 import array_of, narrow, wide, widen
from sargnn.graph.edge_columns import ATTR


class FusedGine(GineOperation):
    """See ``GineOperation``. Needs, with T threads, T tables of [D + 1, F] backward."""

    @staticmethod
    def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
        """The compiled functions with arguments of the types that they are called with."""
        z, x = (array_of(torch.zeros(1, 16, dtype=precision)) for precision in (dtype, wide(dtype)))
        ints, longs, attributes = np.zeros(2, np.int32), np.zeros(2, np.int64), np.zeros((1, 1), np.float32)
        edges, features = (longs, ints, ints, ints), (_read_only(attributes), _read_only(ints.copy()))
        return [
            (_fold, (edges, features, x[0], z, x, x)),
            (_write_gradients, (edges, features, ints, x[0], z, x, z, 1, z, x[None])),
        ]

    def forward(self, block: EdgeBlock, z: Tensor, maps: Maps, out: Tensor) -> None:
        if block.num_edges:
            _fold(
                edges_of(block, "forward"),
                _features(block),
                _weight(block, z),
                numpy_of(z),
                _table(maps),
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
        sums = np.zeros((len(edges[0]) - 1, weight.shape[1] + 1, len(weight)), numpy_of(bias).dtype)
        into = numpy_of(z[:0] if out is None else out)
        _write_gradients(
            edges,
            _features(block),
            block.t_edge.numpy(),
            _weight(block, z),
            numpy_of(z),
            _table(maps),
            numpy_of(grad),
            int(add),
            into,
            sums,
        )
        total = torch.from_numpy(sums.sum(0))
        d_maps[0].add_(total[:-1].T)
        d_maps[1].add_(total[-1])


def _features(block: EdgeBlock) -> tuple[np.ndarray, np.ndarray]:
    """float32 [n, D], mapped or not, and which of its rows the edges have: int32 [E], -1 for zeros; empty: all, in order."""
    if "gine" not in block.cache:
        column = block.columns.columns[ATTR]
        array, places = column.array, ALL_EDGES
        if isinstance(array, Tensor):
            array = array.float().numpy()
        elif isinstance(column.order, slice):
            array = array[column.order]
        elif column.order is not None:
            places = column.order
        block.cache["gine"] = _read_only(array.reshape(len(array), -1)), _read_only(places)
    held: tuple[np.ndarray, np.ndarray] = block.cache["gine"]
    return held


def _read_only(array: np.ndarray) -> np.ndarray:
    """Mapped or not, it has one type for compiled code."""
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view


def _weight(block: EdgeBlock, like: Tensor) -> np.ndarray:
    return numpy_of(like.new_empty(0, dtype=wide(like.dtype)) if block.weight is None else block.weight)


def _table(maps: Maps) -> np.ndarray:
    """[D + 1, F]: a row for each feature, and the bias."""
    weight, bias = (tensor.detach() for tensor in maps)
    return torch.cat([weight.T, bias[None]]).numpy()


class _Tile:
    """Vectors of a row with what its edge's features make of it, u = z + W f + b.

    Args:
        arguments: addresses of z, f (float32), W^T with b as its last row, that table's stride in bytes, D, F.
        rows: how z stands in memory.
        count: of vectors.
        base: the element with which the first begins.
    """

    def __init__(self, v: VectorCode, arguments: Any, rows: RowFormat, count: int, base: Any) -> None:
        row, self._features, table, self._stride, self._columns, width = arguments
        self._v, self.elements = v, [v.b.add(base, const(v.lanes * k)) for k in range(count)]
        self.masks = [None] * (count - 1) + [v.lanes_below(v.b.sub(width, self.elements[-1]))]
        bias = v.at(table, self._columns, self._stride)
        sums = [
            v.variable(v.b.fadd(rows.load(row, element, mask), v.load(v.at(bias, element, v.item), mask)))
            for element, mask in self.each()
        ]
        for x, column in self.features(table):
            for total, (element, mask) in zip(sums, self.each(), strict=True):
                total.set(v.multiply_add(x, v.load(v.at(column, element, v.item), mask), total.get()))
        self.values = [total.get() for total in sums]

    def each(self) -> list[tuple[Any, Any]]:
        """Each vector's first element, and the mask of the last one."""
        return list(zip(self.elements, self.masks, strict=True))

    def features(self, table: Any) -> Iterator[tuple[Any, Any]]:
        """A loop over the edge's features: a vector of it, and the address of a table's row for it."""
        v = self._v
        with v.loop(const(0), self._columns) as d:
            x = v.b.load(v.pointer(v.at(self._features, d, 4), ir.FloatType()))
            yield v.splat(x if v.item == 4 else v.b.fpext(x, v.scalar)), v.at(table, d, self._stride)

    def positive(self, values: list[Any]) -> list[Any]:
        """Where u > 0 a vector of ``values``, else 0; not a number stays so."""
        v = self._v
        nothing = v.constant(0.0)
        return [
            v.b.select(v.b.fcmp_ordered("<=", u, nothing), nothing, value) for u, value in zip(self.values, values, strict=True)
        ]

    def add(self, values: list[Any], target: Any) -> None:
        """Add vectors to a row of numbers."""
        v = self._v
        for value, (element, mask) in zip(values, self.each(), strict=True):
            place = v.at(target, element, v.item)
            v.store(v.b.fadd(v.load(place, mask), value), place, mask)


@row_intrinsic
def _add_changed(v: VectorCode, integers: Any, factor: Any, rows: RowFormat) -> None:
    """``total += factor relu(u)``. Arguments: total, then ``_Tile``'s; an element of z."""
    total, *arguments = integers
    factors = v.splat(factor)

    def emit(count: int, base: Any, final: Any) -> None:
        tile = _Tile(v, arguments, rows, count, base)
        tile.add([v.b.fmul(value, factors) for value in tile.positive(tile.values)], total)

    each_tile(v, arguments[-1], emit, overlaps=False)


@row_intrinsic
def _add_gradients(v: VectorCode, integers: Any, factor: Any, rows: RowFormat, of_gradients: RowFormat) -> None:
    """``h = factor g`` where u > 0, else 0; ``total += h``; ``sums[d] += f[d] h``.

    Arguments: total, g, sums, then ``_Tile``'s; an element of z and one of g.
    """
    total, grad, sums, *arguments = integers
    factors = v.splat(factor)

    def emit(count: int, base: Any, final: Any) -> None:
        tile = _Tile(v, arguments, rows, count, base)
        given = [v.b.fmul(of_gradients.load(grad, element, mask), factors) for element, mask in tile.each()]
        gradients = tile.positive(given)
        tile.add(gradients, total)
        for x, into in tile.features(sums):
            tile.add([v.b.fmul(x, gradient) for gradient in gradients], into)

    each_tile(v, arguments[-1], emit, overlaps=False)


@numba.njit(inline="always")
def _fetch_ahead(rows: Any, row: Any, features: Any, edge: Any, scalar: Any) -> None:  # pragma: no cover - compiled
    """Fetch a row that an edge further on will read, and the edge's features."""
    array, places = features
    prefetch_row((rows.ctypes.data + np.int64(row) * rows.strides[0], np.int64(rows.shape[1] * rows.itemsize)), scalar)
    place = np.int64(edge) if len(places) == 0 else np.int64(places[edge])
    prefetch_row((array.ctypes.data + place * array.strides[0], np.int64(array.shape[1] * array.itemsize)), scalar)


@numba.njit(inline="always")
def _features_of(features: Any, edge: Any, nothing: Any) -> Any:  # pragma: no cover - compiled
    array, places = features
    place = np.int64(edge) if len(places) == 0 else np.int64(places[edge])
    return array[place] if place >= 0 else nothing


@numba.njit(parallel=True, cache=True, nogil=True)
def _fold(edges: Any, features: Any, weight: Any, z: Any, table: Any, out: Any) -> None:  # pragma: no cover - compiled
    """``out[i] += sum of weight[e] relu(z[j] + W f_e + b)``.

    Args:
        edges: as ``edges_of`` gives them, by destination.
        features: as ``_features`` gives them.
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
                given, row = _features_of(features, e, nothing), z[indices[e]]
                factor = weight[e] if weighted else table.dtype.type(1)
                changed = (row.ctypes.data, given.ctypes.data, table.ctypes.data, table.strides[0])
                sizes = (np.int64(len(given)), np.int64(len(row)))
                _add_changed((total.ctypes.data,) + changed + sizes, factor, (z.dtype.type(0),))


@numba.njit(parallel=True, cache=True, nogil=True)
def _write_gradients(
    edges: Any, features: Any, order: Any, weight: Any, z: Any, table: Any, grad: Any, add: Any, out: Any, sums: Any
) -> None:  # pragma: no cover - compiled
    """Gradients of source rows, and of the map in each lane.

    Args:
        edges: by source, a run for each lane.
        features, weight, z, table: as of ``_fold``.
        order: int32 [E], the place of each edge among them.
        grad: [M, F].
        add: 1 to add to ``out``, 0 to overwrite it.
        out: [S, F]; without rows: not wanted.
        sums: [T, D + 1, F], added to.
    """
    bounds, rows, indptr, indices = edges
    everything, weighted, zero = len(rows) == 0, len(weight) > 0, table.dtype.type(0)
    last = np.int64(len(indices) - 1)
    for lane in numba.prange(len(bounds) - 1):
        total = np.empty(z.shape[1], table.dtype)
        nothing, mine = np.zeros(features[0].shape[1], np.float32), sums[lane]
        of_bias = mine[len(mine) - 1]
        for a in range(bounds[lane], bounds[lane + 1]):
            j = np.int64(a) if everything else np.int64(rows[a])
            row = z[j]
            total[:] = zero
            for e in range(indptr[a], indptr[a + 1]):
                ahead = min(np.int64(e) + AHEAD, last)
                _fetch_ahead(grad, indices[ahead], features, order[ahead], zero)
                given, g = _features_of(features, order[e], nothing), grad[indices[e]]
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
