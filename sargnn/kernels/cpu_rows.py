"""The inner loop of sums over edges, written in LLVM's vector instructions through Numba.

    acc = sum over e in [start, end) of weight[idx[e]] * src[idx[e], :]
    out[:] = acc * scale          (``write_row``)     out[:] += acc * scale          (``add_row``)

The accumulator stays in registers: a destination row is cut into tiles of up to ``TILE`` vectors of 64 bytes, and each
tile walks the edges once. The row of the edge ``AHEAD`` further on is prefetched line by line, because a random row of a
large matrix comes from far away and the hardware cannot guess which; 8 was the best of 4 to 32. A width that is no multiple of
a vector ends in a vector that overlaps the one before: both hold the same sums, so it does not matter which is stored last.

Addresses are passed as integers (``array.ctypes.data``), so nothing is bounds-checked or wrapped: callers guarantee that
every index is valid and that a row is at least one vector wide.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

AHEAD = 8
VECTOR_BYTES = 64
TILE = 8
"""Vectors of an accumulator. Sixteen, which AVX-512's registers would hold too, were slower at 256 features in fp32."""

_I64, _I32, _I8P = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()


def _int(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


class _Loop:
    """Emits one row's loops. Arguments are LLVM values: addresses, strides in bytes, int32 indices, edge numbers.

    Args:
        limit: number of edges in ``idx``; what is prefetched stays below it.
        width_bytes: of a row.
        weight: address of a scalar per source row, or None.
    """

    def __init__(self, builder: Any, scalar: Any, item: int, arguments: list[Any], weighted: bool) -> None:
        self.b, self.scalar, self.item = builder, scalar, item
        self.vector = ir.VectorType(scalar, VECTOR_BYTES // item)
        self.out, self.src, self.stride, self.idx, self.start, self.end, self.limit, self.width, self.weight = arguments[:9]
        self.scale = arguments[9]
        self.weighted = weighted

    def _pointer(self, address: Any, kind: Any) -> Any:
        return self.b.inttoptr(address, kind.as_pointer())

    def _load(self, address: Any) -> Any:
        value = self.b.load(self._pointer(address, self.vector))
        value.align = self.item
        return value

    def _splat(self, value: Any) -> Any:
        nothing = ir.Constant(self.vector, ir.Undefined)
        first = self.b.insert_element(nothing, value, ir.Constant(_I32, 0))
        lanes = self.vector.count
        return self.b.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))

    def _index(self, edge: Any) -> Any:
        return self.b.sext(self.b.load(self._pointer(self.b.add(self.idx, self.b.mul(edge, _int(4))), _I32)), _I64)

    def _row(self, index: Any) -> Any:
        return self.b.add(self.src, self.b.mul(index, self.stride))

    def _smaller(self, x: Any, y: Any) -> Any:
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    def emit(self, accumulate: bool) -> None:
        """The loop over tiles, each a switch on the number of vectors that are left."""
        b = self.b
        self.scale_vector = self._splat(self.scale)
        position = cgutils.alloca_once_value(b, _int(0))
        head, last, done = (b.append_basic_block(name) for name in ("tile", "tile.next", "tile.done"))
        b.branch(head)
        b.position_at_end(head)
        base = b.load(position)
        left = b.sub(self.width, base)
        needed = b.sdiv(b.add(left, _int(VECTOR_BYTES - 1)), _int(VECTOR_BYTES))
        # Never leaves a single vector to the last tile: it would overlap a tile that is stored already.
        most = b.select(b.icmp_signed("==", needed, _int(TILE + 1)), _int(TILE - 1), _int(TILE))
        vectors = self._smaller(needed, most)
        final = b.add(base, b.mul(b.sub(vectors, _int(1)), _int(VECTOR_BYTES)))
        final = self._smaller(final, b.sub(self.width, _int(VECTOR_BYTES)))
        switch = b.switch(vectors, done)
        for count in range(1, TILE + 1):
            block = b.append_basic_block(f"tile.{count}")
            switch.add_case(_int(count), block)
            b.position_at_end(block)
            offsets = [b.add(base, _int(VECTOR_BYTES * k)) for k in range(count - 1)] + [final]
            self._emit_tile(offsets, accumulate)
            b.branch(last)
        b.position_at_end(last)
        following = b.add(base, b.mul(vectors, _int(VECTOR_BYTES)))
        b.store(following, position)
        b.cbranch(b.icmp_signed("<", following, self.width), head, done)
        b.position_at_end(done)

    def _emit_tile(self, offsets: list[Any], accumulate: bool) -> None:
        b = self.b
        before = b.block
        loop, after = b.append_basic_block("edges"), b.append_basic_block("edges.done")
        b.branch(loop)
        b.position_at_end(loop)
        edge = b.phi(_I64)
        edge.add_incoming(self.start, before)
        sums = [b.phi(self.vector) for _ in offsets]
        index = self._index(edge)
        row = self._row(index)
        ahead = self._row(self._index(self._smaller(b.add(edge, _int(AHEAD)), b.sub(self.limit, _int(1)))))
        for offset in offsets:
            self._prefetch(b.add(ahead, offset))
        values = [self._load(b.add(row, offset)) for offset in offsets]
        if self.weighted:
            address = b.add(self.weight, b.mul(index, _int(self.item)))
            weight = self._splat(b.load(self._pointer(address, self.scalar)))
            values = [b.fmul(value, weight) for value in values]
        added = [b.fadd(total, value) for total, value in zip(sums, values, strict=True)]
        for total, value in zip(sums, added, strict=True):
            total.add_incoming(ir.Constant(self.vector, [0.0] * self.vector.count), before)
            total.add_incoming(value, b.block)
        following = b.add(edge, _int(1))
        edge.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, self.end), loop, after)
        b.position_at_end(after)
        results = [b.fmul(value, self.scale_vector) for value in added]
        if accumulate:
            # All loads come before all stores: the last vector may overlap the one before.
            results = [b.fadd(self._load(b.add(self.out, o)), r) for r, o in zip(results, offsets, strict=True)]
        for result, offset in zip(results, offsets, strict=True):
            stored = b.store(result, self._pointer(b.add(self.out, offset), self.vector))
            stored.align = self.item

    def _prefetch(self, address: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [_I8P, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(self.b.module, kind, "llvm.prefetch.p0i8")
        read, keep, data = (ir.Constant(_I32, value) for value in (0, 3, 1))
        self.b.call(function, [self.b.inttoptr(address, _I8P), read, keep, data])


def _row_intrinsic(accumulate: bool, weighted: bool) -> Any:
    @intrinsic
    def row_sum(
        typingctx: Any, out: Any, src: Any, stride: Any, idx: Any, start: Any, end: Any, limit: Any, width_bytes: Any,
        weight: Any, scale: Any,
    ) -> Any:  # fmt: skip
        signature = types.void(*[types.int64] * 9, scale)

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            single = signature.args[9] == types.float32
            scalar, item = (ir.FloatType(), 4) if single else (ir.DoubleType(), 8)
            _Loop(builder, scalar, item, list(arguments), weighted).emit(accumulate)
            return context.get_dummy_value()

        return signature, code

    return row_sum


add_row = _row_intrinsic(accumulate=True, weighted=False)
write_row = _row_intrinsic(accumulate=False, weighted=False)
write_weighted_row = _row_intrinsic(accumulate=False, weighted=True)
