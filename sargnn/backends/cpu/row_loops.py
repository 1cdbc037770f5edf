"""Compiled loops over tables of rows: what happens between two layers, and passes over bf16 rows beside fp32 numbers.

Moments; normalise -> activate -> drop in one pass, and its gradients, for batch norm and layer norm. A layer norm's row,

    xhat_i = (x_i - mu_i) / sqrt(var_i + eps), mu_i and var_i over the features of row i

has its mean and variance computed where they are used: it is in the first-level cache then, and nothing is kept for them. The
mean is taken of the differences from the row's first entry, so that a row of equal entries is normalised to exact zeros. Sums
over rows are taken in fp64, chunk by chunk of fixed size, and combined in the order of the chunks: they do not depend on the
number of threads.

Passes over bf16 rows with fp32 numbers beside them are those for which PyTorch would make fp32 copies of the rows. Sums that
are gathered in several steps may stand in two tables, the upper and the lower 16 bits of each: the upper ones are bf16 rows
already, but for rounding. They take no more memory than the result and as much again.

``activation`` is ``RELU``, ``ELU`` or ``NONE``; ``ids`` int64 [N], original ids; ``draw`` the four words of a draw
(``rng.words_of``), of which a threshold of 0 drops nothing, and what kept elements are multiplied with.

Letters: N rows, F features.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch

from sargnn.bf16 import array_of, held_row, narrow, narrow_bits, number, store_row, wide, widen
from sargnn.rng import drop_row, words_of

CHUNK_ROWS = 256
RELU, ELU, NONE = 0, 1, 2
EVERY = np.zeros(0, np.uint8)
"""In place of a mask of rows: all of them."""


@numba.njit(parallel=True, cache=True, nogil=True)
def chunk_moments(x: Any, counted: Any, mean: Any, squares: Any, counts: Any) -> None:  # pragma: no cover - compiled
    """Number, mean and sum of squared deviations of each chunk's rows.

    Args:
        x: [N, F], may be bf16.
        counted: uint8 [N], 1 for rows that count; ``EVERY``: all do.
        mean, squares: fp64 [chunks, F], written.
        counts: fp64 [chunks], written.
    """
    rows, width = x.shape
    every = len(counted) == 0
    for c in numba.prange(len(mean)):
        first, last = c * CHUNK_ROWS, min(rows, (c + 1) * CHUNK_ROWS)
        m, s = mean[c], squares[c]
        m[:] = 0
        s[:] = 0
        number = 0
        for i in range(first, last):
            if every or counted[i]:
                number += 1
                row = x[i]
                for f in range(width):
                    m[f] += widen(row[f])
        counts[c] = number
        for f in range(width):
            m[f] /= max(number, 1)
        for i in range(first, last):
            if not (every or counted[i]):
                continue
            row = x[i]
            for f in range(width):
                deviation = widen(row[f]) - m[f]
                s[f] += deviation * deviation


@numba.njit(parallel=True, cache=True, nogil=True)
def chunk_sums(x: Any, sums: Any) -> None:  # pragma: no cover - compiled
    """Each chunk's sum of rows, fp64 [chunks, F]."""
    rows, width = x.shape
    for c in numba.prange(len(sums)):
        total = sums[c]
        total[:] = 0
        for i in range(c * CHUNK_ROWS, min(rows, (c + 1) * CHUNK_ROWS)):
            row = x[i]
            for f in range(width):
                total[f] += widen(row[f])


@numba.njit(parallel=True, cache=True, nogil=True)
def norm_act_drop(
    x: Any, slope: Any, shift: Any, activation: Any, ids: Any, draw: Any, out: Any
) -> None:  # pragma: no cover - compiled
    """``out = drop(act(slope * x + shift))``.

    Args:
        x, out: [N, F], may be bf16.
        slope, shift: [F].
    """
    rows, width = x.shape
    zero = slope.dtype.type(0)
    for c in numba.prange(-(-rows // CHUNK_ROWS)):
        scratch = np.empty(width, slope.dtype)
        for i in range(c * CHUNK_ROWS, min(rows, (c + 1) * CHUNK_ROWS)):
            row, held = x[i], held_row(out[i], scratch)
            if activation == RELU:
                for f in range(width):
                    held[f] = max(slope[f] * widen(row[f]) + shift[f], zero)
            elif activation == ELU:
                for f in range(width):
                    value = slope[f] * widen(row[f]) + shift[f]
                    held[f] = value if value > zero else slope.dtype.type(math.expm1(value))
            else:
                for f in range(width):
                    held[f] = slope[f] * widen(row[f]) + shift[f]
            if draw[3] > 0:
                drop_row(held, np.uint64(ids[i]), draw)
            store_row(held, out[i])


@numba.njit(parallel=True, cache=True, nogil=True)
def norm_act_drop_gradients(
    grad: Any, x: Any, norm: Any, activation: Any, ids: Any, draw: Any, d_x: Any, sums: Any, products: Any
) -> None:  # pragma: no cover - compiled
    """The gradient g of ``slope * x + shift`` from that of the output, and its sums over each chunk's rows.

    Args:
        grad, x: [N, F].
        norm: slope, shift, mean and 1 / deviation, [F] each.
        d_x: [N, F], g.
        sums, products: fp64 [chunks, F], of g and of g * xhat, xhat = (x - mean) / deviation.
    """
    slope, shift, mean, inv_std = norm
    rows, width = x.shape
    zero, unit = slope.dtype.type(0), slope.dtype.type(1)
    for c in numba.prange(len(sums)):
        total, product, scratch = sums[c], products[c], np.empty(width, slope.dtype)
        total[:] = 0
        product[:] = 0
        for i in range(c * CHUNK_ROWS, min(rows, (c + 1) * CHUNK_ROWS)):
            row, g, held = x[i], grad[i], held_row(d_x[i], scratch)
            for f in range(width):
                held[f] = widen(g[f])
            if draw[3] > 0:
                drop_row(held, np.uint64(ids[i]), draw)
            if activation == RELU:
                for f in range(width):
                    held[f] = held[f] if slope[f] * widen(row[f]) + shift[f] > zero else zero
            elif activation == ELU:
                for f in range(width):
                    value = slope[f] * widen(row[f]) + shift[f]
                    held[f] *= unit if value > zero else slope.dtype.type(math.exp(value))
            for f in range(width):
                total[f] += held[f]
                product[f] += held[f] * ((widen(row[f]) - mean[f]) * inv_std[f])
            store_row(held, d_x[i])


@numba.njit(parallel=True, cache=True, nogil=True)
def norm_backward(
    d_x: Any, x: Any, mean: Any, inv_std: Any, slope: Any, mean_grad: Any, mean_product: Any, counted: Any
) -> None:  # pragma: no cover - compiled
    """``d_x = slope * (d_x - mean_grad - xhat * mean_product)``, in place; all vectors [F].

    Args:
        counted: uint8 [N], 0 for rows that no statistics are taken of: theirs is ``slope * d_x``; ``EVERY``: of all.
    """
    width, every = x.shape[1], len(counted) == 0
    for i in numba.prange(x.shape[0]):
        row, target = x[i], d_x[i]
        if not (every or counted[i]):
            for f in range(width):
                target[f] = narrow(slope[f] * widen(target[f]), target)
            continue
        for f in range(width):
            normal = (widen(row[f]) - mean[f]) * inv_std[f]
            target[f] = narrow(slope[f] * (widen(target[f]) - mean_grad[f] - normal * mean_product[f]), target)


@numba.njit(fastmath={"reassoc", "contract"}, nogil=True)
def _mean_of_row(row: Any, gamma: Any) -> Any:  # pragma: no cover - compiled
    first, total = widen(row[0]), gamma.dtype.type(0)
    for f in range(row.shape[0]):
        total += widen(row[f]) - first
    return first + total / gamma.dtype.type(row.shape[0])


@numba.njit(fastmath={"reassoc", "contract"}, nogil=True)
def _squares_of_row(row: Any, gamma: Any, mean: Any) -> Any:  # pragma: no cover - compiled
    total = gamma.dtype.type(0)
    for f in range(row.shape[0]):
        total += (widen(row[f]) - mean) * (widen(row[f]) - mean)
    return total


@numba.njit(nogil=True)
def _statistics(row: Any, gamma: Any, eps: Any) -> Any:  # pragma: no cover - compiled
    """mu and 1 / sqrt(var + eps) of a row [F], in the dtype of gamma."""
    unit = gamma.dtype.type(1)
    mean = _mean_of_row(row, gamma)
    return mean, unit / math.sqrt(_squares_of_row(row, gamma, mean) / gamma.dtype.type(row.shape[0]) + eps)


@numba.njit(fastmath={"reassoc", "contract"}, nogil=True)
def _gradient_sums(grad: Any, row: Any, gamma: Any, mean: Any, inv_std: Any) -> Any:  # pragma: no cover - compiled
    """sum of g gamma and of g gamma xhat over a row's features."""
    total, product = gamma.dtype.type(0), gamma.dtype.type(0)
    for f in range(row.shape[0]):
        scaled = grad[f] * gamma[f]
        total += scaled
        product += scaled * ((widen(row[f]) - mean) * inv_std)
    return total, product


@numba.njit(parallel=True, cache=True, nogil=True)
def layer_norm_act_drop(
    x: Any, gamma: Any, beta: Any, eps: Any, activation: Any, ids: Any, draw: Any, out: Any
) -> None:  # pragma: no cover - compiled
    """``out = drop(act(gamma * xhat + beta))``.

    Args:
        x, out: [N, F], may be bf16.
        gamma, beta: [F].
        eps: of the dtype of gamma.
    """
    rows, width = x.shape
    zero = gamma.dtype.type(0)
    for c in numba.prange(-(-rows // CHUNK_ROWS)):
        scratch = np.empty(width, gamma.dtype)
        for i in range(c * CHUNK_ROWS, min(rows, (c + 1) * CHUNK_ROWS)):
            row, held = x[i], held_row(out[i], scratch)
            mean, inv_std = _statistics(row, gamma, eps)
            if activation == RELU:
                for f in range(width):
                    held[f] = max(gamma[f] * ((widen(row[f]) - mean) * inv_std) + beta[f], zero)
            elif activation == ELU:
                for f in range(width):
                    value = gamma[f] * ((widen(row[f]) - mean) * inv_std) + beta[f]
                    held[f] = value if value > zero else gamma.dtype.type(math.expm1(value))
            else:
                for f in range(width):
                    held[f] = gamma[f] * ((widen(row[f]) - mean) * inv_std) + beta[f]
            if draw[3] > 0:
                drop_row(held, np.uint64(ids[i]), draw)
            store_row(held, out[i])


@numba.njit(parallel=True, cache=True, nogil=True)
def layer_norm_gradients(
    grad: Any, x: Any, norm: Any, activation: Any, ids: Any, draw: Any, d_x: Any, sums: Any, products: Any
) -> None:  # pragma: no cover - compiled
    """The gradient of x from that of the output, into ``d_x``, and sums over each chunk's rows.

    Args:
        grad, x: [N, F].
        norm: gamma and beta, [F] each, and eps.
        sums, products: fp64 [chunks, F], of g and of g * xhat, g the gradient of ``gamma * xhat + beta``.
    """
    gamma, beta, eps = norm
    rows, width = x.shape
    zero, unit = gamma.dtype.type(0), gamma.dtype.type(1)
    for c in numba.prange(len(sums)):
        total, product, scratch = sums[c], products[c], np.empty(width, gamma.dtype)
        total[:] = 0
        product[:] = 0
        for i in range(c * CHUNK_ROWS, min(rows, (c + 1) * CHUNK_ROWS)):
            row, g, held = x[i], grad[i], held_row(d_x[i], scratch)
            for f in range(width):
                held[f] = widen(g[f])
            if draw[3] > 0:
                drop_row(held, np.uint64(ids[i]), draw)
            mean, inv_std = _statistics(row, gamma, eps)
            if activation == RELU:
                for f in range(width):
                    held[f] = held[f] if gamma[f] * ((widen(row[f]) - mean) * inv_std) + beta[f] > zero else zero
            elif activation == ELU:
                for f in range(width):
                    value = gamma[f] * ((widen(row[f]) - mean) * inv_std) + beta[f]
                    held[f] *= unit if value > zero else gamma.dtype.type(math.exp(value))
            for f in range(width):
                total[f] += held[f]
                product[f] += held[f] * ((widen(row[f]) - mean) * inv_std)
            of_grad, of_product = _gradient_sums(held, row, gamma, mean, inv_std)
            of_grad, of_product = of_grad / gamma.dtype.type(width), of_product / gamma.dtype.type(width)
            for f in range(width):
                held[f] = inv_std * (gamma[f] * held[f] - of_grad - (widen(row[f]) - mean) * inv_std * of_product)
            store_row(held, d_x[i])


@numba.njit(parallel=True, cache=True, nogil=True)
def round_halves(upper: Any, lower: Any) -> None:  # pragma: no cover - compiled
    """Sums become rows, in place. upper: bits of bf16 [any]. lower: int16 [any]."""
    for i in numba.prange(len(upper)):
        upper[i] = narrow_bits((np.uint32(upper[i]) << np.uint32(16)) | np.uint32(np.uint16(lower[i])))


@numba.njit(parallel=True, cache=True, nogil=True)
def scale_rows(rows: Any, scale: Any) -> None:  # pragma: no cover - compiled
    """``rows[i] *= scale[i]``, in place. rows: bf16 [N, F]. scale: fp32 [N]."""
    for i in numba.prange(len(rows)):
        row, factor = rows[i], scale[i]
        for f in range(len(row)):
            row[f] = narrow(widen(row[f]) * factor, rows)


@numba.njit(parallel=True, cache=True, nogil=True)
def add_table(total: Any, rows: Any) -> None:  # pragma: no cover - compiled
    """``total += rows``, both [N, F]: fp32 and bf16."""
    for i in numba.prange(len(rows)):
        into, row = total[i], rows[i]
        for f in range(len(row)):
            into[f] += widen(row[f])


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, v = array_of(torch.zeros(1, 4, dtype=dtype)), array_of(torch.zeros(4, dtype=wide(dtype)))
    table, after = np.zeros((1, 4)), (RELU, np.zeros(1, np.int64), (*words_of(None), number(1, dtype)))
    eps, rows, numbers = number(0, dtype), np.zeros((1, 1), np.uint16), np.zeros((1, 1), np.float32)
    beside = [
        (round_halves, (rows[0], np.zeros(1, np.int16))),
        (scale_rows, (rows, numbers[0])),
        (add_table, (numbers, rows)),
    ]
    return [
        (chunk_moments, (x, EVERY, table, table, table[:, 0])),
        (chunk_sums, (x, table)),
        (norm_act_drop, (x, v, v, *after, x)),
        (norm_act_drop_gradients, (x, x, (v, v, v, v), *after, x, table, table)),
        (norm_backward, (x, x, v, v, v, v, v, EVERY)),
        (layer_norm_act_drop, (x, v, v, eps, *after, x)),
        (layer_norm_gradients, (x, x, (v, v, eps), *after, x, table, table)),
        *(beside if dtype == torch.bfloat16 else []),
    ]
