"""Compiled loops of what happens to rows between two layers: moments, and normalise -> activate -> drop in one pass.

Sums over rows are taken in fp64, chunk by chunk of fixed size, and combined in the order of the chunks: they do not depend on
the number of threads.

Letters: N rows, F features.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch

from sargnn.bf16 import array_of, held_row, narrow, number, store_row, wide, widen
from sargnn.rng import drop_row

CHUNK_ROWS = 256
RELU, ELU = 0, 1
EVERY = np.zeros(0, np.uint8)
"""In place of a mask of rows: all of them."""


@numba.njit(parallel=True, cache=True, nogil=True)
def _chunk_moments(x: Any, counted: Any, mean: Any, squares: Any, counts: Any) -> None:  # pragma: no cover - compiled
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


def moments(x: np.ndarray, counted: np.ndarray | None = None) -> tuple[int, np.ndarray, np.ndarray]:
    """Number, mean and sum of squared deviations of the rows of ``x`` [N, F]: fp64 [F] each, 0 where there is no row.

    Chunks are combined as Chan, Golub and LeVeque (1979) do: no difference of large numbers anywhere.

    Args:
        counted: uint8 [N], 1 for rows that count; None: all do.
    """
    rows, width = x.shape
    chunks = -(-rows // CHUNK_ROWS)
    means, squares = np.empty((chunks, width)), np.empty((chunks, width))
    counts = np.empty((chunks, 1))
    _chunk_moments(x, EVERY if counted is None else counted, means, squares, counts[:, 0])
    number = int(counts.sum())
    mean = (means * counts).sum(0) / max(number, 1)
    return number, mean, squares.sum(0) + (counts * np.square(means - mean)).sum(0)


@numba.njit(parallel=True, cache=True, nogil=True)
def _chunk_sums(x: Any, sums: Any) -> None:  # pragma: no cover - compiled
    rows, width = x.shape
    for c in numba.prange(len(sums)):
        total = sums[c]
        total[:] = 0
        for i in range(c * CHUNK_ROWS, min(rows, (c + 1) * CHUNK_ROWS)):
            row = x[i]
            for f in range(width):
                total[f] += widen(row[f])


def column_sums(x: np.ndarray) -> np.ndarray:
    """The sum of the rows of ``x`` [N, F], fp64 [F]."""
    sums = np.empty((-(-x.shape[0] // CHUNK_ROWS), x.shape[1]))
    _chunk_sums(x, sums)
    total: np.ndarray = sums.sum(0)
    return total


@numba.njit(parallel=True, cache=True, nogil=True)
def norm_act_drop(
    x: Any,
    slope: Any,
    shift: Any,
    activation: Any,
    ids: Any,
    seed: Any,
    epoch: Any,
    tag: Any,
    threshold: Any,
    keep: Any,
    out: Any,
) -> None:  # pragma: no cover - compiled
    """``out = drop(act(slope * x + shift))``.

    Args:
        x, out: [N, F], may be bf16. slope, shift: [F].
        activation: ``RELU`` or ``ELU``.
        ids: int64 [N]; seed, epoch, tag, threshold: of the draw, uint64; a threshold of 0 drops nothing.
        keep: what kept elements are multiplied with.
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
            else:
                for f in range(width):
                    value = slope[f] * widen(row[f]) + shift[f]
                    held[f] = value if value > zero else slope.dtype.type(math.expm1(value))
            if threshold > 0:
                drop_row(held, np.uint64(ids[i]), seed, epoch, tag, threshold, keep, held)
            store_row(held, out[i])


@numba.njit(parallel=True, cache=True, nogil=True)
def _backward_chunks(
    grad: Any,
    x: Any,
    slope: Any,
    shift: Any,
    mean: Any,
    inv_std: Any,
    activation: Any,
    ids: Any,
    seed: Any,
    epoch: Any,
    tag: Any,
    threshold: Any,
    keep: Any,
    d_x: Any,
    sums: Any,
    products: Any,
) -> None:  # pragma: no cover - compiled
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
            if threshold > 0:
                drop_row(held, np.uint64(ids[i]), seed, epoch, tag, threshold, keep, held)
            if activation == RELU:
                for f in range(width):
                    held[f] = held[f] if slope[f] * widen(row[f]) + shift[f] > zero else zero
            else:
                for f in range(width):
                    value = slope[f] * widen(row[f]) + shift[f]
                    held[f] *= unit if value > zero else slope.dtype.type(math.exp(value))
            for f in range(width):
                total[f] += held[f]
                product[f] += held[f] * ((widen(row[f]) - mean[f]) * inv_std[f])
            store_row(held, d_x[i])


def norm_act_drop_backward(
    grad: np.ndarray,
    x: np.ndarray,
    slope: np.ndarray,
    shift: np.ndarray,
    mean: np.ndarray,
    inv_std: np.ndarray,
    activation: int,
    ids: np.ndarray,
    draw: tuple[Any, ...],
    d_x: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The gradient g of ``slope * x + shift`` from that of the output, into ``d_x``, and its sums.

    Args:
        draw: seed, epoch, tag, threshold, keep as in ``norm_act_drop``.

    Returns:
        sum of g and of g * xhat over the rows, xhat = (x - mean) * inv_std: fp64 [F] each.
    """
    chunks = -(-x.shape[0] // CHUNK_ROWS)
    sums, products = np.empty((chunks, x.shape[1])), np.empty((chunks, x.shape[1]))
    _backward_chunks(grad, x, slope, shift, mean, inv_std, activation, ids, *draw, d_x, sums, products)
    return sums.sum(0), products.sum(0)


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


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, v = array_of(torch.zeros(1, 4, dtype=dtype)), array_of(torch.zeros(4, dtype=wide(dtype)))
    table, ids, words = np.zeros((1, 4)), np.zeros(1, np.int64), (*[np.uint64(0)] * 4, number(1, dtype))
    return [
        (_chunk_moments, (x, EVERY, table, table, table[:, 0])),
        (_chunk_sums, (x, table)),
        (norm_act_drop, (x, v, v, RELU, ids, *words, x)),
        (_backward_chunks, (x, x, v, v, v, v, RELU, ids, *words, x, table, table)),
        (norm_backward, (x, x, v, v, v, v, v, EVERY)),
    ]
