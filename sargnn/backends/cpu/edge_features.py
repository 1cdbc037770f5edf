"""Features of edges in compiled code: read from where they lie, mapped by a table, one edge at a time.

Gradients of the table are sums over all edges: each lane adds those of some thousand edges in the rows' own precision, and
what they come to in fp64.

Letters: E edges, D features of an edge, F columns of what they are mapped to.
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
from sargnn.backends.cpu.block_arrays import ALL_EDGES
from sargnn.backends.cpu.sum_vector_code import each_tile
from sargnn.backends.cpu.vector_code import RowFormat, VectorCode, const, prefetch_row, row_intrinsic
from sargnn.graph.edge_columns import ATTR

FLUSH_EDGES = 4096
"""After how many edges a lane's sums are added to those in fp64."""
Features = tuple[np.ndarray, np.ndarray]
"""float32 [n, D], mapped or not, and which of its rows the edges have: int32 [E], -1 for zeros; empty: all, in order."""


def read_only(array: np.ndarray) -> np.ndarray:
    """Mapped or not, it has one type for compiled code."""
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view


NO_FEATURES: Features = read_only(np.zeros((0, 0), np.float32)), read_only(ALL_EDGES.copy())
"""Of edges whose features are not read."""


def features_of(block: EdgeBlock) -> Features:
    """The features of a block's edges."""
    if "features" not in block.cache:
        column = block.columns.columns[ATTR]
        array, places = column.array, ALL_EDGES
        if isinstance(array, Tensor):
            array = array.float().numpy()
        elif isinstance(column.order, slice):
            array = array[column.order]
        elif column.order is not None:
            places = column.order
        block.cache["features"] = read_only(array.reshape(len(array), -1)), read_only(places)
    held: Features = block.cache["features"]
    return held


def table_of(weight: Tensor, bias: Tensor | None = None) -> np.ndarray:
    """[D + 1, F]: a row for each feature of W [F, D], and b [F], zeros without one."""
    weight = weight.detach()
    last = weight.new_zeros(1, len(weight)) if bias is None else bias.detach()[None]
    return torch.cat([weight.T, last]).numpy()


@numba.njit(inline="always")
def features_at(features: Any, edge: Any, nothing: Any) -> Any:  # pragma: no cover - compiled
    """An edge's features; ``nothing``, zeros, of an edge that was added."""
    array, places = features
    place = np.int64(edge) if len(places) == 0 else np.int64(places[edge])
    return array[place] if place >= 0 else nothing


@numba.njit(inline="always")
def fetch_features(features: Any, edge: Any, scalar: Any) -> None:  # pragma: no cover - compiled
    """Fetch an edge's features into the cache."""
    array, places = features
    place = np.int64(edge) if len(places) == 0 else np.int64(places[edge])
    prefetch_row((array.ctypes.data + place * array.strides[0], np.int64(array.shape[1] * array.itemsize)), scalar)


@numba.njit(inline="always")
def flush(sums: Any, totals: Any) -> None:  # pragma: no cover - compiled
    """Add a lane's sums to its totals, fp64, and begin them anew."""
    for d in range(sums.shape[0]):
        for f in range(sums.shape[1]):
            totals[d, f] += sums[d, f]
            sums[d, f] = 0


class ChangedTile:
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
def write_changed(v: VectorCode, integers: Any, scalar: Any, rows: RowFormat) -> None:
    """``out = z + W f + b``, numbers. Arguments: out, then ``ChangedTile``'s; an element of z."""
    out, *arguments = integers

    def emit(count: int, base: Any, final: Any) -> None:
        tile = ChangedTile(v, arguments, rows, count, base)
        for value, (element, mask) in zip(tile.values, tile.each(), strict=True):
            v.store(value, v.at(out, element, v.item), mask)

    each_tile(v, arguments[-1], emit, overlaps=False)


@row_intrinsic
def add_outer(v: VectorCode, integers: Any, scalar: Any, rows: RowFormat) -> None:
    """``sums[d] += f[d] h``. Arguments: addresses of h, f, sums, the stride of sums in bytes, D, F; an element of h."""
    row, features, sums, stride, columns, width = integers

    def emit(count: int, base: Any, final: Any) -> None:
        elements = [v.b.add(base, const(v.lanes * k)) for k in range(count)]
        masks = [None] * (count - 1) + [v.lanes_below(v.b.sub(width, elements[-1]))]
        values = [rows.load(row, element, mask) for element, mask in zip(elements, masks, strict=True)]
        with v.loop(const(0), columns) as d:
            x = v.b.load(v.pointer(v.at(features, d, 4), ir.FloatType()))
            factor, into = v.splat(x if v.item == 4 else v.b.fpext(x, v.scalar)), v.at(sums, d, stride)
            for value, element, mask in zip(values, elements, masks, strict=True):
                place = v.at(into, element, v.item)
                v.store(v.multiply_add(factor, value, v.load(place, mask)), place, mask)

    each_tile(v, width, emit, overlaps=False)
