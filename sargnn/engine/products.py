"""Products of tables of rows. Of fp32 and fp64 ones they are PyTorch's, bit for bit.

Those of bf16 entries are taken on the CPU's tiles where it has some (``kernels.fused.tile_products``): summed in fp32, rounded
once. Elsewhere PyTorch hands them to oneDNN, which compiles code for every shape and keeps it for a thousand of them, each a
megabyte. So there they are taken of blocks of one or two sizes, the last one filled up with zeros, and what is added to fp32
numbers is rounded to bf16 before.

Letters: N rows, K and O columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from sargnn.bf16 import multiplies_in_bf16, products_in_bf16, wide
from sargnn.kernels.fused import tile_products
from sargnn.kernels.fused.tile_code import has_tiles

_ROWS, _FEW = 1024, 128
"""Of a block: few enough that a widened one stays in a core's cache. Short tables end in smaller ones."""
_SHORT = 8 * _ROWS


def product(x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x w + b`` is written to ``out`` [N, O]. x: [N, K]. w: [K, O], bias: [O].

    Factors are rounded to the dtype of x; where ``out`` is of a wider one, nothing else is.
    """
    if _tiles(x):
        tile_products.multiply(x, w, out, bias)
        return out
    if x.dtype != out.dtype:
        with products_in_bf16():
            for rows, size in _blocks(len(x)):
                _take(_write, size, x[rows].to(out.dtype), w, out[rows], bias)
        return out
    w, bias = w.to(x.dtype), None if bias is None else bias.to(x.dtype)
    if not multiplies_in_bf16(x):
        _write(x, w, out, bias)
        return out
    for rows, size in _blocks(len(x)):
        _take(_write, size, x[rows], w, out[rows], bias)
    return out


def add_product(total: Tensor, x: Tensor, w: Tensor) -> None:
    """``total += x w``. total: [N, O], of the dtype of x [N, K] or fp32. w: [K, O]."""
    if _tiles(x):
        tile_products.multiply(x, w, total, add=True)
        return
    w = w.to(x.dtype)
    if x.dtype != total.dtype:
        from sargnn.kernels.fused.mixed_rows import add_table

        room = x.new_empty(_ROWS, w.shape[1])
        for rows, size in _blocks(len(x)):
            part = room[: rows.stop - rows.start]
            _take(_write, size, x[rows], w, part, None)
            add_table(total[rows], part)
    elif multiplies_in_bf16(x):
        for rows, size in _blocks(len(x)):
            _take(_add, size, x[rows], w, total[rows])
    else:
        _add(x, w, total)


def add_transposed_product(total: Tensor, x: Tensor, g: Tensor) -> None:
    """``total += x^T g`` [K, O], fp32 where rows are bf16. x: [N, K]. g: [N, O].

    PyTorch rounds products of bf16 tables to bf16. So without tiles they are taken of a block of rows at a time, and added in
    fp32.
    """
    if _tiles(x):
        total += tile_products.sum_of_products(x, g)
        return
    if not multiplies_in_bf16(x):
        total.addmm_(x.T, g)
        return
    for rows, size in _blocks(len(x)):
        left, right = _padded(x[rows], size), _padded(g[rows], size)
        if x.dtype == total.dtype:
            total.addmm_(left.T, right)
        else:
            total += left.T @ right


def transposed_product(x: Tensor, g: Tensor) -> Tensor:
    """x^T g [K, O], in what sums of such rows are held in. x: [N, K]. g: [N, O]."""
    if not multiplies_in_bf16(x):
        return x.T @ g
    if _tiles(x):
        return tile_products.sum_of_products(x, g)
    total = torch.zeros(x.shape[1], g.shape[1], dtype=wide(x.dtype), device=x.device)
    add_transposed_product(total, x, g)
    return total


def _tiles(x: Tensor) -> bool:
    return multiplies_in_bf16(x) and x.device.type == "cpu" and has_tiles()


def _blocks(rows: int) -> Iterator[tuple[slice, int]]:
    """Blocks of a table of ``rows`` rows, and how many each is filled up to."""
    first, size = 0, _ROWS
    while first < rows:
        if rows - first < size and rows < _SHORT:
            size = _FEW
        yield slice(first, min(first + size, rows)), size
        first += size


def _padded(x: Tensor, size: int) -> Tensor:
    """x itself, or the rows left over and zeros."""
    if len(x) == size:
        return x
    padded = x.new_zeros(size, x.shape[1])
    padded[: len(x)] = x
    return padded


def _take(how: Callable[..., None], size: int, x: Tensor, w: Tensor, out: Tensor, *bias: Tensor | None) -> None:
    """A product of one block, written to or added to ``out``."""
    if len(x) == size:
        how(x, w, out, *bias)
        return
    padded = _padded(out, size)
    how(_padded(x, size), w, padded, *bias)
    out.copy_(padded[: len(x)])


def _write(x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None) -> None:
    torch.mm(x, w, out=out) if bias is None else torch.addmm(bias, x, w, out=out)


def _add(x: Tensor, w: Tensor, out: Tensor) -> None:
    out.addmm_(x, w)
