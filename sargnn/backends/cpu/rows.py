"""Operators on rows on a CPU: one compiled pass over memory each; products are PyTorch's.

Products of fp32 and fp64 tables are PyTorch's bit for bit. Those of bf16 entries are taken on the CPU's tiles where it has some
(``tile_products``): summed in fp32, rounded once; and those of fp32 tables as sums of bf16 terms, where ``product_terms`` says
so. Elsewhere PyTorch hands them to oneDNN, which compiles code for every shape
and keeps it for a thousand of them, each a megabyte. So there they are taken of blocks of one or two sizes, the last one filled
up with zeros, and what is added to fp32 numbers is rounded to bf16 before.

Letters: N rows, F features, K and O columns of products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.base import Activation, NormVectors, Rows
from sargnn.backends.cpu import row_loops, tile_products
from sargnn.bf16 import array_of, multiplies_in_bf16, number, products_in_bf16, wide
from sargnn.cpu import has_tiles
from sargnn.rng import Draw, dropout_rows, words_of

_CODES = {"relu": row_loops.RELU, "elu": row_loops.ELU, "none": row_loops.NONE}
_ROWS, _FEW = 1024, 128
"""Of a block: few enough that a widened one stays in a core's cache. Short tables end in smaller ones."""
_SHORT = 8 * _ROWS


class CpuRows(Rows):
    """See ``Rows``."""

    def moments(self, x: Tensor, counted: Tensor | None = None) -> Tensor:
        """Chunks are combined as Chan, Golub and LeVeque (1979) do: no difference of large numbers anywhere."""
        means, squares = _chunk_sums(x)
        counts = np.empty((len(means), 1))
        mask = row_loops.EVERY if counted is None else counted.numpy()
        row_loops.chunk_moments(array_of(x), mask, means, squares, counts[:, 0])
        number_of_rows = int(counts.sum())
        mean = (means * counts).sum(0) / max(number_of_rows, 1)
        total = squares.sum(0) + (counts * np.square(means - mean)).sum(0)
        return torch.from_numpy(np.concatenate([[number_of_rows], mean, total]))

    def norm_act_drop(self, x: Tensor, slope: Tensor, shift: Tensor, after: Activation, out: Tensor) -> None:
        row_loops.norm_act_drop(array_of(x), array_of(slope), array_of(shift), *_after(after, x), array_of(out))

    def norm_act_drop_backward(
        self, grad: Tensor, x: Tensor, norm: NormVectors, after: Activation, d_x: Tensor
    ) -> tuple[Tensor, Tensor]:
        vectors, chunks = tuple(array_of(vector) for vector in norm), _chunk_sums(x)
        row_loops.norm_act_drop_gradients(array_of(grad), array_of(x), vectors, *_after(after, x), array_of(d_x), *chunks)
        return _added(chunks)

    def norm_backward(
        self, d_x: Tensor, x: Tensor, norm: NormVectors, mean_grad: Tensor, mean_product: Tensor, counted: Tensor | None
    ) -> None:
        row_loops.norm_backward(
            *(array_of(tensor) for tensor in (d_x, x, norm.mean, norm.inv_std, norm.slope, mean_grad, mean_product)),
            row_loops.EVERY if counted is None else counted.numpy(),
        )

    def layer_norm_act_drop(self, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, after: Activation, out: Tensor) -> None:
        norm = array_of(gamma), array_of(beta), number(eps, gamma.dtype)
        row_loops.layer_norm_act_drop(array_of(x), *norm, *_after(after, x), array_of(out))

    def layer_norm_act_drop_backward(
        self, grad: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, after: Activation, d_x: Tensor
    ) -> tuple[Tensor, Tensor]:
        norm, chunks = (array_of(gamma), array_of(beta), number(eps, gamma.dtype)), _chunk_sums(x)
        row_loops.layer_norm_gradients(array_of(grad), array_of(x), norm, *_after(after, x), array_of(d_x), *chunks)
        return _added(chunks)

    def dropout(self, x: Tensor, ids: Tensor, draw: Draw) -> Tensor:
        return dropout_rows(x, ids, draw)

    def column_sums(self, x: Tensor) -> Tensor:
        if wide(x.dtype) == x.dtype:
            return x.sum(0)
        sums, _ = _chunk_sums(x)
        row_loops.chunk_sums(array_of(x.contiguous()), sums)
        return torch.from_numpy(sums.sum(0)).to(wide(x.dtype))

    def scale(self, rows: Tensor, factors: Tensor) -> Tensor:
        if rows.dtype == factors.dtype:
            return rows.mul_(factors[:, None])
        row_loops.scale_rows(array_of(rows), factors.numpy())
        return rows

    def join_halves(self, upper: Tensor, lower: Tensor) -> None:
        row_loops.round_halves(array_of(upper).reshape(-1), lower.view(-1).numpy())

    def product(self, x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
        if terms := self._terms_on_tiles(x):
            self.uncounted_flops += tile_products.multiply_terms(terms, x, w, out, bias)
            return out
        if x.dtype != out.dtype:
            room = x.new_empty(min(len(x), _ROWS), x.shape[1], dtype=out.dtype)  # fresh memory would cost more than the product
            with products_in_bf16():
                for rows, size in _blocks(len(x)):
                    _take(_write, size, room[: rows.stop - rows.start].copy_(x[rows]), w, out[rows], bias)
            return out
        w, bias = w.to(x.dtype), None if bias is None else bias.to(x.dtype)
        if not multiplies_in_bf16(x):
            _write(x, w, out, bias)
            return out
        for rows, size in _blocks(len(x)):
            _take(_write, size, x[rows], w, out[rows], bias)
        return out

    def add_product(self, total: Tensor, x: Tensor, w: Tensor) -> None:
        if terms := self._terms_on_tiles(x):
            self.uncounted_flops += tile_products.multiply_terms(terms, x, w, total, add=True)
            return
        w = w.to(x.dtype)
        if x.dtype != total.dtype:
            room = x.new_empty(_ROWS, w.shape[1])
            for rows, size in _blocks(len(x)):
                part = room[: rows.stop - rows.start]
                _take(_write, size, x[rows], w, part, None)
                row_loops.add_table(total[rows].numpy(), array_of(part))
        elif multiplies_in_bf16(x):
            for rows, size in _blocks(len(x)):
                _take(_add, size, x[rows], w, total[rows])
        else:
            _add(x, w, total)

    def transposed_product(self, x: Tensor, g: Tensor) -> Tensor:
        if terms := self._terms_on_tiles(x):
            return self._sum_on_tiles(terms, x, g)
        if not multiplies_in_bf16(x):
            return x.T @ g
        total = torch.zeros(x.shape[1], g.shape[1], dtype=wide(x.dtype), device=x.device)
        self.add_transposed_product(total, x, g)
        return total

    def add_transposed_product(self, total: Tensor, x: Tensor, g: Tensor) -> None:
        """PyTorch rounds products of bf16 tables to bf16: without tiles they are taken a block of rows at a time, and added in
        fp32.
        """
        if terms := self._terms_on_tiles(x):
            total += self._sum_on_tiles(terms, x, g)
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

    def _sum_on_tiles(self, terms: int, x: Tensor, g: Tensor) -> Tensor:
        total, flops = tile_products.sum_of_term_products(terms, x, g)
        self.uncounted_flops += flops
        return total

    def _terms_on_tiles(self, x: Tensor) -> int:
        """Of how many bf16 terms x's entries are on tiles; 0: products of x are not taken there."""
        if not has_tiles():
            return 0
        if multiplies_in_bf16(x):
            return 1
        return self.product_terms if x.dtype == torch.float32 else 0


def _after(after: Activation, like: Tensor) -> tuple[Any, ...]:
    """What follows a norm, as the loops take it."""
    return _CODES[after.name], after.ids.numpy(), _draw(after.draw, like)


def _draw(draw: Draw | None, like: Tensor) -> tuple[Any, ...]:
    """A draw as the loops take it: seed, epoch, tag, threshold, what kept elements are multiplied with."""
    return (*words_of(draw), number(1.0 if draw is None else draw.scale, like.dtype))


def _chunk_sums(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Room for two sums of each chunk of rows, fp64 [chunks, F] each."""
    shape = -(-len(x) // row_loops.CHUNK_ROWS), x.shape[1]
    return np.empty(shape), np.empty(shape)


def _added(chunks: tuple[np.ndarray, np.ndarray]) -> tuple[Tensor, Tensor]:
    """The sums over all chunks, fp64 [F] each."""
    sums, products = chunks
    return torch.from_numpy(sums.sum(0)), torch.from_numpy(products.sum(0))


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
