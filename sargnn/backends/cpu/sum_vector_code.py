"""The inner loop of sums over edges, in vector code.

    acc = sum over e in [start, end) of weight[indices[e]] * src[indices[e], :]
    out[:] = acc * scale          (``write_row``)     out[:] += acc * scale          (``add_row``)

The accumulator stays in registers: a destination row is cut into tiles of up to ``TILE`` vectors, and each tile walks the
edges once. A width that is no multiple of a vector ends in a vector that overlaps the one before: both hold the same sums, so
it does not matter which is stored last. A row must be at least one vector wide.

These take ((out, src, stride, indices, start, end, limit, width, weight), scale, kinds): addresses, a stride in bytes, edge
numbers, a width in elements; an element of the array of source rows and one of that of destination rows. Sums are kept in the
type of scale.

Weights of edges: ``add_edge_weighted_row`` and ``write_edge_weighted_row`` take weight[e] in place of weight[indices[e]], and
``write_scaled_edge_weighted_row`` weight[e] * scales[indices[e]]. Where the edges go in another order than their weights,
``places`` says which is whose: weight[places[e]], for ``add_placed_row`` and ``write_placed_row``, and
weight[places[e]] * scales[indices[e]] for ``write_scaled_placed_row``. The addresses of places and of scales come after
weight, in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from sargnn.backends.cpu.vector_code import AHEAD, RowFormat, VectorCode, const, row_intrinsic

TILE = 8
"""Vectors of an accumulator. Sixteen, which AVX-512's registers would hold too, were slower at 256 features in fp32."""


FAR, FAR_WIDE = 32, 24
"""How many edges ahead rows are prefetched where edges have weights: in tiles of up to four vectors, and in wider ones."""

STREAM = 256
"""How many edges ahead, in tiles of one or two vectors, is what is read in order: rows come so fast there that it is missed."""


@dataclass(frozen=True)
class Factor:
    """What multiplies the rows.

    Attributes:
        number: (code, edge, index) -> the edge's factor.
        in_order: (address, bytes of a number) of arrays that are read edge after edge, where they are edges' weights.
    """

    number: Callable[[VectorCode, Any, Any], Any]
    in_order: tuple[tuple[Any, int], ...] = ()


def each_tile(v: VectorCode, width: Any, emit: Callable[[int, Any, Any], None], *, overlaps: bool) -> None:
    """The loop over a row's tiles, a switch on the number of vectors that are left.

    Args:
        width: elements of a row.
        emit: called once for each number of vectors, with it, the element with which the tile begins, and that with which its
            last vector does if rows end in a vector that overlaps the one before.
        overlaps: whether they do.
    """
    b = v.b
    position = v.variable(const(0))
    head, last, done = (b.append_basic_block(name) for name in ("tile", "tile.next", "tile.done"))
    b.branch(head)
    b.position_at_end(head)
    base = position.get()
    needed = b.sdiv(b.add(b.sub(width, base), const(v.lanes - 1)), const(v.lanes))
    most: Any = const(TILE)
    if overlaps:
        # Never leaves a single vector to the last tile: it would overlap a tile that is stored already.
        most = b.select(b.icmp_signed("==", needed, const(TILE + 1)), const(TILE - 1), const(TILE))
    vectors = v.smaller(needed, most)
    final = v.smaller(v.at(base, b.sub(vectors, const(1)), v.lanes), b.sub(width, const(v.lanes)))
    switch = b.switch(vectors, done)
    for count in range(1, TILE + 1):
        block = b.append_basic_block(f"tile.{count}")
        switch.add_case(const(count), block)
        b.position_at_end(block)
        emit(count, base, final)
        b.branch(last)
    b.position_at_end(last)
    following = v.at(base, vectors, v.lanes)
    position.set(following)
    b.cbranch(b.icmp_signed("<", following, width), head, done)
    b.position_at_end(done)


def _row(
    v: VectorCode, integers: Any, scale: Any, formats: tuple[RowFormat, ...], *, accumulate: bool, factor: Factor | None = None
) -> None:
    """A row's sums. ``formats``: of source rows and of destination rows."""
    scales = v.splat(scale)

    def emit(count: int, base: Any, final: Any) -> None:
        offsets = [v.b.add(base, const(v.lanes * k)) for k in range(count - 1)] + [final]
        _tile(v, integers, scales, formats, offsets, accumulate=accumulate, factor=factor)

    each_tile(v, integers[7], emit, overlaps=True)


def _tile(
    v: VectorCode,
    integers: Any,
    scales: Any,
    formats: tuple[RowFormat, ...],
    offsets: list[Any],
    *,
    accumulate: bool,
    factor: Factor | None,
) -> None:
    """Products with edges' weights are rounded together with the sums that they are added to."""
    out, src, stride, indices, start, end, limit = integers[:7]
    (of_sources, of_sums), b = formats, v.b
    in_order = () if factor is None else factor.in_order
    sums = [v.variable(v.constant(0.0)) for _ in offsets]
    # Not beyond the last edge; the same for all edges of a row, so that the loop need not look.
    step = v.smaller(const(FAR if len(offsets) <= TILE // 2 else FAR_WIDE), b.sub(limit, end))
    later = v.at(indices, step, 4)
    with v.loop(start, end) as edge:
        index = v.index(indices, edge)
        row = v.at(src, index, stride)
        if in_order:
            ahead = v.at(src, v.index(later, edge), stride)
        else:
            ahead = v.row_ahead(src, stride, indices, edge, limit, of_sources.ahead)
        if len(offsets) <= 2:
            for array, item in in_order:
                v.prefetch(v.at(array, b.add(edge, const(STREAM)), item))
        of_sources.prefetch(ahead, offsets)
        values = [of_sources.load(row, offset) for offset in offsets]
        factors = None if factor is None else v.splat(factor.number(v, edge, index))
        for total, value in zip(sums, values, strict=True):
            if factors is None:
                total.set(b.fadd(total.get(), value))
            elif in_order:
                total.set(v.multiply_add(value, factors, total.get()))
            else:
                total.set(b.fadd(total.get(), b.fmul(value, factors)))
    results = [b.fmul(total.get(), scales) for total in sums]
    if accumulate:
        # All loads come before all stores: the last vector may overlap the one before.
        results = [b.fadd(of_sums.load(out, o), r) for r, o in zip(results, offsets, strict=True)]
    for result, offset in zip(results, offsets, strict=True):
        of_sums.store(result, out, offset)


def _of_edge(v: VectorCode, integers: Any) -> Factor:
    """weight[e]."""
    indices, weight = integers[3], integers[8]

    def number(v: VectorCode, edge: Any, index: Any) -> Any:
        return v.load_scalar(v.at(weight, edge, v.item))

    return Factor(number, ((indices, 4), (weight, v.item)))


def _of_place(v: VectorCode, integers: Any) -> Factor:
    """weight[places[e]], fetched ahead: the edges of one row have their weights far apart."""
    indices, limit, weight, places = integers[3], integers[6], integers[8], integers[9]

    def number(v: VectorCode, edge: Any, index: Any) -> Any:
        ahead = v.smaller(v.b.add(edge, const(2 * AHEAD)), v.b.sub(limit, const(1)))
        v.prefetch(v.at(weight, v.index(places, ahead), v.item))
        return v.load_scalar(v.at(weight, v.index(places, edge), v.item))

    return Factor(number, ((indices, 4), (places, 4)))


def _scaled(factor: Factor, of_rows: Any) -> Factor:
    """A factor times a number of the edge's row."""

    def number(v: VectorCode, edge: Any, index: Any) -> Any:
        return v.b.fmul(factor.number(v, edge, index), v.load_scalar(v.at(of_rows, index, v.item)))

    return Factor(number, factor.in_order)


def _of_row(v: VectorCode, integers: Any) -> Factor:
    """weight[indices[e]]."""
    return Factor(lambda v, edge, index: v.load_scalar(v.at(integers[8], index, v.item)))


def _row_sums(name: str, make_factor: Callable[[VectorCode, Any], Factor] | None = None, *, accumulate: bool) -> Any:
    """The intrinsic of a row's sums, of rows times a factor if one is given."""

    def emit(v: VectorCode, integers: Any, scale: Any, *formats: RowFormat) -> None:
        factor = None if make_factor is None else make_factor(v, integers)
        _row(v, integers, scale, formats, accumulate=accumulate, factor=factor)

    emit.__name__ = name
    return row_intrinsic(emit)


add_row = _row_sums("add_row", accumulate=True)
write_row = _row_sums("write_row", accumulate=False)
write_weighted_row = _row_sums("write_weighted_row", _of_row, accumulate=False)
add_edge_weighted_row = _row_sums("add_edge_weighted_row", _of_edge, accumulate=True)
write_edge_weighted_row = _row_sums("write_edge_weighted_row", _of_edge, accumulate=False)
write_scaled_edge_weighted_row = _row_sums(
    "write_scaled_edge_weighted_row", lambda v, integers: _scaled(_of_edge(v, integers), integers[9]), accumulate=False
)
add_placed_row = _row_sums("add_placed_row", _of_place, accumulate=True)
write_placed_row = _row_sums("write_placed_row", _of_place, accumulate=False)
write_scaled_placed_row = _row_sums(
    "write_scaled_placed_row", lambda v, integers: _scaled(_of_place(v, integers), integers[10]), accumulate=False
)


@row_intrinsic
def write_edge_dots(v: VectorCode, integers: Any, scale: Any, of_sources: RowFormat, of_own: RowFormat) -> None:
    """``out[e] = scale * <own, src[indices[e], :]>`` for e in [start, end); rows of any width.

    Arguments: out, own, src, stride, indices, start, end, limit, width; an element of src and one of own.
    """
    out, own, src, stride, indices, start, end, limit, width = integers
    b = v.b

    def emit(count: int, base: Any, final: Any) -> None:
        offsets = [b.add(base, const(v.lanes * k)) for k in range(count)]
        rest = v.lanes_below(b.sub(width, offsets[-1]))
        masks = [None] * (count - 1) + [rest]
        mine = [of_own.load(own, offset, mask) for offset, mask in zip(offsets, masks, strict=True)]
        begins = b.icmp_signed("==", base, const(0))
        with v.loop(start, end) as edge:
            row, ahead = (
                v.at(src, v.index(indices, edge), stride),
                v.row_ahead(src, stride, indices, edge, limit, of_sources.ahead),
            )
            products = v.constant(0.0)
            of_sources.prefetch(ahead, offsets)
            for offset, mask, vector in zip(offsets, masks, mine, strict=True):
                products = v.multiply_add(of_sources.load(row, offset, mask), vector, products)
            slot = v.at(out, edge, v.item)
            before = b.select(begins, ir.Constant(v.scalar, 0.0), v.load_scalar(slot))
            v.store_scalar(b.fadd(before, b.fmul(v.sum_lanes(products), scale)), slot)

    each_tile(v, width, emit, overlaps=False)
