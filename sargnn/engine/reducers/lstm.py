"""An LSTM over in-neighbours, in an order that is drawn.

    out_i = last hidden state of an LSTM over z_j1, z_j2, ... , edges j -> i in a drawn order; isolated rows give zeros

For modes that hold all rows of a node's neighbours: the whole sequence is one step. Nodes with as many edges are taken
together, as DGL does it, in batches of at most ``EDGES_AT_ONCE`` edges.

Saves nothing of the LSTM. Backward (case 2) runs it again, batch after batch, under autograd, and sends the gradients of a
batch's rows and of the parameters back at once.

Letters: M output rows, S source rows, E edges, B nodes that are taken together, D edges of each, F features, H hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sargnn.backends.operations import Operation
from sargnn.bf16 import wide
from sargnn.engine.reducers.base import Fold, Reducer, Saved, Tensors
from sargnn.engine.workspace import zero_sums
from sargnn.plan.layer_plan import Shard
from sargnn.rng import Draw, Purpose, neighbour_keys

EDGES_AT_ONCE = 1 << 16
"""Edges of one batch of nodes, unless a single node has more."""
_UNSHUFFLED = Draw(0, 0, Purpose.NEIGHBOURS, 0, 0.0)


@dataclass(frozen=True)
class _Batch:
    """Nodes with as many edges: rows int64 [B], output rows; sources int32 [B, D], their source rows in order."""

    rows: Tensor
    sources: Tensor


@dataclass
class _Backward:
    grad: Tensor
    params: list[Tensor]


class Lstm(Reducer[Operation, Tensor, _Backward]):
    """``exchanged`` is (z,), [N, F]; ``dest_local`` empty; ``params`` those of ``torch.nn.LSTM(F, H)`` of one layer, in order.

    ``draw``: what the order of a node's neighbours depends on. Parallel edges have one place, side by side.
    """

    name = "lstm"
    operation = "sum"
    no_partials = "an LSTM reads all of a node's rows, one after the other"
    needs_src_in_backward = True
    library_bytes = 32 << 20  # oneDNN's recurrent layers, measured

    def __init__(self, draw: Draw = _UNSHUFFLED) -> None:
        self.draw = draw

    @property
    def edges_at_once(self) -> int:
        return EDGES_AT_ONCE

    def init(self, fold: Fold[Operation], exchanged: Tensors, dest_local: Tensors, params: Tensors) -> Tensor:
        assert fold.plan.merged is not None or fold.plan.world == 1, "a mode that holds all rows of a node's neighbours"
        return zero_sums(fold.pool, fold.plan.num_out, params[1].shape[1], exchanged[0])

    def step(
        self, fold: Fold[Operation], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: Tensor
    ) -> None:
        for batch in self._batches(shard):
            state[batch.rows] = _last(_gather(rows[0], batch), params)

    def finish(self, fold: Fold[Operation], dest_local: Tensors, params: Tensors, state: Tensor) -> tuple[Tensors, Tensors]:
        return (fold.narrowed(state),), ()

    def backward_init(self, fold: Fold[Operation], saved: Saved, grads: Tensors) -> _Backward:
        return _Backward(grads[0].contiguous(), [torch.zeros_like(param) for param in saved.params])

    def backward_step(
        self, fold: Fold[Operation], shard: Shard, rows: Tensors | None, saved: Saved, state: _Backward, out: Tensors | None
    ) -> None:
        assert rows is not None
        d_rows = None if out is None else zero_sums(fold.pool, len(out[0]), out[0].shape[1], out[0])
        params = [param.detach().requires_grad_() for param in saved.params]
        for batch in self._batches(shard):
            leaf = _gather(rows[0], batch).detach().requires_grad_(d_rows is not None)
            with torch.enable_grad():
                last = _last(leaf, tuple(params))
            wanted = params if d_rows is None else [leaf, *params]
            gradients = list(torch.autograd.grad(last, wanted, state.grad[batch.rows].to(last.dtype)))
            if d_rows is not None:
                fold.backend.folds.add_to_starts(gradients.pop(0).flatten(0, 1), batch.sources.flatten(), d_rows)
            for total, gradient in zip(state.params, gradients, strict=True):
                total += gradient
        if out is not None and d_rows is not None:
            out[0].copy_(d_rows)

    def backward_finish(self, saved: Saved, state: _Backward) -> tuple[Tensors, Tensors]:
        return (), tuple(state.params)

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        dtype = rows[0].dtype
        out, batches = torch.zeros(fold.plan.num_out, params[1].shape[1], dtype=wide(dtype)), list(self._batches(shard))
        if not batches:
            return ((out + 0 * sum(param.sum() for param in params)).to(dtype),)  # gradients of zero, not none
        last = torch.cat([_last(_gather(rows[0], batch), params) for batch in batches])
        return (out.index_copy(0, torch.cat([batch.rows for batch in batches]), last).to(dtype),)

    def _batches(self, shard: Shard) -> Iterator[_Batch]:
        block = shard.block
        begins, degrees = block.indptr[:-1].long(), (block.indptr[1:] - block.indptr[:-1]).long()
        listed = torch.arange(block.num_dst) if block.dst_rows is None else block.dst_rows.long()
        destinations = block.dst_ids.index_select(0, block.dst_per_edge())
        keys = neighbour_keys(block.src_ids.index_select(0, block.src), destinations, self.draw)
        for degree in torch.unique(degrees).tolist():
            for nodes in torch.nonzero(degrees == degree)[:, 0].split(max(1, EDGES_AT_ONCE // max(degree, 1))):
                if degree:
                    edges = begins[nodes][:, None] + torch.arange(degree)
                    yield _Batch(listed[nodes], block.src[edges.gather(1, keys[edges].argsort(1))])


def _gather(rows: Tensor, batch: _Batch) -> Tensor:
    """[B, D, F], in what such rows are computed with."""
    return rows.index_select(0, batch.sources.flatten()).view(*batch.sources.shape, rows.shape[1]).to(wide(rows.dtype))


def _last(sequences: Tensor, params: Tensors) -> Tensor:
    """The last hidden states [B, H] of sequences [B, D, F], from zeros."""
    start = sequences.new_zeros(1, len(sequences), params[1].shape[1])
    lstm: Any = torch.lstm  # batch_first, one layer, biases, no dropout
    hidden: Tensor = lstm(sequences, (start, start), params, True, 1, 0.0, False, False, True)[1]
    return hidden[0]
