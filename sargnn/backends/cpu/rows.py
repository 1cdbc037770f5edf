"""Operators on rows on a CPU: one pass over memory each, in the library's ``norms.cpp``, ``moments.cpp`` and ``halves.cpp``;
products are PyTorch's.

Sums over rows are taken in fp64, chunk by chunk of fixed size, and combined in the order of the chunks: they do not depend on
the number of threads.

Products of bf16 entries PyTorch hands to oneDNN, which compiles code for every shape and keeps it for a thousand of them, each
a megabyte. So they are taken of blocks of one or two sizes, the last one filled up with zeros, and a row's product does not
depend on the rows beside it. What is added to fp32 numbers is rounded to bf16 before. Where the CPU has no instructions for
them, oneDNN takes several times as long as for fp32: blocks are widened there, and the results rounded.

Letters: N rows, F features, K and O columns of products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.base import Activation, NormVectors, Rows
from sargnn.bf16 import multiplies_in_bf16, products_in_bf16, wide
from sargnn.native import Entry, draw_words
from sargnn.native.build import bf16_instructions
from sargnn.rng import Draw, dropout_rows

_CHUNK_ROWS = 256
_CODES = {"relu": 0, "elu": 1, "none": 2}
_NORM = [
    *("grad x? N F", "x x N F", "slope w F", "shift w F", "mean w? F", "inv_std w? F", "eps float", "by_row int"),
    *("activation int", "ids l N", "draw draw", "out x N F", "sums d? C F", "products d? C F", "chunk_rows int"),
]
_norm_act_drop, _norm_act_drop_backward = Entry("norm_act_drop", *_NORM), Entry("norm_act_drop_backward", *_NORM)
_norm_backward = Entry(
    "norm_backward",
    *("d_x x N F", "x x N F", "mean w F", "inv_std w F", "slope w F", "mean_grad w F", "mean_product w F", "counted b? N"),
)
_chunk_moments = Entry(
    "chunk_moments", "x x N F", "counted b? N", "means d C F", "squares d C F", "counts d C", "chunk_rows int"
)
_chunk_sums = Entry("chunk_sums", "x x N F", "sums d C F", "chunk_rows int")
_join_halves = Entry("join_halves", "upper x N", "lower h N")
_scale_rows = Entry("scale_rows", "rows x N F", "factors f N")
_add_table = Entry("add_table", "total f N F", "rows x N F")
_ROWS, _FEW = 1024, 128
"""Of a block: few enough that a widened one stays in a core's cache. Short tables end in smaller ones."""
_SHORT = 8 * _ROWS


class CpuRows(Rows):
    def moments(self, x: Tensor, counted: Tensor | None = None) -> Tensor:
        """Chunks are combined as Chan, Golub and LeVeque (1979) do: no difference of large numbers anywhere."""
        means, squares = _of_chunks(x), _of_chunks(x)
        numbers = means.new_empty(len(means))
        _chunk_moments(x, counted, means, squares, numbers, _CHUNK_ROWS)
        counts, of_chunks = numbers.numpy()[:, None], means.numpy()
        number_of_rows = int(counts.sum())
        mean = (of_chunks * counts).sum(0) / max(number_of_rows, 1)
        total = squares.numpy().sum(0) + (counts * np.square(of_chunks - mean)).sum(0)
        return torch.from_numpy(np.concatenate([[number_of_rows], mean, total]))

    def norm_act_drop(self, x: Tensor, slope: Tensor, shift: Tensor, after: Activation, out: Tensor) -> None:
        _norm_act_drop(None, x, slope, shift, None, None, 0.0, False, *_after(after), out, None, None, _CHUNK_ROWS)

    def norm_act_drop_backward(
        self, grad: Tensor, x: Tensor, norm: NormVectors, after: Activation, d_x: Tensor
    ) -> tuple[Tensor, Tensor]:
        sums, products = _of_chunks(x), _of_chunks(x)
        _norm_act_drop_backward(grad, x, *norm, 0.0, False, *_after(after), d_x, sums, products, _CHUNK_ROWS)
        return _added(sums), _added(products)

    def norm_backward(
        self, d_x: Tensor, x: Tensor, norm: NormVectors, mean_grad: Tensor, mean_product: Tensor, counted: Tensor | None
    ) -> None:
        _norm_backward(d_x, x, norm.mean, norm.inv_std, norm.slope, mean_grad, mean_product, counted)

    def layer_norm_act_drop(self, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, after: Activation, out: Tensor) -> None:
        _norm_act_drop(None, x, gamma, beta, None, None, eps, True, *_after(after), out, None, None, _CHUNK_ROWS)

    def layer_norm_act_drop_backward(
        self, grad: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, after: Activation, d_x: Tensor
    ) -> tuple[Tensor, Tensor]:
        sums, products = _of_chunks(x), _of_chunks(x)
        _norm_act_drop_backward(
            *(grad, x, gamma, beta, None, None, eps, True), *_after(after), d_x, sums, products, _CHUNK_ROWS
        )
        return _added(sums), _added(products)

    def dropout(self, x: Tensor, ids: Tensor, draw: Draw) -> Tensor:
        return dropout_rows(x, ids, draw)

    def column_sums(self, x: Tensor) -> Tensor:
        if wide(x.dtype) == x.dtype:
            return x.sum(0)
        sums = _of_chunks(x)
        _chunk_sums(x.contiguous(), sums, _CHUNK_ROWS)
        return _added(sums).to(wide(x.dtype))

    def scale(self, rows: Tensor, factors: Tensor) -> Tensor:
        if rows.dtype == factors.dtype:
            return rows.mul_(factors[:, None])
        _scale_rows(rows, factors)
        return rows

    def join_halves(self, upper: Tensor, lower: Tensor) -> None:
        _join_halves(upper.view(-1), lower.view(-1))

    def product(self, x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
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
        if _is_slow(x):
            for rows, part in _widened(x, w, bias):
                out[rows] = part
            return out
        for rows, size in _blocks(len(x)):
            _take(_write, size, x[rows], w, out[rows], bias)
        return out

    def add_product(self, total: Tensor, x: Tensor, w: Tensor) -> None:
        w = w.to(x.dtype)
        if _is_slow(x):
            for rows, part in _widened(x, w):
                if x.dtype == total.dtype:
                    total[rows] = part.add_(total[rows])
                else:
                    _add_table(total[rows], part.to(x.dtype))
        elif x.dtype != total.dtype:
            room = x.new_empty(_ROWS, w.shape[1])
            for rows, size in _blocks(len(x)):
                part = room[: rows.stop - rows.start]
                _take(_write, size, x[rows], w, part, None)
                _add_table(total[rows], part)
        elif multiplies_in_bf16(x):
            for rows, size in _blocks(len(x)):
                _take(_add, size, x[rows], w, total[rows])
        else:
            _add(x, w, total)

    def transposed_product(self, x: Tensor, g: Tensor) -> Tensor:
        if not multiplies_in_bf16(x):
            return x.T @ g
        total = torch.zeros(x.shape[1], g.shape[1], dtype=wide(x.dtype), device=x.device)
        self.add_transposed_product(total, x, g)
        return total

    def add_transposed_product(self, total: Tensor, x: Tensor, g: Tensor) -> None:
        """PyTorch rounds products of bf16 tables to bf16: they are taken a block of rows at a time, and added in fp32."""
        if not multiplies_in_bf16(x):
            total.addmm_(x.T, g)
            return
        is_slow = _is_slow(x)
        for rows, size in _blocks(len(x)):
            left, right = _padded(x[rows], size), _padded(g[rows], size)
            if is_slow:
                left, right = left.float(), right.float()
            if left.dtype == total.dtype:
                total.addmm_(left.T, right)
            else:
                total += left.T @ right


def _is_slow(x: Tensor) -> bool:
    """Whether products of a table as it is take longer than those of a wider one."""
    return x.dtype == torch.bfloat16 and not bf16_instructions()


def _widened(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
    """``x w + b`` of bf16 entries, a block of rows at a time, fp32, in memory that is written to again."""
    w, bias = w.float(), None if bias is None else bias.float()
    length = min(len(x), _ROWS)
    room, out = x.new_empty(length, x.shape[1], dtype=w.dtype), x.new_empty(length, w.shape[1], dtype=w.dtype)
    for rows, size in _blocks(len(x)):
        part = out[: rows.stop - rows.start]
        _take(_write, size, room[: len(part)].copy_(x[rows]), w, part, bias)
        yield rows, part


def _after(after: Activation) -> tuple[int, Tensor, tuple[int, ...]]:
    return _CODES[after.name], after.ids, draw_words(after.draw)


def _of_chunks(x: Tensor) -> Tensor:
    """Room for a sum of each chunk of rows, fp64 [chunks, F]."""
    return torch.empty(-(-len(x) // _CHUNK_ROWS), x.shape[1], dtype=torch.float64)


def _added(sums: Tensor) -> Tensor:
    """The sum over all chunks, fp64 [F]; NumPy adds them in their order."""
    return torch.from_numpy(sums.numpy().sum(0))


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
