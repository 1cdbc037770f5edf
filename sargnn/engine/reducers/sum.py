"""Sum over in-neighbours."""

from __future__ import annotations

from torch import Tensor

from sargnn.engine.pool import POOL
from sargnn.engine.reducers.base import Reducer, Saved, Tensors
from sargnn.kernels.base import Kernel
from sargnn.shards.plan import LayerPlan, Shard


class Sum(Reducer):
    """``out_i = l_i + c_i * sum of z_j over edges j -> i``, c_i = 1; isolated destinations give l_i.

    ``local`` is (l,), [M, F], or empty for l = 0. It becomes the accumulator and the output, so nothing else of its size
    is held; l must be of no further use to the caller.

    Backward: ``d z_j = sum of c_i g_i over edges j -> i``, ``d l = g``: linear, so no source row is needed (case 1).
    Saves nothing. Memory beside input and output: none.
    """

    name = "sum"
    operation = "sum"
    needs_src_in_backward = False
    linear = True

    def scale(self, plan: LayerPlan, like: Tensor) -> Tensor | None:
        """c [M] in the dtype of ``like``; None for ones."""
        return None

    def init(self, plan: LayerPlan, sent: Tensors, local: Tensors, params: Tensors) -> tuple[Tensor, Tensor | None]:
        assert not local or local[0].data_ptr() != sent[0].data_ptr() or not local[0].numel(), (
            "rows are read while l is written"
        )
        total = local[0] if local else POOL.zeros(plan.num_out, sent[0].shape[1], sent[0])
        return total, self.scale(plan, total)

    def step(
        self,
        kernel: Kernel,
        shard: Shard,
        rows: Tensors,
        local: Tensors,
        params: Tensors,
        state: tuple[Tensor, Tensor | None],
    ) -> None:
        kernel.sum_forward(shard.block, rows[0], *state)

    def finish(
        self, plan: LayerPlan, local: Tensors, params: Tensors, state: tuple[Tensor, Tensor | None]
    ) -> tuple[Tensors, Tensors]:
        return (state[0],), ()

    def backward_init(self, plan: LayerPlan, kernel: Kernel, saved: Saved, grads: Tensors) -> tuple[Tensor, Tensor | None]:
        error = grads[0].contiguous()
        return error, self.scale(plan, error)

    def backward_step(
        self,
        kernel: Kernel,
        shard: Shard,
        rows: Tensors | None,
        saved: Saved,
        state: tuple[Tensor, Tensor | None],
        out: Tensors | None,
    ) -> None:
        if out is not None:  # no other error depends on the shard
            error, scale = state
            kernel.sum_backward(shard.block, error, out[0], scale)

    def backward_finish(self, saved: Saved, state: tuple[Tensor, Tensor | None]) -> tuple[Tensors, Tensors]:
        return (state[0],), ()

    def autograd_forward(
        self, plan: LayerPlan, kernel: Kernel, shard: Shard, rows: Tensors, local: Tensors, params: Tensors
    ) -> Tensors:
        total = kernel.sum_autograd(shard.block, rows[0])
        scale = self.scale(plan, total)
        if scale is not None:
            total = total * scale[:, None]
        return (local[0] + total if local else total,)
