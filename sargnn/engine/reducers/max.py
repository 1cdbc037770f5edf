"""Maximum over in-neighbours, feature by feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sargnn.backends.operations import MaxOperation
from sargnn.comm.lists import Column, PartialRound, Piece
from sargnn.engine.reducers.base import Fold, PartialColumns, Reducer, Saved, Tensors, WithPartials, partials_of, served_shard
from sargnn.plan.layer_plan import Shard

_Fold = Fold[MaxOperation]
_NONE = torch.iinfo(torch.int32).max


@dataclass(frozen=True)
class MaxState:
    """Maxima so far [M, F], and winners, int32 [M, F]: the rank of the source row's original id."""

    best: Tensor
    winner: Tensor


class Max(Reducer[MaxOperation, MaxState, Tensor], WithPartials):
    """``out_if = max of z_jf over edges j -> i``; isolated destinations give zeros. ``dest_local`` is empty.

    A tie goes to the smallest original source id. Backward: ``d z_jf = sum of g_if over the i that j won``: case 1.
    Saves the winners, int32 [M, F], as ranks of their original ids: no row is fetched again.

    A partial result is a maximum and its winner, named by its place among the peer's rows that edges into the own rows start
    from; its gradient goes back with the winner, or with a place that no row has where the peer has not won.
    """

    name = "max"
    operation = "max"
    needs_src_in_backward = False
    linear = False
    ranks_winners = True

    def init(self, fold: _Fold, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> MaxState:
        z = exchanged[0]
        shape = fold.plan.num_out, z.shape[1]
        best, winner = fold.pool.empty(*shape, z), fold.pool.empty(*shape, z.new_empty(0, dtype=torch.int32))
        return MaxState(best.fill_(-torch.inf), winner.fill_(_NONE))

    def step(self, fold: _Fold, shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: MaxState) -> None:
        fold.operation.forward(shard.block, rows[0], state.best, state.winner)

    def finish(self, fold: _Fold, dest_local: Tensors, params: Tensors, state: MaxState) -> tuple[Tensors, Tensors]:
        isolated = fold.plan.in_degrees == 0  # a destination without edges has no winner in any feature
        return (state.best.masked_fill_(isolated[:, None], 0),), (state.winner,)

    def backward_init(self, fold: _Fold, saved: Saved, grads: Tensors) -> Tensor:
        return grads[0].contiguous()

    def backward_step(
        self, fold: _Fold, shard: Shard, rows: Tensors | None, saved: Saved, state: Tensor, out: Tensors | None
    ) -> None:
        if out is not None:
            fold.operation.backward(shard.block, state, saved.stats[0], out[0])

    def backward_finish(self, saved: Saved, state: Tensor) -> tuple[Tensors, Tensors]:
        return (), ()

    def partial_columns(self, widths: tuple[int, ...], rows: torch.dtype) -> PartialColumns:
        columns = (Column(widths[0], rows), Column(widths[0], torch.int32, exact=True))
        return PartialColumns(answered=columns, gradients=columns)

    def serve(
        self, fold: _Fold, piece: Piece, exchanged: Tensors, asked: Tensors, params: Tensors, state: MaxState, out: Tensors
    ) -> None:
        best, winner = out
        fold.operation.forward(served_shard(fold, piece).block, exchanged[0], best.fill_(-torch.inf), winner.fill_(_NONE))

    def merge(self, fold: _Fold, now: PartialRound, answers: Tensors, state: MaxState) -> None:
        values, places = answers
        fold.backend.folds.merge_maxima(now.wanted, values, places, _ranks(fold, now), state.best, state.winner)

    def ask_gradients(self, fold: _Fold, now: PartialRound, saved: Saved, state: Tensor, out: Tensors) -> None:
        fold.backend.moves.take(state, now.wanted, out[0])
        fold.backend.folds.take_winners(saved.stats[0], now.wanted, _ranks(fold, now), out[1])

    def serve_gradients(
        self, fold: _Fold, piece: Piece, asked: Tensors, saved: Saved, state: Tensor, d_exchanged: Tensors | None, out: Tensors
    ) -> None:
        if d_exchanged is not None:
            grad, winner = asked
            fold.operation.backward(served_shard(fold, piece).block, grad, winner, d_exchanged[0], add=True)

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        return (fold.operation(shard.block, rows[0]),)


def _ranks(fold: _Fold, now: PartialRound) -> Tensor:
    ranks = partials_of(fold).peer_ranks
    assert ranks is not None
    return ranks[now.piece.peer]
