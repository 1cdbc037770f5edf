"""What attention does beside its folds, compiled: dropout of an edge's weights, and what backward reads of a destination.

What an edge draws depends on the original ids of its two ends and on the head, on nothing else.

Letters: S source rows, M destination rows, E edges, K heads, D head width.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.backends.cpu.attention_vector_code import RECORD
from sargnn.backends.operations import RunningSoftmax
from sargnn.bf16 import wide
from sargnn.numba_bf16 import array_of, widen
from sargnn.numba_rng import philox_words


@numba.njit(inline="always")
def drop_edge(weight: Any, source: Any, destination: Any, heads: Any, draw: Any, keep: Any) -> None:  # pragma: no cover
    """``weight[h] *= keep``, or 0 where the draw drops (source, destination, h).

    Args:
        weight: [at least K].
        source, destination: original ids, uint64.
        draw: (seed, epoch, tag, threshold), uint64.
        keep: what kept weights are multiplied with.
    """
    seed, epoch, tag, threshold = draw
    zero = weight.dtype.type(0)
    for group in range((heads + 3) // 4):
        words = philox_words(source, destination, np.uint64(group), tag, seed, epoch)
        for k in range(min(4, heads - 4 * group)):
            h = 4 * group + k
            weight[h] = weight[h] * keep if words[k] >= threshold else zero


@numba.njit(parallel=True, cache=True, nogil=True)
def _write_records(er: Any, max_score: Any, denominator: Any, grad: Any, out: Any, records: Any) -> None:  # pragma: no cover
    """``records[i] = (er_i, m_i, 1 / s_i, <grad_i, out_i> per head)``.

    Args:
        er, max_score, denominator: [M, K].
        grad, out: [M, K D], may be bf16.
        records: [M, 4 K]. Destinations without edges, s = 0, get 0 for 1 / s.
    """
    heads = er.shape[1]
    width = grad.shape[1] // heads
    zero, unit = er.dtype.type(0), er.dtype.type(1)
    for i in numba.prange(er.shape[0]):
        record = records[i]
        record[:heads] = er[i]
        record[heads : 2 * heads] = max_score[i]
        for h in range(heads):
            record[2 * heads + h] = unit / denominator[i, h] if denominator[i, h] != zero else zero
            g, row = grad[i, h * width : (h + 1) * width], out[i, h * width : (h + 1) * width]
            record[3 * heads + h] = dot(g, row, zero)


@numba.njit(fastmath={"reassoc", "contract"})
def dot(x: Any, y: Any, start: Any) -> Any:  # pragma: no cover
    """``start + <x, y>``, in the type of ``start``."""
    total = start
    for f in range(len(x)):
        total += widen(x[f]) * widen(y[f])
    return total


def destination_records(er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
    """``AttentionOperation.destination_records`` in one compiled pass."""
    own = torch.zeros_like(running.max_score) if er is None else er
    records = own.new_empty(len(own), RECORD * own.shape[1])
    tensors = (own, running.max_score, running.denominator, grad, running.out, records)
    _write_records(*(array_of(tensor) for tensor in tensors))
    return records


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    rows, x = (array_of(torch.zeros(1, 16, dtype=precision)) for precision in (dtype, wide(dtype)))
    return [
        (_write_records, (x, x, x, rows, rows, x)),
    ]
