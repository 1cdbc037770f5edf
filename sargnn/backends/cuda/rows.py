"""Operators on rows on a GPU: one pass of a Triton kernel over memory each; products, scale and sums of columns are PyTorch's.

A program has a tile of rows and columns; what is read once from memory is read once by it. Sums over rows are taken in two
steps, so that they have the same bits in every run: those of a chunk of rows in registers (of fp32 and bf16 rows in fp32),
those of all chunks in fp64. How rows are cut into chunks depends on the table's width and dtype alone.

Bytes that must move are the tables that an operator reads and writes, N F numbers each, 8 N of the rows' ids where it draws,
and of sums 32 F for each chunk, which has at least 128 rows.

Letters: N rows, F features, K and O columns of products.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from sargnn.backends.base import Activation, NormVectors
from sargnn.backends.cuda import launch
from sargnn.backends.cuda import row_kernels as kernels
from sargnn.backends.torch.backend import TorchRows
from sargnn.bf16 import wide
from sargnn.rng import Draw

_TILE_BYTES = 8192
"""Of the numbers that a tile is computed with: 64 a thread, 32 where it sums."""
_CHUNK_TILES, _CHUNK_ROWS = 16, 128
"""A chunk has so many tiles, but no fewer rows."""
_PRODUCT_ROWS = 1 << 15
"""Of a product that is held on its own before it is added."""


class CudaRows(TorchRows):
    """Tables are contiguous. Nothing waits for the device."""

    def moments(self, x: Tensor, counted: Tensor | None = None) -> Tensor:
        """Chunks are combined as Chan, Golub and LeVeque (1979) do: no difference of large numbers anywhere."""
        sizes = _chunks(x)
        chunks = triton.cdiv(len(x), sizes["STEPS"] * sizes["ROWS"])
        means, squares = x.new_empty(2, chunks, x.shape[1], dtype=torch.float64)
        counts = x.new_empty(chunks, 1, dtype=torch.float64)
        tables = x.contiguous(), counted, means, squares, counts
        _launch(kernels.moments, x, chunks, *tables, **sizes)
        number = counts.sum(0)
        mean = (means * counts).sum(0) / number.clamp(min=1)
        return torch.cat([number, mean, squares.sum(0) + (counts * (means - mean).square()).sum(0)])

    def norm_act_drop(self, x: Tensor, slope: Tensor, shift: Tensor, after: Activation, out: Tensor) -> None:
        sizes = _tiles(x)
        _forward(x, slope, shift, after.ids, after.draw, out, ACT=after.name, LAYER=False, EPS=0.0, **sizes)

    def norm_act_drop_backward(
        self, grad: Tensor, x: Tensor, norm: NormVectors, after: Activation, d_x: Tensor
    ) -> tuple[Tensor, Tensor]:
        return _backward(grad, x, norm, after, d_x, LAYER=False, EPS=0.0, **_chunks(x))

    def norm_backward(
        self, d_x: Tensor, x: Tensor, norm: NormVectors, mean_grad: Tensor, mean_product: Tensor, counted: Tensor | None
    ) -> None:
        assert d_x.is_contiguous()
        sizes = _tiles(x)
        vectors = norm.slope, norm.mean, norm.inv_std, mean_grad.contiguous(), mean_product.contiguous()
        _launch(kernels.norm_backward, x, triton.cdiv(len(x), sizes["ROWS"]), d_x, x.contiguous(), *vectors, counted, **sizes)

    def layer_norm_act_drop(self, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, after: Activation, out: Tensor) -> None:
        sizes = _tiles(x, whole=True)
        _forward(x, gamma, beta, after.ids, after.draw, out, ACT=after.name, LAYER=True, EPS=eps, **sizes)

    def layer_norm_act_drop_backward(
        self, grad: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, after: Activation, d_x: Tensor
    ) -> tuple[Tensor, Tensor]:
        sizes = _chunks(x, whole=True)
        return _backward(grad, x, (gamma, beta, None, None), after, d_x, LAYER=True, EPS=eps, **sizes)

    def dropout(self, x: Tensor, ids: Tensor, draw: Draw) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        _forward(x, None, None, ids, draw, out, ACT="", LAYER=False, EPS=0.0, **_tiles(x))
        return out

    def scale(self, rows: Tensor, factors: Tensor) -> Tensor:
        return rows.mul_(factors[:, None])

    def join_halves(self, upper: Tensor, lower: Tensor) -> None:
        assert upper.is_contiguous()
        size, tile = upper.numel(), _TILE_BYTES // 4
        launch.run(kernels.join_halves, (triton.cdiv(size, tile),), upper, lower.contiguous(), size, TILE=tile, num_warps=4)

    def product(self, x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
        w = w.to(x.dtype)
        if out.dtype == x.dtype:
            return torch.mm(x, w, out=out) if bias is None else torch.addmm(bias.to(x.dtype), x, w, out=out)
        _multiply(x, w, out)
        return out if bias is None else out.add_(bias)

    def add_product(self, total: Tensor, x: Tensor, w: Tensor) -> None:
        w = w.to(x.dtype)
        if total.dtype == x.dtype:
            total.addmm_(x, w)
            return
        for first in range(0, len(x), _PRODUCT_ROWS):
            rows = slice(first, first + _PRODUCT_ROWS)
            total[rows] += _multiply(x[rows], w, total.new_empty(len(x[rows]), w.shape[1]))

    def transposed_product(self, x: Tensor, g: Tensor) -> Tensor:
        return _multiply(x.T, g, x.new_empty(x.shape[1], g.shape[1], dtype=wide(x.dtype)))

    def add_transposed_product(self, total: Tensor, x: Tensor, g: Tensor) -> None:
        if total.dtype == x.dtype:
            total.addmm_(x.T, g)
        else:
            total += self.transposed_product(x, g)


def _multiply(x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    """x w, of bf16 factors summed and stored in fp32. A GPU's products read such factors as they are, a CPU's do not."""
    if out.dtype == x.dtype:
        return torch.mm(x, w, out=out)
    if x.device.type == "cpu":
        return torch.mm(x.to(out.dtype), w.to(out.dtype), out=out)
    return torch.mm(x, w, out_dtype=out.dtype, out=out)


def _tiles(x: Tensor, *, whole: bool = False) -> dict[str, int]:
    """How a table is cut: in tiles of ``ROWS`` rows and ``COLUMNS`` columns, ``whole`` rows or parts of them."""
    columns = max(4, triton.next_power_of_2(x.shape[1]))  # a draw is of four columns
    columns = columns if whole else min(columns, 256)
    row_bytes = columns * wide(x.dtype).itemsize
    rows = max(1, _TILE_BYTES // row_bytes)
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": min(32, max(4, rows * row_bytes // 2048))}


def _chunks(x: Tensor, *, whole: bool = False) -> dict[str, int]:
    """The same; a program has ``STEPS`` tiles, one below the other, and more threads for the sums that it keeps."""
    sizes = _tiles(x, whole=whole)
    steps = max(_CHUNK_TILES, _CHUNK_ROWS // sizes["ROWS"])
    return sizes | {"STEPS": steps, "num_warps": min(32, 2 * sizes["num_warps"])}


def _launch(kernel: Any, x: Tensor, pieces: int, *arguments: Any, **constants: Any) -> None:
    """A program for each piece of the rows of a table and each tile of its columns."""
    rows, width = x.shape
    tiles = triton.cdiv(width, constants["COLUMNS"])
    launch.run(kernel, (pieces * tiles,), *arguments, rows, width, tiles, HELD=launch.held(x.dtype), **constants)


def _forward(
    x: Tensor, slope: Tensor | None, shift: Tensor | None, ids: Tensor, draw: Draw | None, out: Tensor, **constants: Any
) -> None:
    assert out.is_contiguous()
    *words, keep = launch.words(draw)
    vectors = (None if v is None else v.contiguous() for v in (slope, shift))
    pieces = triton.cdiv(len(x), constants["ROWS"])
    drops = {"DROPS": draw is not None, "KEEP": keep}
    _launch(kernels.norm_act_drop, x, pieces, x.contiguous(), *vectors, ids, out, *words, **drops, **constants)


def _backward(
    grad: Tensor, x: Tensor, vectors: tuple[Tensor | None, ...], after: Activation, d_x: Tensor, **constants: Any
) -> tuple[Tensor, Tensor]:
    assert d_x.is_contiguous()
    *words, keep = launch.words(after.draw)
    chunks = triton.cdiv(len(x), constants["STEPS"] * constants["ROWS"])
    sums = x.new_empty(2, chunks, x.shape[1], dtype=torch.float64)
    tables = grad.contiguous(), x.contiguous(), *(None if v is None else v.contiguous() for v in vectors), after.ids, d_x
    how = {"ACT": after.name, "DROPS": after.draw is not None, "KEEP": keep}
    _launch(kernels.norm_gradients, x, chunks, *tables, *sums, *words, **how, **constants)
    of_shift, of_slope = sums.sum(1)
    return of_shift, of_slope
