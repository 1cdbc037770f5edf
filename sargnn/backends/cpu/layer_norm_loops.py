"""Compiled loops of layer norm: normalise a row -> activate -> drop in one pass, and its gradients in one pass.

    xhat_i = (x_i - mu_i) / sqrt(var_i + eps), mu_i and var_i over the features of row i

A row's mean and variance are computed where they are used: it is in the first-level cache then, and nothing is kept for them.
The mean is taken of the differences from the row's first entry, so that a row of equal entries is normalised to exact zeros.
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

from sargnn.backends.cpu.nodewise_loops import CHUNK_ROWS, RELU
from sargnn.bf16 import array_of, held_row, number, store_row, wide, widen
from sargnn.rng import drop_row


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
    x: Any,
    gamma: Any,
    beta: Any,
    eps: Any,
    activation: Any,
    ids: Any,
    seed: Any,
    epoch: Any,
    tag: Any,
    threshold: Any,
    keep: Any,
    out: Any,
) -> None:  # pragma: no cover - compiled
    """``out = drop(act(gamma * xhat + beta))``.

    Args:
        x, out: [N, F], may be bf16. gamma, beta: [F]. eps: of the dtype of gamma.
        activation: ``RELU`` or ``ELU`` of ``nodewise_loops``.
        ids: int64 [N]; seed, epoch, tag, threshold: of the draw, uint64; a threshold of 0 drops nothing.
        keep: what kept elements are multiplied with.
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
            else:
                for f in range(width):
                    value = gamma[f] * ((widen(row[f]) - mean) * inv_std) + beta[f]
                    held[f] = value if value > zero else gamma.dtype.type(math.expm1(value))
            if threshold > 0:
                drop_row(held, np.uint64(ids[i]), seed, epoch, tag, threshold, keep, held)
            store_row(held, out[i])


@numba.njit(parallel=True, cache=True, nogil=True)
def _backward_chunks(
    grad: Any,
    x: Any,
    gamma: Any,
    beta: Any,
    eps: Any,
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
    zero, unit = gamma.dtype.type(0), gamma.dtype.type(1)
    for c in numba.prange(len(sums)):
        total, product, scratch = sums[c], products[c], np.empty(width, gamma.dtype)
        total[:] = 0
        product[:] = 0
        for i in range(c * CHUNK_ROWS, min(rows, (c + 1) * CHUNK_ROWS)):
            row, g, held = x[i], grad[i], held_row(d_x[i], scratch)
            for f in range(width):
                held[f] = widen(g[f])
            if threshold > 0:
                drop_row(held, np.uint64(ids[i]), seed, epoch, tag, threshold, keep, held)
            mean, inv_std = _statistics(row, gamma, eps)
            if activation == RELU:
                for f in range(width):
                    held[f] = held[f] if gamma[f] * ((widen(row[f]) - mean) * inv_std) + beta[f] > zero else zero
            else:
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


def layer_norm_act_drop_backward(
    grad: np.ndarray,
    x: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    eps: Any,
    activation: int,
    ids: np.ndarray,
    draw: tuple[Any, ...],
    d_x: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The gradient of x from that of the output, into ``d_x``, and those of beta and gamma.

    Args:
        draw: seed, epoch, tag, threshold, keep as in ``layer_norm_act_drop``.

    Returns:
        sum of g and of g * xhat over the rows, g the gradient of ``gamma * xhat + beta``: fp64 [F] each.
    """
    chunks = -(-x.shape[0] // CHUNK_ROWS)
    sums, products = np.empty((chunks, x.shape[1])), np.empty((chunks, x.shape[1]))
    _backward_chunks(grad, x, gamma, beta, eps, activation, ids, *draw, d_x, sums, products)
    return sums.sum(0), products.sum(0)


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, v = array_of(torch.zeros(1, 4, dtype=dtype)), array_of(torch.zeros(4, dtype=wide(dtype)))
    table, ids, words = np.zeros((1, 4)), np.zeros(1, np.int64), (*[np.uint64(0)] * 4, number(1, dtype))
    eps = number(0, dtype)
    return [
        (layer_norm_act_drop, (x, v, v, eps, RELU, ids, *words, x)),
        (_backward_chunks, (x, x, v, v, eps, RELU, ids, *words, x, table, table)),
    ]
