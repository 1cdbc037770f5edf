"""Products of small matrices of bf16 numbers on a CPU's tiles (AMX), and what brings tables into the order that tiles read.

A tile is 16 rows of 64 bytes. ``C += A B`` of tiles: A holds 16 rows of 32 numbers, B 16 rows of 16 pairs, C 16 rows of 16 fp32
sums:

    C[m, n] += sum over p = 0 .. 15 of A[m, 2 p] B[p, n, 0] + A[m, 2 p + 1] B[p, n, 1]

So B holds pairs of two rows of a matrix, one beside the other; a tile of these pairs, as 16 x 16 numbers of 32 bits, is the
transpose of the tile A that holds the same numbers.

These take (integers, scalar), most of them kinds of rows as well: integers are addresses, strides in bytes and counts; the
scalar is any fp32 number. bf16 rows are read as they are, fp32 ones are rounded. Between ``begin_tiles`` and ``end_tiles`` a
thread's tiles have their shapes; nothing else may use them there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from sargnn.backends.cpu.vector_code import I32, RowFormat, VectorCode, const, row_intrinsic, vector_intrinsic
from sargnn.bf16 import narrowed

TILE_BYTES, PAIRS = 1024, 16
STEP, BLOCK = 32, 32
"""Numbers of A's rows that one product of tiles takes, and rows and columns of what two by two of them give."""
_I8, _I16 = ir.IntType(8), ir.IntType(16)


SHAPES = np.zeros(64, np.uint8)
"""All tiles with 16 rows of 64 bytes, as the instruction that says so reads it."""
SHAPES[0] = 1
SHAPES[16:32].view(np.uint16)[:] = 64
SHAPES[48:56] = 16


def _call(v: VectorCode, name: str, *arguments: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    v.b.call(v._function(f"llvm.x86.{name}", kind), arguments)


def _tile(number: int) -> ir.Constant:
    return ir.Constant(_I8, number)


def _address(v: VectorCode, address: Any) -> Any:
    return v.b.inttoptr(address, _I8.as_pointer())


@vector_intrinsic
def begin_tiles(v: VectorCode, integers: Any, scalar: Any) -> None:
    """The address of ``SHAPES``."""
    _call(v, "ldtilecfg", _address(v, integers[0]))


@vector_intrinsic
def end_tiles(v: VectorCode, integers: Any, scalar: Any) -> None:
    _call(v, "tilerelease")


def _multiply(v: VectorCode, integers: Any, *, accumulate: bool) -> None:
    a, a_stride, a_step, a_second, b, steps, c, c_stride, c_second = integers
    places = [(tile, v.b.add(c, const(64 * (tile % 2)))) for tile in range(4)]
    places = [(tile, v.b.add(place, c_second) if tile > 1 else place) for tile, place in places]
    for tile, place in places:
        if accumulate:
            _call(v, "tileloadd64", _tile(tile), _address(v, place), c_stride)
        else:
            _call(v, "tilezero", _tile(tile))
    with v.loop(const(0), steps) as step:
        left, right = v.at(a, step, a_step), v.at(b, step, 2 * TILE_BYTES)
        _call(v, "tileloadd64", _tile(4), _address(v, left), a_stride)
        _call(v, "tileloadd64", _tile(6), _address(v, right), const(64))
        _call(v, "tdpbf16ps", _tile(0), _tile(4), _tile(6))
        _call(v, "tileloadd64", _tile(7), _address(v, v.b.add(right, const(TILE_BYTES))), const(64))
        _call(v, "tdpbf16ps", _tile(1), _tile(4), _tile(7))
        _call(v, "tileloadd64", _tile(5), _address(v, v.b.add(left, a_second)), a_stride)
        _call(v, "tdpbf16ps", _tile(2), _tile(5), _tile(6))
        _call(v, "tdpbf16ps", _tile(3), _tile(5), _tile(7))
    for tile, place in places:
        _call(v, "tilestored64", _tile(tile), _address(v, place), c_stride)


@vector_intrinsic
def multiply_tiles(v: VectorCode, integers: Any, scalar: Any) -> None:
    """C = A B, 32 x 32 fp32 numbers.

    Arguments: A's first tile, its stride, from one step to the next, from its first 16 rows to the others; B's first tile, two
    of 16 columns for each step, one behind the other; steps; C, its stride, from its first 16 rows to the others.
    """
    _multiply(v, integers, accumulate=False)


@vector_intrinsic
def add_multiplied_tiles(v: VectorCode, integers: Any, scalar: Any) -> None:
    """C += A B; see ``multiply_tiles``."""
    _multiply(v, integers, accumulate=True)


def _short(v: VectorCode, rows: RowFormat, row: Any, element: Any, mask: Any) -> Any:
    """bf16 numbers of a row; 0 outside the mask."""
    if rows.item == 2:
        return rows.load_bits(row, element, mask)
    value = rows.load(row, element, mask)
    return narrowed(v.b, v.b.bitcast(value, ir.VectorType(I32, v.lanes)), value)


def _pairs(v: VectorCode, integers: Any, rows: RowFormat) -> list[Any]:
    """16 vectors: of rows 2 p and 2 p + 1 the pairs of 16 columns."""
    _, first, stride, column, width = integers
    mask, pairs, wide = v.lanes_below(v.b.sub(width, column)), [], ir.VectorType(I32, v.lanes)
    shift = ir.Constant(wide, [16] * v.lanes)
    for p in range(PAIRS):
        shorts = (_short(v, rows, v.at(first, const(2 * p + k), stride), column, mask) for k in range(2))
        low, high = (v.b.zext(short, wide) for short in shorts)
        pairs.append(v.b.or_(low, v.b.shl(high, shift)))
    return pairs


def _transposed(v: VectorCode, rows: list[Any]) -> list[Any]:
    """A 16 x 16 matrix of 32-bit numbers, a vector for each row: blocks that lie across from each other change places."""
    distance = 1
    while distance < len(rows):
        for i in range(len(rows)):
            if i & distance:
                continue
            row, other = rows[i], rows[i + distance]
            low = [16 + lane - distance if lane & distance else lane for lane in range(16)]
            high = [16 + lane if lane & distance else lane + distance for lane in range(16)]
            rows[i], rows[i + distance] = (
                v.b.shuffle_vector(row, other, ir.Constant(ir.VectorType(I32, 16), places)) for places in (low, high)
            )
        distance *= 2
    return rows


def _store(v: VectorCode, out: Any, rows: list[Any]) -> None:
    for p, row in enumerate(rows):
        v.b.store(row, v.pointer(v.b.add(out, const(64 * p)), row.type)).align = 4


@row_intrinsic
def pack_pairs(v: VectorCode, integers: Any, scalar: Any, rows: RowFormat) -> None:
    """A tile B of 32 rows and 16 columns of a table. Arguments: the tile, the first row, its stride, first column, width."""
    _store(v, integers[0], _pairs(v, integers, rows))


@row_intrinsic
def pack_columns(v: VectorCode, integers: Any, scalar: Any, rows: RowFormat) -> None:
    """A tile A of 16 columns of a table, as its rows, and 32 rows; see ``pack_pairs``."""
    _store(v, integers[0], _transposed(v, _pairs(v, integers, rows)))


@vector_intrinsic
def pack_lanes(v: VectorCode, integers: Any, scalar: Any) -> None:
    """A tile B of a table that is the transpose of bf16 rows. Arguments: the tile, the first of 16 rows at its column, its
    stride."""
    out, first, stride = integers
    kind, rows = ir.VectorType(I32, 16), []
    for p in range(16):
        rows.append(v.b.load(v.pointer(v.at(first, const(p), stride), kind)))
        rows[-1].align = 2
    _store(v, out, _transposed(v, rows))


@row_intrinsic
def copy_row(v: VectorCode, integers: Any, scalar: Any, rows: RowFormat) -> None:
    """A row as bf16 numbers, with zeros up to the next multiple of 16. Arguments: where, the row, width."""
    out, row, width = integers
    kind = ir.VectorType(_I16, v.lanes)
    with v.loop(const(0), width, v.lanes) as column:
        short = _short(v, rows, row, column, v.lanes_below(v.b.sub(width, column)))
        v.b.store(short, v.pointer(v.at(out, column, 2), kind)).align = 2


def _put(v: VectorCode, integers: Any, rows: RowFormat, *, accumulate: bool) -> None:
    out, stride, block, count, columns, bias = integers
    halves = [
        (const(16 * k), v.lanes_below(v.b.sub(columns, const(16 * k))), v.load(v.b.add(bias, const(64 * k)))) for k in range(2)
    ]
    with v.loop(const(0), count) as i:
        row, sums = v.at(out, i, stride), v.at(block, i, 4 * BLOCK)
        for k, (column, mask, shift) in enumerate(halves):
            value = v.b.fadd(v.load(v.b.add(sums, const(64 * k))), shift)
            if accumulate:
                value = v.b.fadd(rows.load(row, column, mask), value)
            rows.store(value, row, column, mask)


@row_intrinsic
def write_block(v: VectorCode, integers: Any, scalar: Any, rows: RowFormat) -> None:
    """Rows of a table from a block of 32 x 32 numbers and a bias.

    Arguments: the first row at its column, its stride, the block, how many rows and columns, the bias at that column.
    """
    _put(v, integers, rows, accumulate=False)


@row_intrinsic
def add_block(v: VectorCode, integers: Any, scalar: Any, rows: RowFormat) -> None:
    """The same, added to what is there; see ``write_block``."""
    _put(v, integers, rows, accumulate=True)
