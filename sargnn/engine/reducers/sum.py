"""Sum over in-neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sargnn.engine.reducers.base import Fold, Reducer, Saved, Tensors
from sargnn.engine.reducers.edge_weights import check_weights, weight_argument
from sargnn.kernels.base import AutogradOperation, Operation
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.operations import SumOperation
from sargnn.shards.plan import LayerPlan, Shard


@dataclass(frozen=True)
class SumState:
    """Forward and backward alike.

    Attributes:
        rows: [M, F], the sums so far; backward the output's gradient.
        scale: c [M]; None for ones.
    """

    rows: Tensor
    scale: Tensor | None


class Sum(Reducer[SumOperation, SumState, SumState]):
    """``out_i = l_i + c_i * sum of w_e z_j over edges e from j to i``, c_i = 1; isolated destinations give l_i.

    w_e is 1, or with ``weighted`` the graph's edge weight.

    ``dest_local`` is (l,), [M, F], or empty for l = 0. It becomes the accumulator and the output, so nothing else of its size
    is held; l must be of no further use to the caller.

    Backward: ``d z_j = sum of c_i w_e g_i over edges j -> i``, ``d l = g``: linear, so no source row is needed (case 1).
    Saves nothing. Memory beside input and output: none.

    Args:
        weighted: use the graph's edge weights where it has some.
    """

    name = "sum"
    operation = "sum"
    needs_src_in_backward = False
    linear = True

    def __init__(self, *, weighted: bool = False) -> None:
        self.weighted = weighted

    def check(self, plan: LayerPlan, operation: Operation | AutogradOperation) -> None:
        """The operation takes the weights that this reducer hands to it. Raises ``KernelError``."""
        check_weights(plan, operation, weighted=self.weighted)

    def weight(self, block: EdgeBlock, like: Tensor) -> dict[str, Any]:
        """``weight=`` of the block's edges, w [E] in the order of ``block.src`` and the dtype of ``like``; nothing for ones."""
        return weight_argument(block, weighted=self.weighted)

    def scale(self, plan: LayerPlan, like: Tensor) -> Tensor | None:
        """c [M] in the dtype of ``like``; None for ones."""
        return None

    def init(self, fold: Fold[SumOperation], exchanged: Tensors, dest_local: Tensors, params: Tensors) -> SumState:
        assert not dest_local or dest_local[0].data_ptr() != exchanged[0].data_ptr() or not dest_local[0].numel(), (
            "rows are read while l is written"
        )
        self.check(fold.plan, fold.operation)
        total = dest_local[0] if dest_local else fold.pool.zeros(fold.plan.num_out, exchanged[0].shape[1], exchanged[0])
        return SumState(total, self.scale(fold.plan, total))

    def step(
        self, fold: Fold[SumOperation], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: SumState
    ) -> None:
        fold.operation.forward(shard.block, rows[0], state.rows, state.scale, **self.weight(shard.block, state.rows))

    def finish(
        self, fold: Fold[SumOperation], dest_local: Tensors, params: Tensors, state: SumState
    ) -> tuple[Tensors, Tensors]:
        return (state.rows,), ()

    def backward_init(self, fold: Fold[SumOperation], saved: Saved, grads: Tensors) -> SumState:
        grad = grads[0].contiguous()
        return SumState(grad, self.scale(fold.plan, grad))

    def backward_step(
        self,
        fold: Fold[SumOperation],
        shard: Shard,
        rows: Tensors | None,
        saved: Saved,
        state: SumState,
        out: Tensors | None,
    ) -> None:
        if out is not None:  # no other gradient depends on the shard
            fold.operation.backward(shard.block, state.rows, out[0], state.scale, **self.weight(shard.block, state.rows))

    def backward_finish(self, saved: Saved, state: SumState) -> tuple[Tensors, Tensors]:
        return (state.rows,), ()

    def autograd_forward(
        self,
        plan: LayerPlan,
        operation: AutogradOperation,
        shard: Shard,
        rows: Tensors,
        dest_local: Tensors,
        params: Tensors,
    ) -> Tensors:
        self.check(plan, operation)
        total = operation(shard.block, rows[0], **self.weight(shard.block, rows[0]))
        scale = self.scale(plan, total)
        if scale is not None:
            total = total * scale[:, None]
        return (dest_local[0] + total if dest_local else total,)
