"""Vector code for compiled kernels, written in LLVM's instructions through Numba's intrinsics.

Addresses are integers (``array.ctypes.data``), so nothing is bounds-checked or wrapped: callers guarantee that every index
is valid. Vectors are 64 bytes wide; LLVM splits them where the machine's are narrower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from sargnn.numba_bf16 import narrowed

VECTOR_BYTES = 64
AHEAD = 8
"""How many edges ahead a row is prefetched: a random row of a large matrix comes from far away, and the hardware cannot guess
which. 8 was the best of 4 to 32."""
AHEAD_HALF = 32
"""The same for bf16 rows, which are read in half the time. 32 was the best of 8, 16 and 32."""
LATER = 4
"""How many listed rows ahead one that is added to is prefetched. 2 to 8 took the same time, 0 a fifth more in bf16."""

I64, I32, _I16 = ir.IntType(64), ir.IntType(32), ir.IntType(16)
_I8P = ir.IntType(8).as_pointer()
_CONTRACT = ("contract",)


def const(value: int) -> ir.Constant:
    """An address or a count."""
    return ir.Constant(I64, value)


class Variable:
    """A value that changes; LLVM keeps it in a register."""

    def __init__(self, builder: Any, kind: Any, start: Any) -> None:
        self._builder = builder
        self._slot = cgutils.alloca_once(builder, kind)
        builder.store(start, self._slot)

    def get(self) -> Any:
        return self._builder.load(self._slot)

    def set(self, value: Any) -> None:
        self._builder.store(value, self._slot)


class VectorCode:
    """Emits vector instructions for one scalar type.

    Attributes:
        b: the LLVM builder.
        scalar: the type of a number.
        item: its bytes.
        lanes: numbers of a vector.
    """

    def __init__(self, builder: Any, single: bool) -> None:
        self.b = builder
        self.scalar, self.item = (ir.FloatType(), 4) if single else (ir.DoubleType(), 8)
        self.integer = I32 if single else I64
        self.lanes = VECTOR_BYTES // self.item
        self.vector = ir.VectorType(self.scalar, self.lanes)
        self.mask = ir.VectorType(ir.IntType(1), self.lanes)

    # Numbers and addresses

    def at(self, base: Any, index: Any, stride: Any) -> Any:
        """base + index * stride."""
        return self.b.add(base, self.b.mul(index, const(stride) if isinstance(stride, int) else stride))

    def smaller(self, x: Any, y: Any) -> Any:
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    def pointer(self, address: Any, kind: Any) -> Any:
        return self.b.inttoptr(address, kind.as_pointer())

    def index(self, indices: Any, edge: Any) -> Any:
        """Element ``edge`` of an int32 array."""
        return self.b.sext(self.b.load(self.pointer(self.at(indices, edge, 4), I32)), I64)

    def row_ahead(self, base: Any, stride: Any, indices: Any, edge: Any, limit: Any, by: int = AHEAD) -> Any:
        """The address of the row that the edge ``by`` further on names, of ``limit`` edges: what to prefetch."""
        ahead = self.smaller(self.b.add(edge, const(by)), self.b.sub(limit, const(1)))
        return self.at(base, self.index(indices, ahead), stride)

    def variable(self, start: Any) -> Variable:
        return Variable(self.b, start.type, start)

    @contextmanager
    def loop(self, start: Any, end: Any, step: int = 1) -> Iterator[Any]:
        """``for i in range(start, end, step)``; yields i."""
        b = self.b
        head, body, done = (b.append_basic_block(name) for name in ("loop", "body", "done"))
        before = b.block
        b.branch(head)
        b.position_at_end(head)
        counter = b.phi(I64)
        counter.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", counter, end), body, done)
        b.position_at_end(body)
        yield counter
        counter.add_incoming(b.add(counter, const(step)), b.block)
        b.branch(head)
        b.position_at_end(done)

    @contextmanager
    def case(self, condition: Any) -> Iterator[None]:
        """``if condition``."""
        inside, after = self.b.append_basic_block("if"), self.b.append_basic_block("fi")
        self.b.cbranch(condition, inside, after)
        self.b.position_at_end(inside)
        yield
        self.b.branch(after)
        self.b.position_at_end(after)

    # Vectors

    def constant(self, value: float) -> ir.Constant:
        """A vector of one number."""
        return ir.Constant(self.vector, [value] * self.lanes)

    def splat(self, value: Any) -> Any:
        kind = ir.VectorType(value.type, self.lanes)
        nothing = ir.Constant(kind, ir.Undefined)
        first = self.b.insert_element(nothing, value, ir.Constant(I32, 0))
        return self.b.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes))

    def lanes_below(self, count: Any) -> Any:
        """A mask of the first ``count`` lanes; all, where count is larger."""
        capped = self.b.trunc(self.smaller(count, const(self.lanes)), I32)
        places = ir.Constant(ir.VectorType(I32, self.lanes), list(range(self.lanes)))
        return self.b.icmp_signed("<", places, self.splat(capped))

    def load(self, address: Any, mask: Any = None) -> Any:
        """A vector; lanes outside the mask are 0 and not read."""
        pointer = self.pointer(address, self.vector)
        if mask is None:
            value = self.b.load(pointer)
            value.align = self.item
            return value
        kind = ir.FunctionType(self.vector, [pointer.type, I32, self.mask, self.vector])
        function = self._function(f"llvm.masked.load.v{self.lanes}f{8 * self.item}.p0v{self.lanes}f{8 * self.item}", kind)
        return self.b.call(function, [pointer, ir.Constant(I32, self.item), mask, self.constant(0.0)])

    def store(self, value: Any, address: Any, mask: Any = None) -> None:
        """Lanes outside the mask are not written."""
        pointer = self.pointer(address, self.vector)
        if mask is None:
            self.b.store(value, pointer).align = self.item
            return
        kind = ir.FunctionType(ir.VoidType(), [self.vector, pointer.type, I32, self.mask])
        function = self._function(f"llvm.masked.store.v{self.lanes}f{8 * self.item}.p0v{self.lanes}f{8 * self.item}", kind)
        self.b.call(function, [value, pointer, ir.Constant(I32, self.item), mask])

    def load_scalar(self, address: Any) -> Any:
        return self.b.load(self.pointer(address, self.scalar))

    def store_scalar(self, value: Any, address: Any) -> None:
        self.b.store(value, self.pointer(address, self.scalar))

    def prefetch(self, address: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [_I8P, I32, I32, I32])
        read, keep, data = (ir.Constant(I32, value) for value in (0, 3, 1))
        self.b.call(self._function("llvm.prefetch.p0i8", kind), [self.b.inttoptr(address, _I8P), read, keep, data])

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        """x y + z, in one instruction where the machine has one."""
        return self.b.fadd(self.b.fmul(x, y, flags=_CONTRACT), z, flags=_CONTRACT)

    def larger(self, x: Any, y: Any) -> Any:
        """The larger of two; y where one is not a number."""
        return self.b.select(self.b.fcmp_ordered(">", x, y), x, y)

    def sum_lanes(self, value: Any) -> Any:
        """The sum of a vector's elements, pairwise."""
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            halves = [
                self.b.shuffle_vector(
                    value,
                    ir.Constant(value.type, ir.Undefined),
                    ir.Constant(ir.VectorType(I32, lanes), list(range(start, start + lanes))),
                )
                for start in (0, lanes)
            ]
            value = self.b.fadd(*halves)
        return self.b.extract_element(value, ir.Constant(I32, 0))

    def exp(self, x: Any) -> Any:
        """The exponential of x <= 0; 0 where it comes near the smallest normal number; not a number stays so.

        x = n ln 2 + r, |r| <= ln 2 / 2; e^r by its Taylor series, whose remainder is below half a unit in the last place;
        2^n by shifting n into the exponent. n is rounded by adding 1.5 * 2^(bits of the mantissa).
        """
        b, single = self.b, self.item == 4
        bits, terms, lowest = (23, 8, -87.0) if single else (52, 14, -708.0)
        high = 0.693359375 if single else 6.93147180369123816490e-01
        low = math.log(2.0) - high
        if not single:
            low = 1.90821492927058770002e-10
        magic = self.constant(1.5 * 2.0**bits)
        shifted = b.fadd(b.fmul(x, self.constant(1.0 / math.log(2.0))), magic)
        n = b.fsub(shifted, magic)
        r = self.multiply_add(n, self.constant(-low), self.multiply_add(n, self.constant(-high), x))
        value = self.constant(1.0 / math.factorial(terms - 1))
        for k in range(terms - 2, -1, -1):
            value = self.multiply_add(value, r, self.constant(1.0 / math.factorial(k)))
        integers = ir.VectorType(self.integer, self.lanes)
        exponent = b.shl(b.bitcast(shifted, integers), ir.Constant(integers, [bits] * self.lanes))
        scaled = b.bitcast(b.add(b.bitcast(value, integers), exponent), self.vector)
        result = b.select(b.fcmp_unordered("uno", x, x), x, scaled)
        return b.select(b.fcmp_ordered("<", x, self.constant(lowest)), self.constant(0.0), result)

    def _function(self, name: str, kind: Any) -> Any:
        return cgutils.get_or_insert_function(self.b.module, kind, name)


class RowFormat:
    """How rows stand in memory: as the code's own numbers, or as bf16, which is widened when read and rounded when written.

    Args:
        half: they are bf16.
        lower: how far behind them the lower halves of their bits are, so that nothing is rounded.

    Attributes:
        item: bytes of an element.
        apart: every how many-th vector of a row begins a new line of the cache.
        ahead: how many edges ahead a row is prefetched.
    """

    def __init__(self, v: VectorCode, half: bool, lower: Any = None) -> None:
        self._v, self._half, self._lower = v, half, lower
        self.item, self.ahead = (2, AHEAD_HALF) if half else (v.item, AHEAD)
        self.apart = VECTOR_BYTES // (self.item * v.lanes)
        self._short, self._wide = ir.VectorType(_I16, v.lanes), ir.VectorType(I32, v.lanes)
        self._shift = ir.Constant(self._wide, [16] * v.lanes)

    def at(self, row: Any, element: Any) -> Any:
        """The address of an element of a row."""
        return self._v.b.add(row, self._v.b.mul(element, const(self.item)))

    def prefetch(self, row: Any, elements: list[Any]) -> None:
        """Fetch the vectors of a row that begin at these elements, which follow one another."""
        for k, element in enumerate(elements):
            if k % self.apart == 0 or k == len(elements) - 1:
                self._v.prefetch(self.at(row, element))

    def load_bits(self, row: Any, element: Any, mask: Any = None) -> Any:
        """A vector of bf16 numbers as they stand in memory; lanes outside the mask are 0 and not read."""
        v, pointer = self._v, self._v.pointer(self.at(row, element), self._short)
        if mask is None:
            value = v.b.load(pointer)
            value.align = self.item
            return value
        kind = ir.FunctionType(self._short, [pointer.type, I32, v.mask, self._short])
        function = v._function(f"llvm.masked.load.v{v.lanes}i16.p0v{v.lanes}i16", kind)
        nothing = ir.Constant(self._short, [0] * v.lanes)
        return v.b.call(function, [pointer, ir.Constant(I32, self.item), mask, nothing])

    def load(self, row: Any, element: Any, mask: Any = None) -> Any:
        """A vector of numbers; lanes outside the mask are 0 and not read."""
        v, address = self._v, self.at(row, element)
        if not self._half:
            return v.load(address, mask)
        bits = v.b.shl(v.b.zext(self.load_bits(row, element, mask), self._wide), self._shift)
        if self._lower is not None:
            assert mask is None
            lower = v.b.load(v.pointer(v.b.add(address, self._lower), self._short))
            lower.align = self.item
            bits = v.b.or_(bits, v.b.zext(lower, self._wide))
        return v.b.bitcast(bits, v.vector)

    def store(self, value: Any, row: Any, element: Any, mask: Any = None) -> None:
        """Lanes outside the mask are not written."""
        v, address = self._v, self.at(row, element)
        if not self._half:
            v.store(value, address, mask)
            return
        pointer, bits = v.pointer(address, self._short), v.b.bitcast(value, self._wide)
        if self._lower is not None:
            assert mask is None
            lower = v.pointer(v.b.add(address, self._lower), self._short)
            v.b.store(v.b.trunc(bits, self._short), lower).align = self.item
            v.b.store(v.b.trunc(v.b.lshr(bits, self._shift), self._short), pointer).align = self.item
            return
        short = narrowed(v.b, bits, value)
        if mask is None:
            v.b.store(short, pointer).align = self.item
            return
        kind = ir.FunctionType(ir.VoidType(), [self._short, pointer.type, I32, v.mask])
        function = v._function(f"llvm.masked.store.v{v.lanes}i16.p0v{v.lanes}i16", kind)
        v.b.call(function, [short, pointer, ir.Constant(I32, self.item), mask])


def row_intrinsic(emit: Callable[..., None]) -> Any:
    """Make ``emit(code, integers, scalar, *formats)`` callable from compiled code as ``f(integers, scalar, kinds)``.

    ``integers`` and ``scalar`` as for ``vector_intrinsic``. ``kinds`` is a tuple of an element of each array of rows: its type
    says in which format these rows are. int16: they are bf16, and the last integer is how far behind them an array of the
    lower halves of their bits is.
    """

    def typed(typingctx: Any, integers: Any, scalar: Any, kinds: Any) -> Any:
        signature = types.void(types.UniTuple(types.int64, len(integers)), scalar, kinds)  # type: ignore[attr-defined]
        halves, split = [kind in (types.uint16, types.int16) for kind in kinds], [kind == types.int16 for kind in kinds]

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            unpacked = cgutils.unpack_tuple(builder, arguments[0])
            v = VectorCode(builder, signature.args[1] == types.float32)
            lower = [unpacked[-1] if is_split else None for is_split in split]
            emit(v, unpacked, arguments[1], *(RowFormat(v, *pair) for pair in zip(halves, lower, strict=True)))
            return context.get_dummy_value()

        return signature, code

    typed.__name__ = emit.__name__
    return intrinsic(typed)


def vector_intrinsic(emit: Callable[..., None]) -> Any:
    """Make ``emit(code, integers, scalar)`` callable from compiled code as ``f(integers, scalar)``.

    ``integers`` is a tuple of int64: addresses, counts, strides. The type of ``scalar`` says for which one code is made.
    """

    def typed(typingctx: Any, integers: Any, scalar: Any) -> Any:
        signature = types.void(types.UniTuple(types.int64, len(integers)), scalar)  # type: ignore[attr-defined]

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            unpacked = cgutils.unpack_tuple(builder, arguments[0])
            emit(VectorCode(builder, signature.args[1] == types.float32), unpacked, arguments[1])
            return context.get_dummy_value()

        return signature, code

    typed.__name__ = emit.__name__
    return intrinsic(typed)


@vector_intrinsic
def prefetch_row(v: VectorCode, integers: Any, scalar: Any) -> None:
    """Fetch a row that will be added to. Arguments: its address, and its bytes."""
    row, size = integers
    with v.loop(const(0), size, VECTOR_BYTES) as offset:
        v.prefetch(v.b.add(row, offset))
