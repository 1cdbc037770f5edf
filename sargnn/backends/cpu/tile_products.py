"""Products of tables on a CPU's tiles: of bf16 entries, summed in fp32 over all of K, or over all rows, and rounded once.

A row's products do not depend on the rows beside it. Sums over rows are taken by each thread of its own run of rows, and added
in the threads' order.

Letters: N rows, K and O columns.
"""

from __future__ import annotations

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
    has_tiles,
    multiply_tiles,
    pack_columns,
    pack_lanes,
    pack_pairs,
    write_block,
)

_CHUNK_ROWS = 512
_LINE = 64
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
