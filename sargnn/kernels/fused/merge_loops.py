"""Partial results merged into running ones on a CPU, compiled with Numba: a row that a peer sends counts like one edge.

Letters: M destination rows, A arriving rows, F features, K heads, D head width.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.bf16 import array_of, wide, widen
from sargnn.kernels.attention import RunningSoftmax

NOBODY = 2**31 - 1
"""The winner that is none of a peer's rows."""


def merge_softmax(rows: Tensor, values: Tensor, log_sum: Tensor, running: RunningSoftmax) -> None:
    """Fold softmaxes over other edges into running ones: m' = max(m, l), s' = s exp(m - m') + exp(l - m'), and

        out' = (s exp(m - m') out + exp(l - m') v) / s'

    Args:
        rows: int32 [A], destination rows, none twice. values: [A, K D], v, normalised. log_sum: [A, K], l; -inf: over no edges.
    """
    if len(rows):
        held = running.out, running.max_score, running.denominator
        _merge_softmax(rows.numpy(), array_of(values), array_of(log_sum), *(array_of(tensor) for tensor in held))


def merge_maxima(rows: Tensor, values: Tensor, places: Tensor, ranks: Tensor, best: Tensor, winner: Tensor) -> None:
    """Fold maxima over other edges into running ones, as ``MaxOperation.forward`` folds rows.

    Args:
        rows: int32 [A], destination rows, none twice. values: [A, F]. places: int32 [A, F], the winners, as places in
            ``ranks``.
        ranks: int32. best: [M, F]. winner: int32 [M, F], ranks.
    """
    if len(rows):
        _merge_maxima(*(array_of(tensor) for tensor in (rows, values, places, ranks, best, winner)))


def take_winners(winner: Tensor, rows: Tensor, ranks: Tensor, out: Tensor) -> None:
    """The places in ``ranks`` of the winners of some rows; ``NOBODY`` for winners that are not there.

    Args:
        winner: int32 [M, F], ranks. rows: int32 [A]. ranks: int32, ascending. out: int32 [A, F].
    """
    if len(rows):
        _take_winners(*(array_of(tensor) for tensor in (winner, rows, ranks, out)))


@numba.njit(parallel=True, cache=True, nogil=True)
def _merge_softmax(
    rows: Any, values: Any, log_sum: Any, out: Any, max_score: Any, denominator: Any
) -> None:  # pragma: no cover - compiled
    heads = log_sum.shape[1]
    width = values.shape[1] // heads
    zero = log_sum.dtype.type(0)
    for a in numba.prange(len(rows)):
        i = rows[a]
        for h in range(heads):
            score, top, sums = log_sum[a, h], max_score[i, h], denominator[i, h]
            if score == -np.inf:
                continue
            highest = max(score, top)
            before = sums * np.exp(top - highest) if sums != zero else zero
            fresh = np.exp(score - highest)
            total = before + fresh
            max_score[i, h], denominator[i, h] = highest, total
            into, value = out[i, h * width : (h + 1) * width], values[a, h * width : (h + 1) * width]
            new, old = fresh / total, before / total
            if sums == zero:  # what is there is undefined
                for d in range(width):
                    into[d] = widen(value[d])
            else:
                for d in range(width):
                    into[d] = old * into[d] + new * widen(value[d])


@numba.njit(parallel=True, cache=True, nogil=True)
def _merge_maxima(rows: Any, values: Any, places: Any, ranks: Any, best: Any, winner: Any) -> None:  # pragma: no cover
    for a in numba.prange(len(rows)):
        most, who = best[rows[a]], winner[rows[a]]
        for f in range(len(most)):
            value, held, place = widen(values[a, f]), widen(most[f]), places[a, f]
            known = 0 <= place < len(ranks)
            if not known and value == value:
                continue
            rank = ranks[place] if known else np.int32(NOBODY)
            if value > held or (value == held and rank < who[f]) or value != value:
                most[f], who[f] = values[a, f], rank


@numba.njit(parallel=True, cache=True, nogil=True)
def _take_winners(winner: Any, rows: Any, ranks: Any, out: Any) -> None:  # pragma: no cover - compiled
    for a in numba.prange(len(rows)):
        who, into = winner[rows[a]], out[a]
        for f in range(len(into)):
            low, high = 0, len(ranks)
            while low < high:
                middle = (low + high) // 2
                if ranks[middle] < who[f]:
                    low = middle + 1
                else:
                    high = middle
            into[f] = low if low < len(ranks) and ranks[low] == who[f] else NOBODY


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    rows, x = (array_of(torch.zeros(1, 1, dtype=precision)) for precision in (dtype, wide(dtype)))
    ints, table = np.zeros(1, np.int32), np.zeros((1, 1), np.int32)
    return [
        (_merge_softmax, (ints, rows, x, x, x, x)),
        (_merge_maxima, (ints, rows, table, ints, rows, table)),
        (_take_winners, (table, ints, ints, table)),
    ]
