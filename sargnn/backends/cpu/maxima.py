"""Maxima over edges on a CPU, compiled with Numba, feature by feature.

Letters: S source rows, M destination rows, A listed destination rows, E edges, F features.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.block_arrays import edges_of, numpy_of
from sargnn.backends.operations import MaxOperation
from sargnn.bf16 import array_of, narrow, number, widen


class FusedMax(MaxOperation):
    """Needs no temporary. A row that is not a number wins over all."""

    lists_sources = True

    @staticmethod
    def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
        """The compiled functions with arguments of the types that they are called with."""
        x, ints, longs = array_of(torch.zeros(1, 16, dtype=dtype)), np.zeros(2, np.int32), np.zeros(2, np.int64)
        table = np.zeros((1, 16), np.int32)
        return [
            (_fold_max, ((longs, ints, ints, ints), x, ints, x, table)),
            (_write_max_gradients, ((longs, ints, ints, ints), x, table, ints, number(0, dtype), 1, x)),
        ]

    def forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        if block.num_edges:
            ranks = block.src_id_rank.numpy()
            _fold_max(edges_of(block, "forward"), numpy_of(src), ranks, numpy_of(best), numpy_of(winner))

    def backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor, *, add: bool = False) -> None:
        if not block.num_edges:
            if not add:
                out.zero_()
            return
        assert add or block.src_rows is None, "source rows that are not listed would not be written"
        _write_max_gradients(
            edges_of(block, "backward"),
            numpy_of(grad),
            numpy_of(winner),
            block.src_id_rank.numpy(),
            number(0, grad.dtype),
            int(add),
            numpy_of(out),
        )


@numba.njit(parallel=True, cache=True, nogil=True)
def _fold_max(edges: Any, src: Any, id_rank: Any, best: Any, winner: Any) -> None:  # pragma: no cover
    """Fold source rows into running maxima; of equal values the source with the smallest ``id_rank`` wins.

    Not a number wins over all, so that a run that has diverged is not hidden.

    Args:
        edges: as ``edges_of`` gives them.
        id_rank: int32 [S], the rank of each source row's original id among all that this worker sees.
        best: [M, F], starts at -inf.
        winner: int32 [M, F], the winner's ``id_rank``, starts at 2**31 - 1.
    """
    chunks, rows, indptr, indices = edges
    everything = len(rows) == 0
    for c in numba.prange(len(chunks) - 1):
        for a in range(chunks[c], chunks[c + 1]):
            i = np.int64(a) if everything else np.int64(rows[a])
            most, who = best[i], winner[i]
            for e in range(indptr[a], indptr[a + 1]):
                values, rank = src[indices[e]], id_rank[indices[e]]
                for f in range(len(most)):
                    value, held = widen(values[f]), widen(most[f])
                    better = value > held or (value == held and rank < who[f]) or value != value
                    most[f] = values[f] if better else most[f]
                    who[f] = rank if better else who[f]


@numba.njit(parallel=True, cache=True, nogil=True)
def _write_max_gradients(
    edges: Any, grad: Any, winner: Any, id_rank: Any, zero: Any, add: Any, out: Any
) -> None:  # pragma: no cover
    """``out[j] = sum of grad[i] over edges j -> i where j won``; parallel edges, which lie side by side, count once.

    Args:
        edges: as ``edges_of`` gives them.
        zero: of the type in which sums are kept.
        add: 1 to add to ``out``, 0 to overwrite it.
    """
    chunks, rows, indptr, indices = edges
    everything = len(rows) == 0
    for c in numba.prange(len(chunks) - 1):
        sums = np.full(grad.shape[1], zero)
        for a in range(chunks[c], chunks[c + 1]):
            j = np.int64(a) if everything else np.int64(rows[a])
            target, rank = out[j], id_rank[j]
            for f in range(len(target)):
                sums[f] = widen(target[f]) if add != 0 else zero
            for e in range(indptr[a], indptr[a + 1]):
                if e > indptr[a] and indices[e] == indices[e - 1]:
                    continue
                g, who = grad[indices[e]], winner[indices[e]]
                for f in range(len(sums)):
                    sums[f] += widen(g[f]) if who[f] == rank else zero
            for f in range(len(target)):
                target[f] = narrow(sums[f], target)
