"""Sums and means over in-neighbours with a weight for each edge.

Letters: N input rows, M output rows, E edges of the worker, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sargnn.backends.operations import WeightedSumOperation, takes_weights
from sargnn.engine.reducers.base import Fold, Reducer, Saved, Tensors
from sargnn.engine.reducers.edge_weights import without_weights
from sargnn.plan.layer_plan import LayerPlan, Shard


@dataclass(frozen=True)
class WeightedState:
    """Forward and backward alike.

    Attributes:
        rows: [M, F], the sums so far; backward the output's gradient.
        weight: w [E]. scale: c [M]; None for ones.
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
    1). ``d w_e = c_i <g_i, z_j>`` needs them (case 2).
    Saves the weights, which the caller has, and in case 2 what the mode says. Memory beside input and output: d w.

    Args:
        learned: whether the weights need a gradient, the same on all ranks.
    """

    name = "weighted_sum"
    operation = "sum"
    linear = True

    def __init__(self, *, learned: bool) -> None:
        self.needs_src_in_backward = learned

    def scale(self, plan: LayerPlan, like: Tensor) -> Tensor | None:
        """c [M] in the dtype of ``like``; None for ones."""
        return None

    def init(self, fold: Fold[WeightedSumOperation], exchanged: Tensors, dest_local: Tensors, params: Tensors) -> WeightedState:
        (weight,) = dest_local
        assert len(weight) == fold.plan.num_edges and (self.needs_src_in_backward or not weight.requires_grad)
        if not takes_weights(fold.operation):
            raise without_weights(fold.operation)
        total = fold.pool.zeros(fold.plan.num_out, exchanged[0].shape[1], exchanged[0])
        return WeightedState(total, weight.contiguous(), self.scale(fold.plan, total))

    def step(
        self,
        fold: Fold[WeightedSumOperation],
        shard: Shard,
        rows: Tensors,
        dest_local: Tensors,
        params: Tensors,
        state: WeightedState,
    ) -> None:
        weight = state.weight[fold.plan.edge_run(shard)]
        fold.operation.forward(shard.block, rows[0], state.rows, state.scale, weight=weight)

    def finish(
        self, fold: Fold[WeightedSumOperation], dest_local: Tensors, params: Tensors, state: WeightedState
    ) -> tuple[Tensors, Tensors]:
        # Of case 1 nothing but statistics is saved.
        return (state.rows,), () if self.needs_src_in_backward else (state.weight,)

    def backward_init(self, fold: Fold[WeightedSumOperation], saved: Saved, grads: Tensors) -> WeightedState:
        grad = grads[0].contiguous()
        (weight,) = saved.dest_local if self.needs_src_in_backward else saved.stats
        d_weight = weight.new_zeros(len(weight)) if self.needs_src_in_backward else None
        return WeightedState(grad, weight.contiguous(), self.scale(fold.plan, grad), d_weight)

    def backward_step(
        self,
        fold: Fold[WeightedSumOperation],
        shard: Shard,
        rows: Tensors | None,
        saved: Saved,
        state: WeightedState,
        out: Tensors | None,
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
