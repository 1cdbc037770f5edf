"""Sums and means over in-neighbours: plain, with the graph's edge weights, with edges that are dropped, with weights of the
caller's, and with a vector for each kind of edge.

Letters: N input rows, M output rows, E edges, F features, B blocks of D columns, K kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import (
    AutogradOperation,
    Operation,
    ScaledSumOperation,
    SumOperation,
    WeightedSumOperation,
    takes_weights,
)
from sargnn.bf16 import wide
from sargnn.comm.lists import Column, PartialRound, Piece
from sargnn.engine.reducers.base import (
    Fold,
    Part,
    PartialColumns,
    Reducer,
    Saved,
    Tensors,
    WithPartials,
    check_weights,
    partials_of,
    served_shard,
    weight_argument,
    without_weights,
)
from sargnn.engine.workspace import widened, zero_sums
from sargnn.plan.layer_plan import LayerPlan, Shard
from sargnn.rng import Draw

_Fold = Fold[SumOperation]
_WeightedFold = Fold[WeightedSumOperation]
SPLIT_COLUMNS = 16
"""Sums of fewer columns are held in one piece."""


@dataclass(frozen=True)
class SumState:
    """Sums under way, forward and backward alike.

    Attributes:
        rows: [M, F], the sums so far; backward the output's gradient.
        scale: c [M]; None for ones.
        lower: int16 [M, F], the lower halves of fp32 sums whose upper halves ``rows`` holds in bf16; None: ``rows`` holds all.
    """

    rows: Tensor
    scale: Tensor | None
    lower: Tensor | None = None


class Sum(Reducer[SumOperation, SumState, SumState], WithPartials):
    """``out_i = l_i + c_i * sum of w_e z_j over edges e from j to i``, c_i = 1; isolated destinations give l_i.

    w_e is 1, or with ``weighted`` the graph's edge weight. ``dest_local`` is (l,), [M, F], or empty for l = 0. It becomes the
    accumulator and the output; l must be of no further use to the caller.

    Backward: ``d z_j = sum of c_i w_e g_i over edges j -> i``, ``d l = g``: linear, so no source row is needed (case 1).
    Saves nothing. Memory beside input and output: none.

    A partial result is a sum over some of the edges, before c_i; its gradient is c_i g_i. It comes as a row with one edge.

    ``exact``: rows are never rounded on their way.
    """

    name = "sum"
    operation = "sum"
    needs_src_in_backward = False
    linear = True

    def __init__(self, *, weighted: bool = False, exact: bool = False) -> None:
        self.weighted = weighted
        if exact:
            self.scores = (0,)

    def check(self, plan: LayerPlan, operation: Operation | AutogradOperation) -> None:
        check_weights(plan, operation, weighted=self.weighted)

    def parts(self, width: int, groups: int) -> tuple[Part, ...]:
        """Each of a multiple of ``SPLIT_COLUMNS``."""
        units = width // SPLIT_COLUMNS
        groups = min(groups, units)
        ends = [units * g // groups * SPLIT_COLUMNS for g in range(groups)] + [width] if groups > 1 else []
        return tuple(Part(self, first, last, width, onto=True) for first, last in zip(ends, ends[1:], strict=False))

    def weight(self, fold: Fold[Any], block: EdgeBlock, like: Tensor) -> dict[str, Any]:
        """``weight=`` of the block's edges [E] in the order of ``block.src``; nothing for ones. ``like``: of their rows."""
        return weight_argument(block, weighted=self.weighted)

    def scale(self, plan: LayerPlan, like: Tensor) -> Tensor | None:
        """c [M] in what sums of rows of the dtype of ``like`` are held in; None for ones."""
        return None

    def init(self, fold: _Fold, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> SumState:
        assert not dest_local or dest_local[0].data_ptr() != exchanged[0].data_ptr() or not dest_local[0].numel(), (
            "rows are read while l is written"
        )
        self.check(fold.plan, fold.operation)
        z = exchanged[0]
        rows, width = fold.plan.num_out, z.shape[1]
        if _splits(fold, z):
            under_way = _sums_of(fold, dest_local[0] if dest_local else fold.pool.zeros(rows, width, z))
            return SumState(under_way.rows, self.scale(fold.plan, z), under_way.lower)
        total = widened(fold.pool, dest_local[0]) if dest_local else zero_sums(fold.pool, rows, width, z)
        return SumState(total, self.scale(fold.plan, total))

    def step(self, fold: _Fold, shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: SumState) -> None:
        settings = self.weight(fold, shard.block, state.rows)
        if state.lower is not None:
            settings["lower"] = state.lower
        fold.operation.forward(shard.block, rows[0], state.rows, state.scale, **settings)

    def finish(self, fold: _Fold, dest_local: Tensors, params: Tensors, state: SumState) -> tuple[Tensors, Tensors]:
        _round(fold, state)
        return (fold.narrowed(state.rows, *dest_local),), ()

    def backward_init(self, fold: _Fold, saved: Saved, grads: Tensors) -> SumState:
        grad = grads[0].contiguous()
        return SumState(grad, self.scale(fold.plan, grad))

    def backward_step(
        self, fold: _Fold, shard: Shard, rows: Tensors | None, saved: Saved, state: SumState, out: Tensors | None
    ) -> None:
        if out is not None:  # no other gradient depends on the shard
            fold.operation.backward(shard.block, state.rows, out[0], state.scale, **self.weight(fold, shard.block, state.rows))

    def backward_finish(self, saved: Saved, state: SumState) -> tuple[Tensors, Tensors]:
        return (state.rows,), ()

    def partial_columns(self, widths: tuple[int, ...], rows: torch.dtype) -> PartialColumns:
        columns = (Column(widths[0], rows, exact=0 in self.scores),)
        return PartialColumns(answered=columns, gradients=columns)

    def serve(
        self, fold: _Fold, piece: Piece, exchanged: Tensors, asked: Tensors, params: Tensors, state: SumState, out: Tensors
    ) -> None:
        block, (total,) = served_shard(fold, piece).block, out
        settings = self.weight(fold, block, total)
        if getattr(fold.operation, "writes_sums", False):
            settings["add"] = False
            fold.operation.forward(block, exchanged[0], total, None, **settings)
            return
        under_way = _sums_of(fold, total.zero_())
        if under_way.lower is not None:
            settings["lower"] = under_way.lower
        fold.operation.forward(block, exchanged[0], under_way.rows, None, **settings)
        _round(fold, under_way)
        if under_way.rows is not total:
            total.copy_(under_way.rows)

    def merge(self, fold: _Fold, now: PartialRound, answers: Tensors, state: SumState) -> None:
        settings = {} if state.lower is None else {"lower": state.lower}
        fold.operation.forward(partials_of(fold).blocks[now.piece], answers[0], state.rows, state.scale, **settings)

    def ask_gradients(self, fold: _Fold, now: PartialRound, saved: Saved, state: SumState, out: Tensors) -> None:
        fold.operation.backward(partials_of(fold).blocks[now.piece], state.rows, out[0], state.scale)

    def serve_gradients(
        self,
        fold: _Fold,
        piece: Piece,
        asked: Tensors,
        saved: Saved,
        state: SumState,
        d_exchanged: Tensors | None,
        out: Tensors,
    ) -> None:
        if d_exchanged is not None:
            block = served_shard(fold, piece).block
            fold.operation.backward(block, asked[0], d_exchanged[0], None, add=True, **self.weight(fold, block, asked[0]))

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        self.check(fold.plan, fold.operation)
        total = fold.operation(shard.block, rows[0], **self.weight(fold, shard.block, rows[0]))
        scale = self.scale(fold.plan, total)
        if scale is not None:
            total = (total * scale[:, None]).to(total.dtype)
        return (dest_local[0] + total if dest_local else total,)


def _splits(fold: _Fold, rows: Tensor) -> bool:
    """Whether sums of such rows are held as two tables of halves while they are under way."""
    wide_enough = rows.shape[1] >= SPLIT_COLUMNS
    return rows.dtype == torch.bfloat16 and wide_enough and getattr(fold.operation, "splits_sums", False)


def _sums_of(fold: _Fold, total: Tensor) -> SumState:
    """What sums that end in ``total`` [rows, F], which holds what they start from, are held in while they are under way."""
    if not _splits(fold, total):
        return SumState(widened(fold.pool, total), None)
    rows, width = total.shape
    return SumState(total, None, fold.pool.zeros(rows, width, total.new_empty(0, dtype=torch.int16)))


def _round(fold: _Fold, state: SumState) -> None:
    """Make rows of sums that are held in halves."""
    if state.lower is not None:
        fold.backend.rows.join_halves(state.rows, state.lower)


class Mean(Sum):
    """``out_i = l_i + (1 / |N(i)|) sum of z_j over edges j -> i``; isolated destinations give l_i.

    |N(i)| is the in-degree in the whole graph. Backward: ``d z_j = sum of g_i / |N(i)|``: case 1, saves nothing.
    Memory beside input and output: one number per row.

    With ``weighted`` and a graph with weights: ``out_i = l_i + sum of w_e z_j / sum of w_e``, l_i where the weights sum to 0.
    """

    name = "mean"

    def scale(self, plan: LayerPlan, like: Tensor) -> Tensor:
        if self.weighted and plan.weights is not None:
            inward = plan.weights.inward
            return torch.where(inward == 0, 0, inward.reciprocal()).to(wide(like.dtype))
        return plan.in_degrees.clamp(min=1).to(wide(like.dtype)).reciprocal_()


class DroppedSum(Sum):
    """``Sum`` with r_ji w_ji for w_ji: r = 0 with probability p, else 1 / (1 - p). Parallel edges share a draw.

    r is drawn again in backward (case 1). Memory beside input and output: a few numbers for each edge of one block.
    """

    name = "dropped_sum"

    def __init__(self, draw: Draw) -> None:
        super().__init__(weighted=True)
        self.draw = draw

    def check(self, plan: LayerPlan, operation: Operation | AutogradOperation) -> None:
        if not takes_weights(operation):
            raise without_weights(operation)

    def weight(self, fold: Fold[Any], block: EdgeBlock, like: Tensor) -> dict[str, Any]:
        factors = fold.backend.folds.drop_factors(block, self.draw, wide(like.dtype))
        return {"weight": factors if block.weight is None else factors.mul_(block.weight)}


@dataclass(frozen=True)
class WeightedState:
    """Weighted sums under way, forward and backward alike.

    Attributes:
        rows: [M, F], the sums so far; backward the output's gradient.
        weight: w [E].
        scale: c [M]; None for ones.
        d_weight: [E], the weights' gradients so far; None forward, and where they are not wanted.
    """

    rows: Tensor
    weight: Tensor
    scale: Tensor | None
    d_weight: Tensor | None = None


class WeightedSum(Reducer[WeightedSumOperation, WeightedState, WeightedState]):
    """``out_i = c_i * sum of w_e z_j over edges e from j to i``, c_i = 1; isolated destinations give zeros.

    ``exchanged`` is (z [N, F],), ``dest_local`` is (w,): [E], of the rows' dtype, in the worker's numbering of edges
    (``LayerPlan.edge_runs``).

    Backward: ``d z_j = sum of c_i w_e g_i over edges j -> i``: without gradients of the weights no source row is needed (case
    1). ``d w_e = c_i <g_i, z_j>`` needs them (case 2). Saves the weights, which the caller has, and in case 2 what the mode
    says. Memory beside input and output: d w.

    ``learned``: whether the weights need a gradient, the same on all ranks.
    """

    name = "weighted_sum"
    operation = "sum"
    linear = True

    def __init__(self, *, learned: bool) -> None:
        self.needs_src_in_backward = learned

    def scale(self, plan: LayerPlan, like: Tensor) -> Tensor | None:
        """c [M] in the dtype of ``like``; None for ones."""
        return None

    def init(self, fold: _WeightedFold, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> WeightedState:
        (weight,) = dest_local
        assert len(weight) == fold.plan.num_edges and (self.needs_src_in_backward or not weight.requires_grad)
        if not takes_weights(fold.operation):
            raise without_weights(fold.operation)
        total = fold.pool.zeros(fold.plan.num_out, exchanged[0].shape[1], exchanged[0])
        return WeightedState(total, weight.contiguous(), self.scale(fold.plan, total))

    def step(
        self, fold: _WeightedFold, shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: WeightedState
    ) -> None:
        weight = state.weight[fold.plan.edge_run(shard)]
        fold.operation.forward(shard.block, rows[0], state.rows, state.scale, weight=weight)

    def finish(
        self, fold: _WeightedFold, dest_local: Tensors, params: Tensors, state: WeightedState
    ) -> tuple[Tensors, Tensors]:
        # Of case 1 nothing but statistics is saved.
        return (state.rows,), () if self.needs_src_in_backward else (state.weight,)

    def backward_init(self, fold: _WeightedFold, saved: Saved, grads: Tensors) -> WeightedState:
        grad = grads[0].contiguous()
        (weight,) = saved.dest_local if self.needs_src_in_backward else saved.stats
        d_weight = weight.new_zeros(len(weight)) if self.needs_src_in_backward else None
        return WeightedState(grad, weight.contiguous(), self.scale(fold.plan, grad), d_weight)

    def backward_step(
        self, fold: _WeightedFold, shard: Shard, rows: Tensors | None, saved: Saved, state: WeightedState, out: Tensors | None
    ) -> None:
        run = fold.plan.edge_run(shard)
        if out is not None:
            fold.operation.backward(shard.block, state.rows, out[0], state.scale, weight=state.weight[run])
        if state.d_weight is not None and rows is not None:
            fold.operation.weight_gradient(shard.block, rows[0], state.rows, state.d_weight[run], state.scale)

    def backward_finish(self, saved: Saved, state: WeightedState) -> tuple[Tensors, Tensors]:
        return () if state.d_weight is None else (state.d_weight,), ()

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        if not takes_weights(fold.operation):
            raise without_weights(fold.operation)
        total = fold.operation(shard.block, rows[0], dest_local[0])
        scale = self.scale(fold.plan, total)
        return (total if scale is None else total * scale[:, None],)


class WeightedMean(WeightedSum):
    """``out_i = (1 / |N(i)|) sum of w_e z_j``: divided by the in-degree in the whole graph, not by the sum of weights."""

    name = "weighted_mean"

    def scale(self, plan: LayerPlan, like: Tensor) -> Tensor:
        return plan.in_degrees.clamp(min=1).to(like.dtype).reciprocal_()


@dataclass(frozen=True)
class _ScaledBackward:
    """The output's gradient [M, B D], kinds int32 [E], and d w [K, D] so far."""

    grad: Tensor
    kinds: Tensor
    d_w: Tensor


class ScaledSum(Reducer[ScaledSumOperation, tuple[Tensor, Tensor], _ScaledBackward]):
    """``out_i[b] = sum of z_j[b] * w_k over edges e from j to i`` of kind k, as NBFNet's messages are (Zhu et al., 2021).

    ``exchanged`` is (z [N, B D],), ``dest_local`` (kinds,): int [E], 0 to below K, in the worker's numbering of edges;
    ``params`` are (w [K, D],). Isolated destinations give zeros.

    Backward: ``d z_j[b] = sum of g_i[b] * w_k``, ``d w_k = sum over edges and b of z_j[b] * g_i[b]``, which needs source rows
    (case 2). Saves what the mode says. Memory beside input and output: 4 bytes an edge, d w for each of a few lanes.
    """

    name = "scaled_sum"
    operation = "scaled_sum"
    needs_src_in_backward = True

    def init(
        self, fold: Fold[ScaledSumOperation], exchanged: Tensors, dest_local: Tensors, params: Tensors
    ) -> tuple[Tensor, Tensor]:
        total, (kinds,), count = (
            fold.pool.zeros(fold.plan.num_out, exchanged[0].shape[1], exchanged[0]),
            dest_local,
            len(params[0]),
        )
        if len(kinds) and not 0 <= int(kinds.min()) <= int(kinds.max()) < count:
            raise IndexError(f"an edge is of kind {int(kinds.min())} or {int(kinds.max())}, and there are {count}")
        return total, kinds.to(torch.int32)

    def step(
        self,
        fold: Fold[ScaledSumOperation],
        shard: Shard,
        rows: Tensors,
        dest_local: Tensors,
        params: Tensors,
        state: tuple[Tensor, Tensor],
    ) -> None:
        total, kinds = state
        fold.operation.forward(shard.block, rows[0], params[0].contiguous(), kinds[fold.plan.edge_run(shard)], total)

    def finish(
        self, fold: Fold[ScaledSumOperation], dest_local: Tensors, params: Tensors, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensors, Tensors]:
        return (state[0],), ()

    def backward_init(self, fold: Fold[ScaledSumOperation], saved: Saved, grads: Tensors) -> _ScaledBackward:
        kinds = saved.dest_local[0].to(torch.int32)
        return _ScaledBackward(grads[0].contiguous(), kinds, torch.zeros_like(saved.params[0]))

    def backward_step(
        self,
        fold: Fold[ScaledSumOperation],
        shard: Shard,
        rows: Tensors | None,
        saved: Saved,
        state: _ScaledBackward,
        out: Tensors | None,
    ) -> None:
        assert rows is not None
        given = rows[0], saved.params[0].contiguous(), state.kinds[fold.plan.edge_run(shard)], state.grad
        fold.operation.backward(shard.block, *given, None if out is None else out[0], state.d_w)

    def backward_finish(self, saved: Saved, state: _ScaledBackward) -> tuple[Tensors, Tensors]:
        nothing: Any = (None,)  # kinds have no gradient
        return nothing, (state.d_w,)

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        return (fold.operation(shard.block, rows[0], params[0], dest_local[0]),)
