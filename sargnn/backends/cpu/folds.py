"""Messages of edges folded into rows, partial results merged into running ones, and rows that are taken into messages and added
from them, on a CPU, compiled with Numba.

Messages come in runs of edges whose destinations ascend. A partial result, a row that a peer sends, counts like one edge.

Letters: E edges of the run, M destination rows, A arriving rows, W or F columns, K heads, D columns of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.backends.base import Folds, Moves
from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.attention_parts import drop_weights
from sargnn.backends.operations import RunningSoftmax
from sargnn.bf16 import array_of, narrow, wide, widen
from sargnn.rng import Draw

NO_RANK = Folds.no_rank


class CpuFolds(Folds):
    """See ``Folds``."""

    def add_to_ends(self, values: Tensor, rows: Tensor, out: Tensor) -> None:
        if values.numel():
            _add_to_ends(_pieces(rows), values.contiguous().numpy(), rows.numpy(), out.numpy())

    def add_to_starts(self, values: Tensor, rows: Tensor, out: Tensor) -> None:
        if values.numel():
            width = values.shape[1]
            slabs = max(1, min(numba.get_num_threads(), width // 16))
            cuts = np.array([width * k // slabs for k in range(slabs + 1)])
            _add_to_starts(cuts, values.contiguous().numpy(), rows.numpy(), out.numpy())

    def fold_max(self, values: Tensor, rows: Tensor, first: int, rank: Tensor, best: Tensor, winner: Tensor) -> None:
        if values.numel():
            _fold_max(
                _pieces(rows),
                values.contiguous().numpy(),
                rows.numpy(),
                np.int64(first),
                *(array_of(tensor) for tensor in (rank, best, winner)),
            )

    def fold_softmax(self, logits: Tensor, values: Tensor, rows: Tensor, largest: Tensor, total: Tensor, out: Tensor) -> None:
        if logits.numel():
            _fold_softmax(
                _pieces(rows),
                logits.contiguous().numpy(),
                values.contiguous().numpy(),
                *(array_of(tensor) for tensor in (rows, largest, total, out)),
            )

    def merge_softmax(self, rows: Tensor, values: Tensor, log_sum: Tensor, running: RunningSoftmax) -> None:
        if len(rows):
            held = running.out, running.max_score, running.denominator
            _merge_softmax(*(array_of(tensor) for tensor in (rows, values, log_sum, *held)))

    def merge_maxima(self, rows: Tensor, values: Tensor, places: Tensor, ranks: Tensor, best: Tensor, winner: Tensor) -> None:
        if len(rows):
            _merge_maxima(*(array_of(tensor) for tensor in (rows, values, places, ranks, best, winner)))

    def take_winners(self, winner: Tensor, rows: Tensor, ranks: Tensor, out: Tensor) -> None:
        if len(rows):
            _take_winners(*(array_of(tensor) for tensor in (winner, rows, ranks, out)))

    def drop_factors(self, block: EdgeBlock, draw: Draw, dtype: torch.dtype) -> Tensor:
        ones, destinations = torch.ones(block.num_edges, 1, dtype=dtype), block.dst_per_edge().to(torch.int32)
        return drop_weights(ones, block.src_ids, block.src, block.dst_ids, destinations, draw)[:, 0]


class CpuMoves(Moves):
    """Compiled where PyTorch is slow."""

    def take(self, source: Tensor, rows: Tensor, out: Tensor) -> Tensor:
        if source.dtype == out.dtype:
            return torch.index_select(source, 0, rows, out=out)
        self.take_runs([source.contiguous()], [slice(0, len(rows))], rows, out)
        return out

    def add(self, target: Tensor, rows: Tensor, values: Tensor) -> None:
        self.add_runs([target], [slice(0, len(rows))], rows, values)

    def take_runs(self, sources: Sequence[Tensor], runs: Sequence[slice], rows: Tensor, out: Tensor) -> None:
        _take_rows(*_flat(sources, runs), rows.numpy(), array_of(out))

    def add_runs(self, targets: Sequence[Tensor], runs: Sequence[slice], rows: Tensor, values: Tensor) -> None:
        _add_rows(*_flat(targets, runs), rows.numpy(), array_of(values))


def _flat(tables: Sequence[Tensor], runs: Sequence[slice]) -> tuple[np.ndarray, np.ndarray]:
    """The table that lies lowest in memory, flat, and int64 [R]: how many numbers after its first one the table of each row
    begins. Loops that check no bounds reach all tables from there."""
    first = min(tables, key=lambda table: int(table.data_ptr()))
    behind = [(table.data_ptr() - first.data_ptr()) // first.element_size() for table in tables]
    assert all(table.is_contiguous() for table in tables)
    return array_of(first).reshape(-1), np.repeat(np.array(behind, np.int64), [run.stop - run.start for run in runs])


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
            rank = ranks[place] if known else np.int32(NO_RANK)
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
            into[f] = low if low < len(ranks) and ranks[low] == who[f] else NO_RANK


@numba.njit(parallel=True, cache=True, nogil=True)
def _take_rows(flat: Any, begins: Any, rows: Any, out: Any) -> None:  # pragma: no cover - compiled
    width = out.shape[1]
    for r in numba.prange(len(rows)):
        into, first = out[r], np.uint64(begins[r] + np.int64(rows[r]) * width)
        for f in range(width):
            into[f] = narrow(widen(flat[first + np.uint64(f)]), out)


@numba.njit(parallel=True, cache=True, nogil=True)
def _add_rows(flat: Any, begins: Any, rows: Any, values: Any) -> None:  # pragma: no cover - compiled
    width = values.shape[1]
    for r in numba.prange(len(rows)):
        value, first = values[r], np.uint64(begins[r] + np.int64(rows[r]) * width)
        for f in range(width):
            at = first + np.uint64(f)
            flat[at] = narrow(widen(flat[at]) + widen(value[f]), flat)


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    rows, x = (array_of(torch.zeros(1, 1, dtype=precision)) for precision in (dtype, wide(dtype)))
    half = array_of(torch.zeros(1, 1, dtype=torch.bfloat16))  # on the wire
    ints, longs, table = np.zeros(1, np.int32), np.zeros(2, np.int64), np.zeros((1, 1), np.int32)
    return [
        (_add_to_ends, (longs, x, ints, x)),
        (_add_to_starts, (longs, x, ints, x)),
        (_fold_max, (longs, x, ints, np.int64(0), ints, x, table)),
        (_fold_softmax, (longs, x, x, ints, x, x, x)),
        (_merge_softmax, (ints, rows, x, x, x, x)),
        (_merge_maxima, (ints, rows, table, ints, rows, table)),
        (_take_winners, (table, ints, ints, table)),
        *((move, (table[0], longs, ints, table)) for move in (_take_rows, _add_rows) for table in (rows, x)),
        *((move, (rows[0], longs, ints, half)) for move in (_take_rows, _add_rows) if dtype == torch.float32),
    ]
