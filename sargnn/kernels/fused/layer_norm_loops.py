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

from sargnn.kernels.fused.nodewise_loops import CHUNK_ROWS, RELU
from sargnn.rng import drop_row


@numba.njit(fastmath={"reassoc", "contract"}, nogil=True)
def _mean_of_row(row: Any) -> Any:  # pragma: no cover - compiled
    first, total = row[0], row.dtype.type(0)
    for f in range(row.shape[0]):
        total += row[f] - first
    return first + total / row.dtype.type(row.shape[0])


@numba.njit(fastmath={"reassoc", "contract"}, nogil=True)
def _squares_of_row(row: Any, mean: Any) -> Any:  # pragma: no cover - compiled
    total = row.dtype.type(0)
    for f in range(row.shape[0]):
        total += (row[f] - mean) * (row[f] - mean)
    return total


@numba.njit(nogil=True)
def _statistics(row: Any, eps: Any) -> Any:  # pragma: no cover - compiled
    """mu and 1 / sqrt(var + eps) of a row [F], in its dtype."""
    one = row.dtype.type(1)
    mean = _mean_of_row(row)
    return mean, one / math.sqrt(_squares_of_row(row, mean) / row.dtype.type(row.shape[0]) + eps)


@numba.njit(fastmath={"reassoc", "contract"}, nogil=True)
def _gradient_sums(grad: Any, row: Any, gamma: Any, mean: Any, inv_std: Any) -> Any:  # pragma: no cover - compiled
    """sum of g gamma and of g gamma xhat over a row's features."""
    total, product = row.dtype.type(0), row.dtype.type(0)
    for f in range(row.shape[0]):
        scaled = grad[f] * gamma[f]
        total += scaled
        product += scaled * ((row[f] - mean) * inv_std)
    return total, product


@numba.njit(parallel=True, cache=True, nogil=True)
def layer_norm_act_drop(
    x: Any, gamma: Any, beta: Any, eps: Any, activation: Any, ids: Any, seed: Any, epoch: Any, tag: Any, threshold: Any,
    keep: Any, out: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """``out = drop(act(gamma * xhat + beta))``.

    Args:
        x, out: [N, F]. gamma, beta: [F]. eps: of the dtype of x.
        activation: ``RELU`` or ``ELU`` of ``nodewise_loops``.
        ids: int64 [N]; seed, epoch, tag, threshold: of the draw, uint64; a threshold of 0 drops nothing.
        keep: what kept elements are multiplied with.
    """
    width = x.shape[1]
    zero = x.dtype.type(0)
    for i in numba.prange(x.shape[0]):
        row, target = x[i], out[i]
        mean, inv_std = _statistics(row, eps)
        if activation == RELU:
            for f in range(width):
                target[f] = max(gamma[f] * ((row[f] - mean) * inv_std) + beta[f], zero)
        else:
            for f in range(width):
                value = gamma[f] * ((row[f] - mean) * inv_std) + beta[f]
                target[f] = value if value > zero else x.dtype.type(math.expm1(value))
        if threshold > 0:
            drop_row(target, np.uint64(ids[i]), seed, epoch, tag, threshold, keep, target)


@numba.njit(parallel=True, cache=True, nogil=True)
def _backward_chunks(
    grad: Any, x: Any, gamma: Any, beta: Any, eps: Any, activation: Any, ids: Any, seed: Any, epoch: Any, tag: Any,
    threshold: Any, keep: Any, d_x: Any, sums: Any, products: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    rows, width = x.shape
    zero, one = x.dtype.type(0), x.dtype.type(1)
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
            mean, inv_std = _statistics(row, eps)
            if activation == RELU:
                for f in range(width):
                    target[f] = target[f] if gamma[f] * ((row[f] - mean) * inv_std) + beta[f] > zero else zero
            else:
                for f in range(width):
                    value = gamma[f] * ((row[f] - mean) * inv_std) + beta[f]
                    target[f] *= one if value > zero else x.dtype.type(math.exp(value))
            for f in range(width):
                total[f] += target[f]
                product[f] += target[f] * ((row[f] - mean) * inv_std)
            of_grad, of_product = _gradient_sums(target, row, gamma, mean, inv_std)
            of_grad, of_product = of_grad / x.dtype.type(width), of_product / x.dtype.type(width)
            for f in range(width):
                target[f] = inv_std * (gamma[f] * target[f] - of_grad - (row[f] - mean) * inv_std * of_product)


def layer_norm_act_drop_backward(
    grad: np.ndarray, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: Any, activation: int, ids: np.ndarray,
    draw: tuple[Any, ...], d_x: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
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
    x, table, ids = torch.zeros(1, 4, dtype=dtype).numpy(), np.zeros((1, 4)), np.zeros(1, np.int64)
    v, eps, words = x[0], x.dtype.type(0), (*[np.uint64(0)] * 4, x.dtype.type(1))
    return [
        (layer_norm_act_drop, (x, v, v, eps, RELU, ids, *words, x)),
        (_backward_chunks, (x, x, v, v, eps, RELU, ids, *words, x, table, table)),
    ]
