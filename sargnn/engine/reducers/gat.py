"""Attention over in-neighbours: a softmax that goes on from shard to shard (paper, section 3.4).

    out_i = sum over edges j -> i of r_ji a_ji z_j        a_ji = exp(e_ji - m_i) / s_i

Per destination and head the running maximum m, denominator s and the row normalised so far are kept; when m grows, both are
scaled by exp(old m - new m). r is attention dropout's factor, drawn again in backward by the original ids of the edge's ends,
and with ``weighted`` times the graph's edge weight, as DGL's ``GATConv`` takes ``edge_weight``: the softmax does not see it.
Backward, with delta_i = <g_i, out_i> per head: d e = a (r <g_i, z_j> - delta_i), d z_j += a r g_i.

A partial result is the softmax over some of a destination's edges: the row normalised, and l = m + log s per head. It merges as
one edge with the score l. Backward asks with g_i, l_i of all edges and delta_i: a_ji = exp(e_ji - l_i) needs nothing that the
sources' owner must have kept.

Letters: N input rows, M output rows, S source rows of a shard, A rows of a piece, K heads, D head width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from sargnn.backends.base import Moves
from sargnn.backends.block import EdgeBlock, keep_edges
from sargnn.backends.operations import (
    Attention,
    AttentionOperation,
    GatOperation,
    GatV2Operation,
    RunningSoftmax,
)
from sargnn.bf16 import wide
from sargnn.comm.layout import Column
from sargnn.comm.lists import PartialRound, Piece
from sargnn.engine.reducers.base import BackwardState, Fold, Reducer, Saved, Tensors
from sargnn.engine.reducers.edge_weights import check_weights, weight_argument
from sargnn.engine.reducers.partial import PartialColumns, WithPartials, served_shard
from sargnn.engine.rounding import empty_sums, zero_sums
from sargnn.errors import KernelError
from sargnn.plan.layer_plan import Shard
from sargnn.rng import Draw

AttentionOp = TypeVar("AttentionOp", bound=AttentionOperation)


class _Attentive(Reducer[AttentionOp, RunningSoftmax, BackwardState], WithPartials, ABC):
    """What both scorings share.

    Args:
        heads: K. negative_slope: of LeakyReLU, 0 to 1. draw: of attention dropout; None drops nothing.
        weighted: use the graph's edge weights where it has some.
        edges: of edges that take no part, neither in the softmax nor in the sum; None: all do. Drawn again in backward.
    """

    needs_src_in_backward = True
    needs_out_in_backward = True

    def __init__(
        self,
        heads: int = 1,
        negative_slope: float = 0.2,
        draw: Draw | None = None,
        edges: Draw | None = None,
        *,
        weighted: bool = False,
    ) -> None:
        self.attention, self.edges = Attention(heads, negative_slope, draw), edges
        self.weighted = weighted

    def init(self, fold: Fold[AttentionOp], exchanged: Tensors, dest_local: Tensors, params: Tensors) -> RunningSoftmax:
        check_weights(fold.plan, fold.operation, weighted=self.weighted)
        if fold.scores is not None:
            check_scores(fold.operation)
        z, num_out = exchanged[0], fold.plan.num_out
        return RunningSoftmax.empty(z, num_out, self.attention.heads, empty_sums(fold.pool, num_out, z.shape[1], z))

    def finish(
        self, fold: Fold[AttentionOp], dest_local: Tensors, params: Tensors, state: RunningSoftmax
    ) -> tuple[Tensors, Tensors]:
        nothing = fold.plan.in_degrees == 0 if self.edges is None else state.denominator[:, 0] == 0
        isolated = torch.nonzero(nothing)[:, 0]
        state.out.index_fill_(0, isolated, 0)
        return (fold.narrowed(state.out),), (state.max_score, state.denominator)

    def serve(
        self,
        fold: Fold[AttentionOp],
        piece: Piece,
        exchanged: Tensors,
        asked: Tensors,
        params: Tensors,
        state: RunningSoftmax,
        out: Tensors,
    ) -> None:
        rows, log_sum = out
        shard = served_shard(fold, piece)
        half = rows.dtype == torch.bfloat16
        held = empty_sums(fold.pool, len(rows), rows.shape[1], rows) if half else rows
        running = RunningSoftmax.empty(exchanged[0], len(rows), self.attention.heads, held)
        self.step(fold, shard, exchanged, asked, params, running)
        if self.edges is not None:  # which may leave nothing of a row's edges
            running.out.index_fill_(0, torch.nonzero(running.denominator[:, 0] == 0)[:, 0], 0)
        torch.add(running.max_score, running.denominator.log(), out=log_sum)
        if held is not rows:
            rows.copy_(held)

    def merge(self, fold: Fold[AttentionOp], now: PartialRound, answers: Tensors, state: RunningSoftmax) -> None:
        rows, log_sum = answers
        fold.backend.folds.merge_softmax(now.wanted, rows, log_sum, state)

    @abstractmethod
    def _numbers(self, state: BackwardState) -> tuple[Tensor, Tensor]:
        """The records [M, 4 K] and the output's gradient [M, K D] of a backward pass."""

    def _write_weights(self, moves: Moves, state: BackwardState, rows: Tensor, grad: Tensor, out: Tensor, *, er: bool) -> None:
        """The gradient of output rows [A, K D] and (er, if wanted, l, delta) [A, 2 K or 3 K], for ``_records_of``."""
        records, whole = self._numbers(state)
        moves.take(whole, rows, grad)
        score, top, inverse, delta = records.index_select(0, rows).split(self.attention.heads, 1)
        log_sum = torch.where(inverse > 0, top - inverse.log(), 0)
        torch.cat([*([score] if er else []), log_sum, delta], 1, out=out)

    def _records_of(self, numbers: Tensor) -> Tensor:
        """[A, 4 K], what ``_write_weights`` wrote as records: a maximum of l and a sum of 1."""
        *er, log_sum, delta = numbers.split(self.attention.heads, 1)
        return torch.cat([er[0] if er else torch.zeros_like(delta), log_sum, torch.ones_like(delta), delta], 1)

    def _block(self, fold: Fold[Any], shard: Shard) -> tuple[EdgeBlock, dict[str, Any]]:
        """The edges that take part, and their weights as an argument. What kernels keep with a block is made anew for some."""
        block = shard.block
        if self.edges is not None:
            block = keep_edges(block, fold.backend.folds.drop_factors(block, self.edges, torch.float32) > 0)
        return block, weight_argument(block, weighted=self.weighted)

    def _forward_block(self, fold: Fold[AttentionOp], shard: Shard) -> tuple[EdgeBlock, dict[str, Any]]:
        """The same, and memory for their scores where these are kept."""
        block, arguments = self._block(fold, shard)
        if fold.scores is not None:
            like = torch.empty(0, dtype=wide(fold.dtype), device=fold.plan.in_degrees.device)
            scores = fold.pool.empty(shard.block.num_edges, self.attention.heads, like)  # as many in every epoch
            fold.scores[id(shard)] = arguments["scores"] = scores[: block.num_edges]
        return block, arguments

    def _backward_block(self, fold: Fold[AttentionOp], shard: Shard) -> tuple[EdgeBlock, dict[str, Any]]:
        """The same, and their scores, which nobody else keeps then."""
        block, arguments = self._block(fold, shard)
        if fold.scores is not None and id(shard) in fold.scores:
            arguments["scores"] = fold.scores.pop(id(shard))
        return block, arguments

    def _records(self, operation: AttentionOp, er: Tensor | None, saved: Saved, grad: Tensor) -> Tensor:
        """What backward reads of each destination; the output is not needed after that."""
        (out,), saved.out = saved.out, ()
        return operation.destination_records(er, RunningSoftmax(out, *saved.stats), grad)


def check_scores(operation: Any) -> None:
    """Raises ``KernelError`` if a kernel's operation gives no scores to keep."""
    if not getattr(operation, "keeps_scores", False):
        raise KernelError(
            "This kernel gives no attention scores to keep.",
            given="mode.keep=all",
            allowed="operations with 'keeps_scores' (sargnn.backends.operations.AttentionOperation)",
            hint="mode.keep=rows, or kernel=auto",
        )


@dataclass(frozen=True)
class GatGradients:
    """A backward pass of ``Gat``.

    Attributes:
        records: [M, 4 K], see ``AttentionOperation.destination_records``.
        grad: [M, K D], of the output. d_er: [M, K], so far.
    """

    records: Tensor
    grad: Tensor
    d_er: Tensor


class Gat(_Attentive[GatOperation, GatGradients]):
    """Scores ``e_ji = LeakyReLU(el_j + er_i)`` (Velickovic et al., 2018).

    ``exchanged`` is (z [N, K D], el [N, K]), in one message; ``dest_local`` is (er [M, K],). Saves its inputs, its output, m
    and s.
    """

    name = "gat"
    operation = "gat"
    has_partials = True  # ``serve`` calls its own ``step``
    scores = (1,)

    def step(
        self,
        fold: Fold[GatOperation],
        shard: Shard,
        rows: Tensors,
        dest_local: Tensors,
        params: Tensors,
        state: RunningSoftmax,
    ) -> None:
        z, el = rows
        block, weight = self._forward_block(fold, shard)
        fold.operation.forward(block, self.attention, z, el, dest_local[0], state, **weight)

    def backward_init(self, fold: Fold[GatOperation], saved: Saved, grads: Tensors) -> GatGradients:
        grad, (er,) = grads[0].contiguous(), saved.dest_local
        return GatGradients(self._records(fold.operation, er, saved, grad), grad, torch.zeros_like(er))

    def backward_step(
        self,
        fold: Fold[GatOperation],
        shard: Shard,
        rows: Tensors | None,
        saved: Saved,
        state: GatGradients,
        out: Tensors | None,
    ) -> None:
        assert rows is not None
        z, el = rows
        d_z, d_el = (None, None) if out is None else out
        block, weight = self._backward_block(fold, shard)
        fold.operation.backward(
            block,
            self.attention,
            z,
            el,
            state.records,
            state.grad,
            d_z,
            d_el,
            state.d_er,
            **weight,
        )

    def backward_finish(self, saved: Saved, state: GatGradients) -> tuple[Tensors, Tensors]:
        return (state.d_er,), ()

    def partial_columns(self, widths: tuple[int, ...], rows: torch.dtype) -> PartialColumns:
        heads = self.attention.heads
        row, score = Column(widths[0], rows), Column(heads, wide(rows), exact=True)
        return PartialColumns((score,), (row, score), (row, Column(3 * heads, wide(rows), exact=True)), (score,))

    def ask(self, fold: Fold[GatOperation], now: PartialRound, dest_local: Tensors, params: Tensors, out: Tensors) -> None:
        fold.backend.moves.take(dest_local[0], now.wanted, out[0])

    def ask_gradients(
        self, fold: Fold[GatOperation], now: PartialRound, saved: Saved, state: GatGradients, out: Tensors
    ) -> None:
        self._write_weights(fold.backend.moves, state, now.wanted, *out, er=True)

    def serve_gradients(
        self,
        fold: Fold[GatOperation],
        piece: Piece,
        asked: Tensors,
        saved: Saved,
        state: GatGradients,
        d_exchanged: Tensors | None,
        out: Tensors,
    ) -> None:
        (z, el), (grad, numbers) = saved.exchanged, asked
        d_z, d_el = d_exchanged or (None, None)
        block, weight = self._backward_block(fold, served_shard(fold, piece))
        fold.operation.backward(
            block,
            self.attention,
            z,
            el,
            self._records_of(numbers),
            grad,
            d_z,
            d_el,
            out[0].zero_(),
            add=d_exchanged is not None,
            **weight,
        )

    def merge_gradients(self, fold: Fold[GatOperation], now: PartialRound, answers: Tensors, state: GatGradients) -> None:
        fold.backend.moves.add(state.d_er, now.wanted, answers[0])

    def _numbers(self, state: GatGradients) -> tuple[Tensor, Tensor]:
        return state.records, state.grad

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        z, el = rows
        check_weights(fold.plan, fold.operation, weighted=self.weighted)
        block, weight = self._block(fold, shard)
        return (fold.operation(block, self.attention, z, el, dest_local[0], **weight),)


@dataclass(frozen=True)
class GatV2Gradients:
    """A backward pass of ``GatV2``.

    Attributes:
        records: [M, 4 K], see ``AttentionOperation.destination_records``.
        grad: [M, K D], of the output. d_x: [M, K D] and d_att: [K D], so far.
    """

    records: Tensor
    grad: Tensor
    d_x: Tensor
    d_att: Tensor


class GatV2(_Attentive[GatV2Operation, GatV2Gradients]):
    """Scores ``e_ji = <att, LeakyReLU(z_j + x_i)>`` per head (Brody et al., 2022).

    ``exchanged`` is (z [N, K D],), ``dest_local`` (x [M, K D],), ``params`` (att [K D],). Saves its inputs, its output, m
    and s.
    """

    name = "gatv2"
    operation = "gatv2"
    has_partials = True

    def step(
        self,
        fold: Fold[GatV2Operation],
        shard: Shard,
        rows: Tensors,
        dest_local: Tensors,
        params: Tensors,
        state: RunningSoftmax,
    ) -> None:
        block, weight = self._forward_block(fold, shard)
        fold.operation.forward(block, self.attention, rows[0], dest_local[0], params[0], state, **weight)

    def backward_init(self, fold: Fold[GatV2Operation], saved: Saved, grads: Tensors) -> GatV2Gradients:
        grad, (x,), (att,) = grads[0].contiguous(), saved.dest_local, saved.params
        records = self._records(fold.operation, None, saved, grad)
        return GatV2Gradients(records, grad, torch.zeros_like(x, dtype=wide(x.dtype)), torch.zeros_like(att))

    def backward_step(
        self,
        fold: Fold[GatV2Operation],
        shard: Shard,
        rows: Tensors | None,
        saved: Saved,
        state: GatV2Gradients,
        out: Tensors | None,
    ) -> None:
        assert rows is not None
        block, weight = self._backward_block(fold, shard)
        fold.operation.backward(
            block,
            self.attention,
            rows[0],
            saved.dest_local[0],
            saved.params[0],
            state.records,
            state.grad,
            None if out is None else out[0],
            state.d_x,
            state.d_att,
            **weight,
        )

    def backward_finish(self, saved: Saved, state: GatV2Gradients) -> tuple[Tensors, Tensors]:
        return (state.d_x.to(state.grad.dtype),), (state.d_att,)

    def partial_columns(self, widths: tuple[int, ...], rows: torch.dtype) -> PartialColumns:
        heads, row = self.attention.heads, Column(widths[0], rows)
        numbers = [Column(count * heads, wide(rows), exact=True) for count in (1, 2)]
        return PartialColumns((row,), (row, numbers[0]), (row, row, numbers[1]), (row,))

    def ask(self, fold: Fold[GatV2Operation], now: PartialRound, dest_local: Tensors, params: Tensors, out: Tensors) -> None:
        fold.backend.moves.take(dest_local[0], now.wanted, out[0])

    def ask_gradients(
        self, fold: Fold[GatV2Operation], now: PartialRound, saved: Saved, state: GatV2Gradients, out: Tensors
    ) -> None:
        fold.backend.moves.take(saved.dest_local[0], now.wanted, out[0])
        self._write_weights(fold.backend.moves, state, now.wanted, *out[1:], er=False)

    def serve_gradients(
        self,
        fold: Fold[GatV2Operation],
        piece: Piece,
        asked: Tensors,
        saved: Saved,
        state: GatV2Gradients,
        d_exchanged: Tensors | None,
        out: Tensors,
    ) -> None:
        (x, grad, numbers), (d_x,) = asked, out
        block, weight = self._backward_block(fold, served_shard(fold, piece))
        half = d_x.dtype == torch.bfloat16
        held = zero_sums(fold.pool, len(d_x), d_x.shape[1], d_x) if half else d_x.zero_()
        fold.operation.backward(
            block,
            self.attention,
            saved.exchanged[0],
            x,
            saved.params[0],
            self._records_of(numbers),
            grad,
            None if d_exchanged is None else d_exchanged[0],
            held,
            state.d_att,
            add=d_exchanged is not None,
            **weight,
        )
        if held is not d_x:
            d_x.copy_(held)

    def merge_gradients(self, fold: Fold[GatV2Operation], now: PartialRound, answers: Tensors, state: GatV2Gradients) -> None:
        fold.backend.moves.add(state.d_x, now.wanted, answers[0])

    def _numbers(self, state: GatV2Gradients) -> tuple[Tensor, Tensor]:
        return state.records, state.grad

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        check_weights(fold.plan, fold.operation, weighted=self.weighted)
        block, weight = self._block(fold, shard)
        return (fold.operation(block, self.attention, rows[0], dest_local[0], params[0], **weight),)
