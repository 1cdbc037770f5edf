"""The inner loop of sums over edges, in vector code.

    acc = sum over e in [start, end) of weight[indices[e]] * src[indices[e], :]
    out[:] = acc * scale          (``write_row``)     out[:] += acc * scale          (``add_row``)

The accumulator stays in registers: a destination row is cut into tiles of up to ``TILE`` vectors, and each tile walks the
edges once. A width that is no multiple of a vector ends in a vector that overlaps the one before: both hold the same sums, so
it does not matter which is stored last. A row must be at least one vector wide.

All three take ((out, src, stride, indices, start, end, limit, width, weight), scale): addresses, bytes, edge numbers.
"""

from __future__ import annotations

from typing import Any

from sargnn.kernels.fused.vector_code import VECTOR_BYTES, VectorCode, const, vector_intrinsic

TILE = 8
"""Vectors of an accumulator. Sixteen, which AVX-512's registers would hold too, were slower at 256 features in fp32."""


def _row(v: VectorCode, integers: Any, scale: Any, *, accumulate: bool, weighted: bool) -> None:
    """The loop over tiles, each a switch on the number of vectors that are left."""
    width, b = integers[7], v.b
    scales = v.splat(scale)
    position = v.variable(const(0))
    head, last, done = (b.append_basic_block(name) for name in ("tile", "tile.next", "tile.done"))
    b.branch(head)
    b.position_at_end(head)
    base = position.get()
    needed = b.sdiv(b.add(b.sub(width, base), const(VECTOR_BYTES - 1)), const(VECTOR_BYTES))
    # Never leaves a single vector to the last tile: it would overlap a tile that is stored already.
    most = b.select(b.icmp_signed("==", needed, const(TILE + 1)), const(TILE - 1), const(TILE))
    vectors = v.smaller(needed, most)
    final = v.smaller(v.at(base, b.sub(vectors, const(1)), VECTOR_BYTES), b.sub(width, const(VECTOR_BYTES)))
    switch = b.switch(vectors, done)
    for count in range(1, TILE + 1):
        block = b.append_basic_block(f"tile.{count}")
        switch.add_case(const(count), block)
        b.position_at_end(block)
        offsets = [b.add(base, const(VECTOR_BYTES * k)) for k in range(count - 1)] + [final]
        _tile(v, integers, scales, offsets, accumulate=accumulate, weighted=weighted)
        b.branch(last)
    b.position_at_end(last)
    following = v.at(base, vectors, VECTOR_BYTES)
    position.set(following)
    b.cbranch(b.icmp_signed("<", following, width), head, done)
    b.position_at_end(done)


def _tile(v: VectorCode, integers: Any, scales: Any, offsets: list[Any], *, accumulate: bool, weighted: bool) -> None:
    out, src, stride, indices, start, end, limit, _, weight = integers
    b = v.b
    sums = [v.variable(v.constant(0.0)) for _ in offsets]
    with v.loop(start, end) as edge:
        index = v.index(indices, edge)
        row, ahead = v.at(src, index, stride), v.row_ahead(src, stride, indices, edge, limit)
        for offset in offsets:
            v.prefetch(b.add(ahead, offset))
        values = [v.load(b.add(row, offset)) for offset in offsets]
        if weighted:
            factor = v.splat(v.load_scalar(v.at(weight, index, v.item)))
            values = [b.fmul(value, factor) for value in values]
        for total, value in zip(sums, values, strict=True):
            total.set(b.fadd(total.get(), value))
    results = [b.fmul(total.get(), scales) for total in sums]
    if accumulate:
        # All loads come before all stores: the last vector may overlap the one before.
        results = [b.fadd(v.load(b.add(out, o)), r) for r, o in zip(results, offsets, strict=True)]
    for result, offset in zip(results, offsets, strict=True):
        v.store(result, b.add(out, offset))


@vector_intrinsic
def add_row(v: VectorCode, integers: Any, scale: Any) -> None:
    _row(v, integers, scale, accumulate=True, weighted=False)


@vector_intrinsic
def write_row(v: VectorCode, integers: Any, scale: Any) -> None:
    _row(v, integers, scale, accumulate=False, weighted=False)


@vector_intrinsic
def write_weighted_row(v: VectorCode, integers: Any, scale: Any) -> None:
    _row(v, integers, scale, accumulate=False, weighted=True)
