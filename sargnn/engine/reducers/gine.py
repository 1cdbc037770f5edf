"""Sums of rows that their edges' features have changed: GIN's aggregation with features of edges (GINE, Hu et al., 2020).

    out_i = l_i + sum over edges e = j -> i of w_e relu(u_e)        u_e = z_j + W f_e + b

f_e are the edge's features, the column ``ATTR``, w_e its weight, 1 without weights. u_e is computed for a run of edges at a
time, forward and again in backward, so nothing of size E x F is held, and features are read from where they lie.

Backward. With g_i the gradient of out_i and q_e = 1 where u_e > 0, else 0, column by column, the gradient of u_e is

    h_e = w_e q_e g_i

and since u_e is a sum, d z_j = sum of h_e over the edges from j, d W = sum of h_e f_e^T, d b = sum of h_e, d l_i = g_i. q_e
depends on the source row, so rows are fetched again (case 2).

Letters: N input rows, M output rows, S source rows of a shard, E edges, F columns of rows, D features of an edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sargnn.backends.operations import Operation
from sargnn.bf16 import wide
from sargnn.engine.reducers.base import Fold, Reducer, Saved, Tensors
from sargnn.engine.reducers.generic import EdgeRun, runs_of
from sargnn.engine.rounding import widened, zero_sums
from sargnn.graph.edge_columns import ATTR
from sargnn.plan.layer_plan import Shard


@dataclass(frozen=True)
class _Backward:
    """Gradients so far, in what sums are held in: the output's [M, F], d W [F, D], d b [F]."""

    grad: Tensor
    d_weight: Tensor
    d_bias: Tensor


class Gine(Reducer[Operation, Tensor, _Backward]):
    """See the module's text. ``exchanged`` is (z [N, F],), ``dest_local`` (l [M, F],), of no further use to the caller, which
    becomes the output; ``params`` are (W [F, D], b [F]).

    Saves z. Memory beside input and output: a run's edges.
    """

    name = "gine"
    operation = "sum"
    needs_src_in_backward = True
    no_partials = "the features of edges stay with their destinations' owner"

    def init(self, fold: Fold[Operation], exchanged: Tensors, dest_local: Tensors, params: Tensors) -> Tensor:
        return widened(fold.pool, dest_local[0])

    def step(
        self, fold: Fold[Operation], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: Tensor
    ) -> None:
        for run in runs_of(fold.plan, shard, state.shape[1]):
            messages, _ = _messages(fold, run, rows[0], params)
            fold.backend.folds.add_to_ends(_weighted(messages.relu_(), run), run.dst, state)

    def finish(self, fold: Fold[Operation], dest_local: Tensors, params: Tensors, state: Tensor) -> tuple[Tensors, Tensors]:
        return (fold.narrowed(state, dest_local[0]),), ()

    def backward_init(self, fold: Fold[Operation], saved: Saved, grads: Tensors) -> _Backward:
        weight, bias = saved.params
        return _Backward(grads[0].contiguous(), torch.zeros_like(weight), torch.zeros_like(bias))

    def backward_step(
        self,
        fold: Fold[Operation],
        shard: Shard,
        rows: Tensors | None,
        saved: Saved,
        state: _Backward,
        out: Tensors | None,
    ) -> None:
        assert rows is not None
        z, width = rows[0], state.grad.shape[1]
        d_rows = None if out is None else zero_sums(fold.pool, len(z), width, z) if _is_half(z) else out[0].zero_()
        for run in runs_of(fold.plan, shard, width):
            messages, attributes = _messages(fold, run, z, saved.params)
            gradients = state.grad.index_select(0, run.dst).to(messages.dtype)
            _weighted(gradients.masked_fill_(messages <= 0, 0), run)
            with fold.linear():
                state.d_weight.addmm_(gradients.T, attributes)
            state.d_bias.add_(gradients.sum(0))
            if d_rows is not None:
                fold.backend.folds.add_to_starts(gradients, run.src, d_rows)
        if out is not None and d_rows is not None and d_rows is not out[0]:
            out[0].copy_(d_rows)

    def backward_finish(self, saved: Saved, state: _Backward) -> tuple[Tensors, Tensors]:
        return (state.grad,), (state.d_weight, state.d_bias)

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        block, (z,), (weight, bias) = shard.block, rows, params
        attributes = block.columns.tensor(ATTR, weight)
        messages = (z.index_select(0, block.src) + attributes @ weight.T + bias).relu()
        if block.weight is not None:
            messages = messages * block.weight[:, None]
        total = messages.new_zeros(fold.plan.num_out, z.shape[1]).index_add(0, block.dst_per_edge(), messages)
        return ((dest_local[0] + total).to(z.dtype),)


def _messages(fold: Fold[Any], run: EdgeRun, z: Tensor, params: Tensors) -> tuple[Tensor, Tensor]:
    """u_e [E, F] and f_e [E, D] of a run, in what sums are held in."""
    weight, bias = params
    attributes = run.column(ATTR, weight)
    with fold.linear():
        messages = torch.addmm(bias, attributes, weight.T)
    return messages.add_(z.index_select(0, run.src)), attributes


def _weighted(values: Tensor, run: EdgeRun) -> Tensor:
    """Values [E, F] times w_e, in place."""
    weight = run.block.weight
    return values if weight is None else values.mul_(weight[run.begin : run.end, None])


def _is_half(rows: Tensor) -> bool:
    return wide(rows.dtype) != rows.dtype
