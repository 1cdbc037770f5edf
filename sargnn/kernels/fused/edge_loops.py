"""Messages of edges, folded into rows on a CPU, compiled with Numba. Edges come in runs whose destinations ascend.

Letters: E edges of the run, M rows, W columns, K heads, D columns of a head.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.bf16 import wide

NOBODY = -1
"""Whose a maximum is before there is one."""


def add_to_ends(values: Tensor, rows: Tensor, out: Tensor) -> None:
    """``out[rows[e]] += values[e]``.

    Args:
        values: [E, W]. rows: int32 [E], ascending. out: [M, W].
    """
    if values.device.type != "cpu":
        out.index_add_(0, rows, values)
    elif values.numel():
        _add_to_ends(_pieces(rows), values.contiguous().numpy(), rows.numpy(), out.numpy())


def add_to_starts(values: Tensor, rows: Tensor, out: Tensor) -> None:
    """The same for rows in any order."""
    if values.device.type != "cpu":
        out.index_add_(0, rows, values)
    elif values.numel():
        width = values.shape[1]
        slabs = max(1, min(numba.get_num_threads(), width // 16))
        cuts = np.array([width * k // slabs for k in range(slabs + 1)])
        _add_to_starts(cuts, values.contiguous().numpy(), rows.numpy(), out.numpy())


def fold_max(values: Tensor, rows: Tensor, first: int, rank: Tensor, best: Tensor, winner: Tensor) -> None:
    """Fold messages into running maxima; of equal values that of the smallest rank wins, then the first edge.

    Not a number wins over all, so that a run that has diverged is not hidden.

    Args:
        values: [E, W]. rows: int32 [E], ascending. first: the number of the run's first edge.
        rank: int32 by the number of the edge. best: [M, W], starts at -inf. winner: int32 [M, W], starts at ``NOBODY``.
    """
    if values.numel():
        _fold_max(
            _pieces(rows),
            values.contiguous().numpy(),
            rows.numpy(),
            np.int64(first),
            rank.numpy(),
            best.numpy(),
            winner.numpy(),
        )


def fold_softmax(logits: Tensor, values: Tensor, rows: Tensor, largest: Tensor, total: Tensor, out: Tensor) -> None:
    """Fold softmax-weighted sums: ``out_i`` is the sum so far of exp(logit - largest_i) value, ``total_i`` that of the weights.

    Args:
        logits: [E, K]. values: [E, K D]. rows: int32 [E], ascending. largest: [M, K], starts at -inf. total: [M, K], from 0.
        out: [M, K D], from 0.
    """
    if logits.numel():
        _fold_softmax(
            _pieces(rows),
            logits.contiguous().numpy(),
            values.contiguous().numpy(),
            rows.numpy(),
            largest.numpy(),
            total.numpy(),
            out.numpy(),
        )


def _pieces(rows: Tensor) -> np.ndarray:
    """Where the run is cut so that threads write to different rows."""
    threads, ends = numba.get_num_threads(), rows.numpy()
    if threads == 1 or len(ends) < 256:
        return np.array([0, len(ends)])
    at = np.array([ends[len(ends) * k // threads] for k in range(1, threads)], ends.dtype)
    return np.concatenate([[0], np.searchsorted(ends, at), [len(ends)]])


@numba.njit(parallel=True, cache=True, nogil=True)
def _add_to_ends(pieces: Any, values: Any, rows: Any, out: Any) -> None:  # pragma: no cover - compiled
    for c in numba.prange(len(pieces) - 1):
        for e in range(pieces[c], pieces[c + 1]):
            into, value = out[rows[e]], values[e]
            for f in range(len(into)):
                into[f] += value[f]


@numba.njit(parallel=True, cache=True, nogil=True)
def _add_to_starts(cuts: Any, values: Any, rows: Any, out: Any) -> None:  # pragma: no cover - compiled
    for c in numba.prange(len(cuts) - 1):
        first, last = cuts[c], cuts[c + 1]
        for e in range(len(rows)):
            into, value = out[rows[e], first:last], values[e, first:last]
            for f in range(len(into)):
                into[f] += value[f]


@numba.njit(parallel=True, cache=True, nogil=True)
def _fold_max(
    pieces: Any, values: Any, rows: Any, first: Any, rank: Any, best: Any, winner: Any
) -> None:  # pragma: no cover - compiled
    for c in numba.prange(len(pieces) - 1):
        for e in range(pieces[c], pieces[c + 1]):
            most, who, value = best[rows[e]], winner[rows[e]], values[e]
            mine = rank[first + e]
            for f in range(len(most)):
                if value[f] != value[f]:
                    most[f], who[f] = value[f], first + e
                elif value[f] > most[f] or who[f] < 0:
                    most[f], who[f] = value[f], first + e
                elif value[f] == most[f]:
                    other = rank[who[f]]
                    if mine < other or (mine == other and first + e < who[f]):
                        who[f] = first + e


@numba.njit(parallel=True, cache=True, nogil=True)
def _fold_softmax(
    pieces: Any, logits: Any, values: Any, rows: Any, largest: Any, total: Any, out: Any
) -> None:  # pragma: no cover - compiled
    heads = logits.shape[1]
    width = values.shape[1] // heads
    for c in numba.prange(len(pieces) - 1):
        for e in range(pieces[c], pieces[c + 1]):
            i = rows[e]
            for k in range(heads):
                score, most = logits[e, k], largest[i, k]
                into, value = out[i, k * width : (k + 1) * width], values[e, k * width : (k + 1) * width]
                if score > most:
                    scale = np.exp(most - score) if total[i, k] != 0 else logits.dtype.type(0)
                    total[i, k] *= scale
                    for d in range(width):
                        into[d] *= scale
                    largest[i, k] = score
                    weight = logits.dtype.type(1)
                elif score == most and np.isinf(score):  # -inf after -inf: no weight
                    weight = logits.dtype.type(0)
                else:
                    weight = np.exp(score - most)
                total[i, k] += weight
                for d in range(width):
                    into[d] += weight * value[d]


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, rows, longs = torch.zeros(1, 1, dtype=wide(dtype)).numpy(), np.zeros(1, np.int32), np.zeros(2, np.int64)
    table = np.zeros((1, 1), np.int32)
    return [
        (_add_to_ends, (longs, x, rows, x)),
        (_add_to_starts, (longs, x, rows, x)),
        (_fold_max, (longs, x, rows, np.int64(0), rows, x, table)),
        (_fold_softmax, (longs, x, x, rows, x, x, x)),
    ]
