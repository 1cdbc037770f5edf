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

from sargnn.rng import drop_row

CHUNK_ROWS = 256
RELU, ELU = 0, 1


@numba.njit(parallel=True, cache=True, nogil=True)
def _chunk_moments(x: Any, mean: Any, squares: Any) -> None:  # pragma: no cover - compiled
    rows, width = x.shape
    for c in numba.prange(len(mean)):
        first, last = c * CHUNK_ROWS, min(rows, (c + 1) * CHUNK_ROWS)
        m, s = mean[c], squares[c]
        m[:] = 0
        s[:] = 0
        for i in range(first, last):
            row = x[i]
            for f in range(width):
                m[f] += row[f]
        for f in range(width):
            m[f] /= last - first
        for i in range(first, last):
            row = x[i]
            for f in range(width):
                deviation = row[f] - m[f]
                s[f] += deviation * deviation


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sum of squared deviations of the rows of ``x`` [N, F], N > 0: fp64 [F] each.

    Chunks are combined as Chan, Golub and LeVeque (1979) do: no difference of large numbers anywhere.
    """
    rows, width = x.shape
    chunks = -(-rows // CHUNK_ROWS)
    means, squares = np.empty((chunks, width)), np.empty((chunks, width))
    _chunk_moments(x, means, squares)
    counts = np.full((chunks, 1), CHUNK_ROWS, np.float64)
    counts[-1] = rows - (chunks - 1) * CHUNK_ROWS
    mean = (means * counts).sum(0) / rows
    return mean, squares.sum(0) + (counts * np.square(means - mean)).sum(0)


@numba.njit(parallel=True, cache=True, nogil=True)
def norm_act_drop(
    x: Any, slope: Any, shift: Any, activation: Any, ids: Any, seed: Any, epoch: Any, tag: Any, threshold: Any, keep: Any,
    out: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """``out = drop(act(slope * x + shift))``.

    Args:
        x, out: [N, F]. slope, shift: [F].
        activation: ``RELU`` or ``ELU``.
        ids: int64 [N]; seed, epoch, tag, threshold: of the draw, uint64; a threshold of 0 drops nothing.
        keep: what kept elements are multiplied with.
    """
    width = x.shape[1]
    zero = x.dtype.type(0)
    for i in numba.prange(x.shape[0]):
        row, target = x[i], out[i]
        if activation == RELU:
            for f in range(width):
                target[f] = max(slope[f] * row[f] + shift[f], zero)
        else:
            for f in range(width):
                value = slope[f] * row[f] + shift[f]
                target[f] = value if value > zero else x.dtype.type(math.expm1(value))
        if threshold > 0:
            drop_row(target, np.uint64(ids[i]), seed, epoch, tag, threshold, keep, target)


@numba.njit(parallel=True, cache=True, nogil=True)
def _backward_chunks(
    grad: Any, x: Any, slope: Any, shift: Any, mean: Any, inv_std: Any, activation: Any, ids: Any, seed: Any, epoch: Any,
    tag: Any, threshold: Any, keep: Any, d_x: Any, sums: Any, products: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    rows, width = x.shape
    zero = x.dtype.type(0)
    for c in numba.prange(len(sums)):
        total, product = sums[c], products[c]
        total[:] = 0
        product[:] = 0
        for i in range(c * CHUNK_ROWS, min(rows, (c + 1) * CHUNK_ROWS)):
            row, g, target = x[i], grad[i], d_x[i]
            if threshold > 0:
                drop_row(g, np.uint64(ids[i]), seed, epoch, tag, threshold, keep, target)
            else:
                target[:] = g
            if activation == RELU:
                for f in range(width):
                    target[f] = target[f] if slope[f] * row[f] + shift[f] > zero else zero
            else:
                for f in range(width):
                    value = slope[f] * row[f] + shift[f]
                    target[f] *= x.dtype.type(1) if value > zero else x.dtype.type(math.exp(value))
            for f in range(width):
                total[f] += target[f]
                product[f] += target[f] * ((row[f] - mean[f]) * inv_std[f])


def norm_act_drop_backward(
    grad: np.ndarray, x: np.ndarray, slope: np.ndarray, shift: np.ndarray, mean: np.ndarray, inv_std: np.ndarray,
    activation: int, ids: np.ndarray, draw: tuple[Any, ...], d_x: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
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
    d_x: Any, x: Any, mean: Any, inv_std: Any, slope: Any, mean_grad: Any, mean_product: Any
) -> None:  # pragma: no cover - compiled
    """``d_x = slope * (d_x - mean_grad - xhat * mean_product)``, in place; all vectors [F]."""
    width = x.shape[1]
    for i in numba.prange(x.shape[0]):
        row, target = x[i], d_x[i]
        for f in range(width):
            normal = (row[f] - mean[f]) * inv_std[f]
            target[f] = slope[f] * (target[f] - mean_grad[f] - normal * mean_product[f])


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, table, ids = torch.zeros(1, 4, dtype=dtype).numpy(), np.zeros((1, 4)), np.zeros(1, np.int64)
    v, words = x[0], (*[np.uint64(0)] * 4, x.dtype.type(1))
    return [
        (_chunk_moments, (x, table, table)),
        (norm_act_drop, (x, v, v, RELU, ids, *words, x)),
        (_backward_chunks, (x, x, v, v, v, v, RELU, ids, *words, x, table, table)),
        (norm_backward, (x, x, v, v, v, v, v)),
    ]
