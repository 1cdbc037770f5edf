"""Features of edges in compiled code: read from where they lie, mapped by a table, one edge at a time.

Gradients of the table are sums over all edges: each lane adds those of some thousand edges in the rows' own precision, and
what they come to in fp64.

Letters: E edges, D features of an edge, F columns of what they are mapped to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.block_arrays import ALL_EDGES
from sargnn.backends.cpu.vector_code import I64, RowFormat, VectorCode, const, prefetch_row, row_intrinsic, vector_intrinsic
from sargnn.graph.edge_columns import ATTR

FLUSH_EDGES = 4096
"""After how many edges a lane's sums are added to those in fp64."""
_BLOCK = 8
"""Features whose rows of a table are in registers at a time."""
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


@numba.njit(inline="always")
def find_features(
    features: Any, order: Any, start: Any, end: Any, nothing: Any, addresses: Any, scalar: Any
) -> None:  # pragma: no cover - compiled
    """Fetch the features of edges ``start`` to ``end`` into the cache.

    Args:
        order: where each edge stands among those that have features; empty: in their order.
        nothing: zeros, those of an edge that was added.
        addresses: int64, at least as many: the address of each one's, written.
    """
    array, places = features
    size = np.int64(array.shape[1] * array.itemsize)
    for e in range(start, end):
        place = np.int64(e) if len(order) == 0 else np.int64(order[e])
        if len(places) > 0:
            place = np.int64(places[place])
        address = array.ctypes.data + place * array.strides[0] if place >= 0 else nothing.ctypes.data
        prefetch_row((address, size), scalar)
        addresses[e - start] = address


def _by_blocks(v: VectorCode, columns: Any, emit: Callable[[Any, int], None]) -> None:
    """A loop over blocks of features: ``emit(first, count)``, called once for each count from 1 to ``_BLOCK``."""
    b = v.b
    with v.loop(const(0), columns, _BLOCK) as first:
        after = b.append_basic_block("features.next")
        switch = b.switch(v.smaller(b.sub(columns, first), const(_BLOCK)), after)
        for count in range(1, _BLOCK + 1):
            block = b.append_basic_block(f"features.{count}")
            switch.add_case(const(count), block)
            b.position_at_end(block)
            emit(first, count)
            b.branch(after)
        b.position_at_end(after)


def _features_of(v: VectorCode, addresses: Any, edge: Any, first: Any, count: int) -> list[Any]:
    """Vectors of one number each: some of an edge's features."""
    row = v.at(v.b.load(v.pointer(v.at(addresses, edge, 8), I64)), first, 4)
    numbers = [v.b.load(v.pointer(v.b.add(row, const(4 * k)), ir.FloatType())) for k in range(count)]
    return [v.splat(x if v.item == 4 else v.b.fpext(x, v.scalar)) for x in numbers]


@row_intrinsic
def mapped_rows(v: VectorCode, integers: Any, scalar: Any, of_own: RowFormat) -> None:
    """``out[e] = own + W f_e`` for each of B edges.

    Arguments: out, whose rows are whole vectors, its stride in bytes, own, addresses of features, W^T, its stride, B, D, F; an
    element of own.
    """
    out, stride, own, addresses, table, table_stride, edges, columns, width = integers
    with v.loop(const(0), width, v.lanes) as element:
        mask, offset = v.lanes_below(v.b.sub(width, element)), v.b.mul(element, const(v.item))
        mine = of_own.load(own, element, mask)

        def emit(first: Any, count: int, mine: Any = mine, mask: Any = mask, offset: Any = offset) -> None:
            begins = v.b.icmp_signed("==", first, const(0))
            rows = [v.load(v.b.add(v.at(table, v.b.add(first, const(k)), table_stride), offset), mask) for k in range(count)]
            with v.loop(const(0), edges) as edge:
                place = v.b.add(v.at(out, edge, stride), offset)
                total = v.b.select(begins, mine, v.load(place))
                for x, row in zip(_features_of(v, addresses, edge, first, count), rows, strict=True):
                    total = v.multiply_add(x, row, total)
                v.store(total, place)

        _by_blocks(v, columns, emit)


@vector_intrinsic
def add_outer_products(v: VectorCode, integers: Any, scalar: Any) -> None:
    """``sums[d] += sum over B edges of f_e[d] rows[e]``.

    Arguments: sums, its stride in bytes, rows, whose rows are whole vectors, their stride, addresses of features, B, D, F.
    """
    sums, sums_stride, rows, stride, addresses, edges, columns, width = integers
    with v.loop(const(0), width, v.lanes) as element:
        mask, offset = v.lanes_below(v.b.sub(width, element)), v.b.mul(element, const(v.item))

        def emit(first: Any, count: int, mask: Any = mask, offset: Any = offset) -> None:
            places = [v.b.add(v.at(sums, v.b.add(first, const(k)), sums_stride), offset) for k in range(count)]
            totals = [v.variable(v.load(place, mask)) for place in places]
            with v.loop(const(0), edges) as edge:
                row = v.load(v.b.add(v.at(rows, edge, stride), offset))
                for x, total in zip(_features_of(v, addresses, edge, first, count), totals, strict=True):
                    total.set(v.multiply_add(x, row, total.get()))
            for total, place in zip(totals, places, strict=True):
                v.store(total.get(), place, mask)

        _by_blocks(v, columns, emit)


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
