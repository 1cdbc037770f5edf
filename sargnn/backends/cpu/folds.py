"""Messages of edges folded into rows, partial results merged into running ones, and rows that are taken into messages and added
from them, on a CPU, in the library's ``folds.cpp`` and ``moves.cpp``.

Letters: E edges of the run, M destination rows, A arriving rows, W or F columns, K heads, D columns of a head, R rows that are
moved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.base import Folds, Moves
from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import RunningSoftmax
from sargnn.bf16 import wide
from sargnn.native import Entry, draw_words
from sargnn.rng import Draw

_add_to_ends = Entry("add_to_ends", "values x E W", "rows i E", "out x M W")
_add_to_starts = Entry("add_to_starts", "values x E W", "rows i E", "out x M W")
_fold_max = Entry("fold_max", "values x E W", "rows i E", "first int", "rank i", "best x M W", "winner i M W")
_fold_softmax = Entry("fold_softmax", "logits x E K", "values x E W", "rows i E", "largest x M K", "total x M K", "out x M W")
_merge_softmax = Entry(
    "merge_softmax", "rows i A", "values x A W", "log_sum w A K", "out w M W", "max_score w M K", "denominator w M K"
)
_merge_maxima = Entry("merge_maxima", "rows i A", "values x A W", "places i A W", "ranks i", "best x M W", "winner i M W")
_take_winners = Entry("take_winners", "winner i M W", "rows i A", "ranks i", "out i A W")
_drop_weights = Entry(
    "drop_weights",
    "weights x E K",
    "source_ids l",
    "sources i E",
    "destination_ids l",
    "destinations i E",
    "draw draw",
    "out x E K",
)
_take_rows = Entry("take_rows", "sources xs S F", "ends l", "rows i R", "out y R F")
_add_rows = Entry("add_rows", "targets xs S F", "ends l", "rows i R", "values y R F")
_add_scaled = Entry("add_scaled_rows", "source x S F, rows i R, weights w R, to i R, target w M F")


class CpuFolds(Folds):
    def add_to_ends(self, values: Tensor, rows: Tensor, out: Tensor) -> None:
        _add_to_ends(values.contiguous(), rows, out)

    def add_to_starts(self, values: Tensor, rows: Tensor, out: Tensor) -> None:
        _add_to_starts(values.contiguous(), rows, out)

    def fold_max(self, values: Tensor, rows: Tensor, first: int, rank: Tensor, best: Tensor, winner: Tensor) -> None:
        _fold_max(values.contiguous(), rows, first, rank, best, winner)

    def fold_softmax(self, logits: Tensor, values: Tensor, rows: Tensor, largest: Tensor, total: Tensor, out: Tensor) -> None:
        _fold_softmax(logits.contiguous(), values.contiguous(), rows, largest, total, out)

    def merge_softmax(self, rows: Tensor, values: Tensor, log_sum: Tensor, running: RunningSoftmax) -> None:
        _merge_softmax(rows, values, log_sum, running.out, running.max_score, running.denominator)

    def merge_maxima(self, rows: Tensor, values: Tensor, places: Tensor, ranks: Tensor, best: Tensor, winner: Tensor) -> None:
        _merge_maxima(rows, values, places, ranks, best, winner)

    def take_winners(self, winner: Tensor, rows: Tensor, ranks: Tensor, out: Tensor) -> None:
        _take_winners(winner, rows, ranks, out)

    def drop_factors(self, block: EdgeBlock, draw: Draw, dtype: torch.dtype) -> Tensor:
        ones, destinations = torch.ones(block.num_edges, 1, dtype=dtype), block.dst_per_edge().to(torch.int32)
        return drop_weights(ones, block.src_ids, block.src, block.dst_ids, destinations, draw)[:, 0]


def drop_weights(
    weights: Tensor, source_ids: Tensor, sources: Tensor, destination_ids: Tensor, destinations: Tensor, draw: Draw
) -> Tensor:
    """Attention dropout of weights [E, K] that stand in memory.

    Args:
        source_ids: int64 [S].
        sources: int32 [E], the source row of each edge.
        destination_ids: int64 [M].
        destinations: int32 [E].
    """
    held = weights.to(wide(weights.dtype)).contiguous()
    out = torch.empty_like(held)
    _drop_weights(held, source_ids, sources, destination_ids, destinations, draw_words(draw), out)
    return out.to(weights.dtype)


class CpuMoves(Moves):
    """The library's where PyTorch is slow. One call takes rows of all tables."""

    def take(self, source: Tensor, rows: Tensor, out: Tensor) -> Tensor:
        if source.dtype == out.dtype:
            return torch.index_select(source, 0, rows, out=out)
        self.take_runs([source.contiguous()], [slice(0, len(rows))], rows, out)
        return out

    def add(self, target: Tensor, rows: Tensor, values: Tensor) -> None:
        self.add_runs([target], [slice(0, len(rows))], rows, values)

    def add_each(self, target: Tensor, rows: Tensor, values: Tensor) -> None:
        _add_to_starts(values.contiguous(), rows.int(), target)

    def add_scaled(self, target: Tensor, to: Tensor, weights: Tensor, source: Tensor, rows: Tensor) -> None:
        _add_scaled(source, rows.int(), weights.contiguous(), to.int(), target)

    def take_runs(self, sources: Sequence[Tensor], runs: Sequence[slice], rows: Tensor, out: Tensor) -> None:
        if len(rows):
            _take_rows(sources, _ends(runs), rows.int(), out)

    def add_runs(self, targets: Sequence[Tensor], runs: Sequence[slice], rows: Tensor, values: Tensor) -> None:
        if len(rows):
            _add_rows(targets, _ends(runs), rows.int(), values)


def _ends(runs: Sequence[slice]) -> np.ndarray:
    return np.array([run.stop for run in runs], np.int64)
