"""Sum over in-neighbours of which a share of the edges takes no part, drawn by the original ids of their ends.

Letters: N input rows, M output rows, S source rows of a shard, E edges of a block, F features.
"""

from __future__ import annotations

from torch import Tensor

from sargnn.engine.reducers.base import Fold, Reducer, Saved, Tensors
from sargnn.engine.reducers.edge_weights import takes_weights, without_weights
from sargnn.engine.reducers.sum import SumState
from sargnn.kernels.base import AutogradOperation
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.dropped_edges import drop_factors
from sargnn.kernels.operations import WeightedSumOperation
from sargnn.rng import Draw
from sargnn.shards.plan import LayerPlan, Shard


class DroppedSum(Reducer[WeightedSumOperation, SumState, SumState]):
    """``out_i = sum of r_ji w_ji z_j over edges j -> i``, r = 0 with probability p, else 1 / (1 - p), w the edge weights, or 1.

    Backward: ``d z_j = sum of r_ji w_ji g_i over edges j -> i``, r drawn again (case 1).
    Saves nothing. Memory beside input and output: a few numbers for each edge of one block.

    Args:
        draw: which edges are dropped. Parallel ones share a draw.
    """

    name = "dropped_sum"
    operation = "sum"
    needs_src_in_backward = False
    linear = True

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def init(self, fold: Fold[WeightedSumOperation], exchanged: Tensors, dest_local: Tensors, params: Tensors) -> SumState:
        if not takes_weights(fold.operation):
            raise without_weights(fold.operation)
        return SumState(fold.pool.zeros(fold.plan.num_out, exchanged[0].shape[1], exchanged[0]), None)

    def step(
        self,
        fold: Fold[WeightedSumOperation],
        shard: Shard,
        rows: Tensors,
        dest_local: Tensors,
        params: Tensors,
        state: SumState,
    ) -> None:
        weight = self._weights(shard.block, state.rows)
        fold.operation.forward(shard.block, rows[0], state.rows, weight=weight)

    def finish(
        self, fold: Fold[WeightedSumOperation], dest_local: Tensors, params: Tensors, state: SumState
    ) -> tuple[Tensors, Tensors]:
        return (state.rows,), ()

    def backward_init(self, fold: Fold[WeightedSumOperation], saved: Saved, grads: Tensors) -> SumState:
        return SumState(grads[0].contiguous(), None)

    def backward_step(
        self,
        fold: Fold[WeightedSumOperation],
        shard: Shard,
        rows: Tensors | None,
        saved: Saved,
        state: SumState,
        out: Tensors | None,
    ) -> None:
        if out is not None:
            weight = self._weights(shard.block, state.rows)
            fold.operation.backward(shard.block, state.rows, out[0], weight=weight)

    def backward_finish(self, saved: Saved, state: SumState) -> tuple[Tensors, Tensors]:
        return (), ()

    def autograd_forward(
        self,
        plan: LayerPlan,
        operation: AutogradOperation,
        shard: Shard,
        rows: Tensors,
        dest_local: Tensors,
        params: Tensors,
    ) -> Tensors:
        if not takes_weights(operation):
            raise without_weights(operation)
        return (operation(shard.block, rows[0], self._weights(shard.block, rows[0])),)

    def _weights(self, block: EdgeBlock, like: Tensor) -> Tensor:
        """r w [E] of a block's edges, in the order of ``block.src``."""
        factors = drop_factors(block, self.draw, like.dtype)
        return factors if block.weight is None else factors.mul_(block.weight)
