"""Products of tables on a CPU's tiles: of bf16 entries, summed in fp32 over all of K, or over all rows, and rounded once.

A row's products do not depend on the rows beside it. Sums over rows are taken by each thread of its own run of rows, and added
in the threads' order.

**Products of fp32 tables.** An entry is a sum of bf16 terms, as Henry, Tang and Heinecke (2019) have it: ``x_0 = round(x)``,
``x_1 = round(x - x_0)``, ``x_2 = round(x - x_0 - x_1)``. A product is the sum of the products of terms x_i and w_j with
i + j < T: three of T = 2 terms, six of 3. For x in [2^e, 2^(e+1)) half a unit in the last place of bf16 is 2^(e-8), so

    |x - x_0| <= 2^-8 |x|        |x - x_0 - x_1| <= 2^-17 |x|        x = x_0 + x_1 + x_2

The differences are exact in fp32, and of the 24 bits of x each term takes 8. What a product of two entries lacks is

    T = 2:  x w - (x_0 + x_1) (w_0 + w_1) + x_1 w_1    at most  (2 * 2^-17 + 2^-16 + 2^-34) |x w|  <  1.0001 * 2^-15 |x w|
    T = 3:  x_1 w_2 + x_2 w_1 + x_2 w_2                at most  (2 * 2^-25 + 2^-34) |x w|          <  1.001 * 2^-24 |x w|

the latter what fp32 loses where it rounds one product. Products of terms are exact in fp32. They are summed K at a time, and
so are the P = 3 or 6 sums; each sum rounds by 2^-24. The magnitudes of all products of terms are less than 1.02 |x w|. So

    |out - x w|  <=  (1.0001 * 2^-15 or 1.001 * 2^-24, and 1.02 (K + P) 2^-24)  sum over k of |x_k w_k|

and 2^-24 P |b| where out began as b; PyTorch's own loses K 2^-24 of that sum. In ``x^T g`` N stands for K, and the P sums of
each run of rows count. Terms below 2^-126 are taken for 0, as tiles do with all that is as small. An infinite entry, and a
finite one that rounds to infinity in bf16, from 2^128 - 2^119 on, has a difference that is not a number; so are its products
then, where fp32 has infinite or finite ones.

Letters: N rows, K and O columns, T terms, P products of terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.backends.cpu.tile_code import (
    BLOCK,
    SHAPES,
    STEP,
    TILE_BYTES,
    add_block,
    add_multiplied_tiles,
    begin_tiles,
    copy_row,
    end_tiles,
    multiply_tiles,
    pack_columns,
    pack_lanes,
    pack_pairs,
    write_block,
)
from sargnn.cpu import has_tiles

_CHUNK_ROWS = 512
_LINE = 64
_TERM_ROWS = 2 * _CHUNK_ROWS
"""At least so many rows have tables of their terms at a time, which stay in a core's cache."""
_ZERO = np.float32(0)


def multiply(x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None = None, *, add: bool = False) -> float:
    """``x w + b`` is written to ``out``, or added to it; the number of floating-point operations.

    Args:
        x: [N, K], bf16, or fp32 whose entries are rounded.
        w: [K, O], rounded likewise.
        bias: [O].
        out: [N, O], bf16 or fp32; its columns lie beside each other, as those of x do.
    """
    rows, columns = out.shape
    if not rows or not columns:
        return 0.0
    assert out.stride(1) == 1 or columns == 1
    x = _by_rows(x)
    steps, blocks = -(-x.shape[1] // STEP), -(-columns // BLOCK)
    shift = np.zeros(blocks * BLOCK, np.float32)
    if bias is not None:
        shift[:columns] = bias.detach().numpy()
    _multiply(
        _table(x),
        _table(out),
        x.shape[1],
        columns,
        _packed(w, steps, blocks),
        steps,
        shift,
        add,
        SHAPES,
        _bounds(rows, BLOCK),
        (_element(x),),
        (_element(out),),
    )
    return 2.0 * rows * columns * x.shape[1]


def sum_of_products(x: Tensor, g: Tensor) -> Tensor:
    """``x^T g`` [K, O], fp32. x: [N, K] and g: [N, O], both bf16, or fp32 whose entries are rounded."""
    x, g = _by_rows(x), _by_rows(g)
    k, o, bounds = x.shape[1], g.shape[1], _bounds(len(x), _CHUNK_ROWS)
    shape = -(-k // BLOCK) * BLOCK, -(-o // BLOCK) * BLOCK
    totals = torch.zeros(len(bounds) - 1, *shape).numpy()  # from the beginning of a line of the cache
    rests = _rest(x), _rest(g)
    _add_sums(_table(x), _table(g), *(_table(rest) for rest in rests), k, o, SHAPES, bounds, totals, (_element(x),))
    total = totals[0]
    for other in totals[1:]:
        total += other
    return torch.from_numpy(total)[:k, :o]


def multiply_terms(terms: int, x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None = None, *, add: bool = False) -> float:
    """``multiply`` of entries that are sums of so many bf16 terms; with 1 that itself.

    Args:
        terms: T.
        x: [N, K], fp32; with 1 term also bf16.
        w: [K, O], likewise.
        bias: [O].
        out: [N, O], fp32; with 1 term also bf16.

    Returns:
        The number of floating-point operations of all products of terms.
    """
    if terms == 1:
        return multiply(x, w, out, bias, add=add)
    right, flops = _Terms(terms, w).of(w), 0.0
    for rows, left in _runs_of_terms(terms, x):
        first, begun = bias, add
        for i, j in _pairs(terms):
            flops += multiply(left[i], right[j], out[rows], first, add=begun)
            first, begun = None, True
    return flops


def sum_of_term_products(terms: int, x: Tensor, g: Tensor) -> tuple[Tensor, float]:
    """``sum_of_products`` of entries that are sums of so many bf16 terms, and the number of floating-point operations.

    Args:
        terms: T; with 1 it is that itself.
        x: [N, K], fp32; with 1 term also bf16.
        g: [N, O], likewise.
    """
    flops = 2.0 * len(x) * x.shape[1] * g.shape[1]
    if terms == 1:
        return sum_of_products(x, g), flops
    total = torch.zeros(x.shape[1], g.shape[1])
    for (_, left), (_, right) in zip(_runs_of_terms(terms, x), _runs_of_terms(terms, g), strict=True):
        for i, j in _pairs(terms):
            total += sum_of_products(left[i], right[j])
    return total, flops * len(_pairs(terms))


def _pairs(terms: int) -> list[tuple[int, int]]:
    """Which terms are multiplied with which, the smallest first: they are summed before they meet what would round them off."""
    return [(i, order - i) for order in reversed(range(terms)) for i in range(order + 1)]


class _Terms:
    """Makes terms of tables: fp32 ones, whose entries are rounded where they are multiplied. So the first is the table itself.

    Args:
        terms: T.
        like: [rows, columns], fp32: what the tables have at most; strides likewise.
    """

    def __init__(self, terms: int, like: Tensor) -> None:
        self._rounded = torch.empty_like(like, dtype=torch.bfloat16)
        self._rests = [torch.empty_like(like) for _ in range(terms - 1)]

    def of(self, x: Tensor) -> list[Tensor]:
        """Its terms, each like x; they are overwritten by the next table's."""
        made = [x.detach()]
        for room in self._rests:
            rest = room[: len(x)].copy_(self._rounded[: len(x)].copy_(made[-1]))
            made.append(torch.sub(made[-1], rest, out=rest))
        return made


def _runs_of_terms(terms: int, x: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
    """Runs of x's rows, enough for all threads, and their terms. The tables for these are as large whatever x is."""
    x = _by_rows(x)
    size = max(_TERM_ROWS, _CHUNK_ROWS * numba.get_num_threads())
    make = _Terms(terms, x.new_empty(size, x.shape[1]))
    for first in range(0, len(x), size):
        rows = slice(first, min(first + size, len(x)))
        yield rows, make.of(x[rows])


def _by_rows(x: Tensor) -> Tensor:
    x = x.detach()
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def _table(x: Tensor) -> tuple[int, int, int]:
    """Address, bytes from row to row, bytes of an element."""
    return x.data_ptr(), x.stride(0) * x.element_size(), x.element_size()


def _rest(x: Tensor) -> Tensor:
    """The rows behind the last whole step, and zeros."""
    rest = x.new_zeros(STEP, x.shape[1])
    rest[: len(x) % STEP] = x[len(x) - len(x) % STEP :]
    return rest


def _element(x: Tensor) -> Any:
    return np.uint16(0) if x.dtype == torch.bfloat16 else _ZERO


def _bounds(rows: int, at_least: int) -> np.ndarray:
    """A run of rows for each thread, of whole blocks, int64."""
    pieces = min(numba.get_num_threads(), max(1, rows // at_least))
    return np.minimum(np.linspace(0, -(-rows // at_least), pieces + 1).astype(np.int64) * at_least, rows)


def _packed(w: Tensor, steps: int, blocks: int) -> np.ndarray:
    """w [K, O] as the tiles of B, by blocks of columns, then steps; zeros beyond its ends."""
    w = w.detach()
    across = w.stride(1) != 1 and w.stride(0) == 1
    whole = (blocks * BLOCK, steps * STEP) if across else (steps * STEP, blocks * BLOCK)
    given = w.T if across else w
    if given.dtype != torch.bfloat16 or given.shape != whole or not given.is_contiguous():
        padded = torch.zeros(whole, dtype=torch.bfloat16)
        padded[: given.shape[0], : given.shape[1]] = given
        given = padded
    packed = np.empty(steps * blocks * 2 * TILE_BYTES + _LINE, np.uint8)
    _pack(given.data_ptr(), given.stride(0) * 2, across, steps, blocks, packed)
    return packed


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    if dtype == torch.float64 or not has_tiles():
        return []
    x, table, number = torch.empty(0, dtype=dtype), (1, 1, 1), np.zeros(1, np.float32)
    bounds, packed = np.zeros(2, np.int64), np.zeros(1, np.uint8)
    sums = np.zeros((1, 1, 1), np.float32)
    return [
        (_pack, (1, 1, True, 1, 1, packed)),
        *(
            (_multiply, (table, table, 1, 1, packed, 1, number, True, SHAPES, bounds, (_element(x),), (out,)))
            for out in ((_element(x), _ZERO) if x.dtype == torch.bfloat16 else (_ZERO,))
        ),
        (_add_sums, (table, table, table, table, 1, 1, SHAPES, bounds, sums, (_element(x),))),
    ]


@numba.njit(inline="always")
def _line_of(memory: Any) -> Any:  # pragma: no cover - compiled
    """The address of the first whole line of the cache in it: rows of tiles that cross lines take twice as long."""
    return (np.int64(memory.ctypes.data) + (_LINE - 1)) & ~np.int64(_LINE - 1)


@numba.njit(cache=True, nogil=True)
def _pack(rows: Any, stride: Any, across: Any, steps: Any, blocks: Any, packed: Any) -> None:  # pragma: no cover
    zero, kinds, out = np.float32(0), (np.uint16(0),), _line_of(packed)
    for block in range(blocks):
        for step in range(steps):
            for k in range(2):
                column = np.int64(block * BLOCK + 16 * k)
                if across:
                    pack_lanes((out, rows + column * stride + step * STEP * 2, stride), zero)
                else:
                    pack_pairs((out, rows + step * STEP * stride, stride, column, np.int64(blocks * BLOCK)), zero, kinds)
                out += TILE_BYTES


@numba.njit(parallel=True, cache=True, nogil=True)
def _multiply(
    x: Any,
    out: Any,
    width: Any,
    columns: Any,
    packed: Any,
    steps: Any,
    bias: Any,
    add: Any,
    shapes: Any,
    bounds: Any,
    kinds: Any,
    out_kinds: Any,
) -> None:  # pragma: no cover - compiled
    """``packed``: w as tiles of B. ``bias``: fp32, as many as tiles have columns. ``bounds``: a run of rows for each thread."""
    zero, bytes_of_block = np.float32(0), np.int64(steps * 2 * TILE_BYTES)
    direct, panel_row = x[2] == 2 and width == steps * STEP, np.int64(steps * STEP * 2)
    for c in numba.prange(len(bounds) - 1):
        panels, blocks = np.zeros(BLOCK * panel_row + _LINE, np.uint8), np.empty(4 * BLOCK * BLOCK + _LINE, np.uint8)
        panel, block, right = _line_of(panels), _line_of(blocks), _line_of(packed)
        begin_tiles((np.int64(shapes.ctypes.data),), zero)
        for first in range(bounds[c], bounds[c + 1], BLOCK):
            rows = min(bounds[c + 1] - first, BLOCK)
            left, stride = np.int64(x[0] + first * x[1]), np.int64(x[1])
            if rows < BLOCK or not direct:
                for i in range(rows):
                    copy_row((panel + i * panel_row, left + i * stride, np.int64(width)), zero, kinds)
                left, stride = panel, panel_row
            for o in range(0, columns, BLOCK):
                multiply_tiles(
                    (
                        left,
                        stride,
                        np.int64(2 * STEP),
                        16 * stride,
                        right + o // BLOCK * bytes_of_block,
                        np.int64(steps),
                        block,
                        np.int64(4 * BLOCK),
                        np.int64(64 * BLOCK),
                    ),
                    zero,
                )
                put = (
                    np.int64(out[0] + first * out[1] + o * out[2]),
                    np.int64(out[1]),
                    block,
                    np.int64(rows),
                    np.int64(columns - o),
                    np.int64(bias.ctypes.data + 4 * o),
                )
                if add:
                    add_block(put, zero, out_kinds)
                else:
                    write_block(put, zero, out_kinds)
        end_tiles((np.int64(0),), zero)


@numba.njit(parallel=True, cache=True, nogil=True)
def _add_sums(
    x: Any, g: Any, x_rest: Any, g_rest: Any, k: Any, o: Any, shapes: Any, bounds: Any, totals: Any, kinds: Any
) -> None:  # pragma: no cover - compiled
    """Each thread's sums of its run of rows.

    Args:
        x_rest, g_rest: the rows that are left over by steps, and zeros.
        totals: fp32 [threads, K and O up to whole blocks].
    """
    zero, high, wide = np.float32(0), np.int64(totals.shape[1]), np.int64(totals.shape[2])
    for c in numba.prange(len(bounds) - 1):
        most = _CHUNK_ROWS // STEP
        lefts = np.empty(high // 16 * most * TILE_BYTES + _LINE, np.uint8)
        rights = np.empty(wide // 16 * most * TILE_BYTES + _LINE, np.uint8)
        left, right = _line_of(lefts), _line_of(rights)
        total = np.int64(totals[c].ctypes.data)
        begin_tiles((np.int64(shapes.ctypes.data),), zero)
        for first in range(bounds[c], bounds[c + 1], _CHUNK_ROWS):
            rows = min(bounds[c + 1] - first, _CHUNK_ROWS)
            whole, steps = rows // STEP, (rows + STEP - 1) // STEP
            for step in range(steps):
                last = step == whole
                at, stride = (g_rest[0], g_rest[1]) if last else (g[0] + (first + step * STEP) * g[1], g[1])
                for column in range(0, wide, 16):
                    place = right + ((column // BLOCK * steps + step) * 2 + column // 16 % 2) * TILE_BYTES
                    pack_pairs((place, np.int64(at), np.int64(stride), np.int64(column), np.int64(o)), zero, kinds)
                at, stride = (x_rest[0], x_rest[1]) if last else (x[0] + (first + step * STEP) * x[1], x[1])
                for column in range(0, high, 16):
                    place = left + ((column // BLOCK * steps + step) * 2 + column // 16 % 2) * TILE_BYTES
                    pack_columns((place, np.int64(at), np.int64(stride), np.int64(column), np.int64(k)), zero, kinds)
            for row in range(0, high, BLOCK):
                for block in range(wide // BLOCK):
                    add_multiplied_tiles(
                        (
                            left + row // BLOCK * steps * 2 * TILE_BYTES,
                            np.int64(64),
                            np.int64(2 * TILE_BYTES),
                            np.int64(TILE_BYTES),
                            right + block * steps * 2 * TILE_BYTES,
                            np.int64(steps),
                            total + (row * wide + block * BLOCK) * 4,
                            wide * 4,
                            16 * wide * 4,
                        ),
                        zero,
                    )
        end_tiles((np.int64(0),), zero)
