"""Sums of rows that their edges' features have changed: GIN's aggregation with features of edges (GINE, Hu et al., 2020).

    out_i = l_i + sum over edges e = j -> i of w_e relu(u_e)        u_e = z_j + W f_e + b

f_e are the edge's features, the column ``ATTR``, w_e its weight, 1 without weights. u_e is computed for one edge at a time,
forward and again in backward, so nothing of size E x F is held, and features are read from where they lie.

Backward. With g_i the gradient of out_i and q_e = 1 where u_e > 0, else 0, column by column, the gradient of u_e is

    h_e = w_e q_e g_i

and since u_e is a sum, d z_j = sum of h_e over the edges from j, d W = sum of h_e f_e^T, d b = sum of h_e, d l_i = g_i. q_e
depends on the source row, so rows are fetched again (case 2).

A partial result is a sum over some of the edges, its gradient g_i: who owns the sources has what else h_e depends on.

Letters: N input rows, M output rows, S source rows of a shard, E edges, F columns of rows, D features of an edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sargnn.backends.operations import GineOperation
from sargnn.comm.lists import Column, PartialRound, Piece
from sargnn.engine.reducers.base import Fold, PartialColumns, Reducer, Saved, Tensors, WithPartials, served_shard
from sargnn.engine.workspace import widened, zero_sums
from sargnn.plan.layer_plan import Shard

_Fold = Fold[GineOperation]


@dataclass(frozen=True)
class _Backward:
    """The output's gradient [M, F], and so far d W [F, D] and d b [F]."""

    grad: Tensor
    d_maps: tuple[Tensor, Tensor]


class Gine(Reducer[GineOperation, Tensor, _Backward], WithPartials):
    """See the module's text. ``exchanged`` is (z [N, F],), ``dest_local`` (l [M, F],), of no further use to the caller, which
    becomes the output; ``params`` are (W [F, D], b [F]).

    Saves z. Memory beside input and output: none.
    """

    name = "gine"
    operation = "gine"
    needs_src_in_backward = True
    has_partials = True

    def init(self, fold: _Fold, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> Tensor:
        return widened(fold.pool, dest_local[0])

    def step(self, fold: _Fold, shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: Tensor) -> None:
        weight, bias = params
        fold.operation.forward(shard.block, rows[0], (weight, bias), state)

    def finish(self, fold: _Fold, dest_local: Tensors, params: Tensors, state: Tensor) -> tuple[Tensors, Tensors]:
        return (fold.narrowed(state, dest_local[0]),), ()

    def backward_init(self, fold: _Fold, saved: Saved, grads: Tensors) -> _Backward:
        weight, bias = saved.params
        return _Backward(grads[0].contiguous(), (torch.zeros_like(weight), torch.zeros_like(bias)))

    def backward_step(
        self, fold: _Fold, shard: Shard, rows: Tensors | None, saved: Saved, state: _Backward, out: Tensors | None
    ) -> None:
        assert rows is not None
        weight, bias = saved.params
        into = None if out is None else out[0]
        fold.operation.backward(shard.block, rows[0], (weight, bias), state.grad, into, state.d_maps)

    def backward_finish(self, saved: Saved, state: _Backward) -> tuple[Tensors, Tensors]:
        return (state.grad,), state.d_maps

    def partial_columns(self, widths: tuple[int, ...], rows: torch.dtype) -> PartialColumns:
        columns = (Column(widths[0], rows),)
        return PartialColumns(answered=columns, gradients=columns)

    def serve(
        self, fold: _Fold, piece: Piece, exchanged: Tensors, asked: Tensors, params: Tensors, state: Tensor, out: Tensors
    ) -> None:
        (total,), (weight, bias) = out, params
        held = total.zero_() if total.dtype == state.dtype else zero_sums(fold.pool, len(total), total.shape[1], total)
        fold.operation.forward(served_shard(fold, piece).block, exchanged[0], (weight, bias), held)
        if held is not total:
            total.copy_(held)

    def merge(self, fold: _Fold, now: PartialRound, answers: Tensors, state: Tensor) -> None:
        fold.backend.moves.add(state, now.wanted, answers[0])

    def ask_gradients(self, fold: _Fold, now: PartialRound, saved: Saved, state: _Backward, out: Tensors) -> None:
        fold.backend.moves.take(state.grad, now.wanted, out[0])

    def serve_gradients(
        self,
        fold: _Fold,
        piece: Piece,
        asked: Tensors,
        saved: Saved,
        state: _Backward,
        d_exchanged: Tensors | None,
        out: Tensors,
    ) -> None:
        (weight, bias), block = saved.params, served_shard(fold, piece).block
        into = None if d_exchanged is None else d_exchanged[0]
        fold.operation.backward(block, saved.exchanged[0], (weight, bias), asked[0], into, state.d_maps, add=True)

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        return (dest_local[0] + fold.operation(shard.block, rows[0], *params),)
