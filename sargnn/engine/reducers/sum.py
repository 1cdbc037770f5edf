"""Sum over in-neighbours."""

from __future__ import annotations

from torch import Tensor

from sargnn.engine.reducers.base import Reducer, Saved, Tensors
from sargnn.kernels.base import Kernel
from sargnn.kernels.block import EdgeBlock
from sargnn.shards.plan import LayerPlan


class Sum(Reducer):
    """``out_i = sum of z_j over edges j -> i``; isolated destinations give zeros.

    Backward: ``d z_j = sum of g_i over edges j -> i``: linear, so no source row is needed (case 1). Saves nothing.
    Memory beside input and output: none.
    """

    name = "sum"
    operation = "sum"
    needs_src_in_backward = False

    def init(self, plan: LayerPlan, sent: Tensors, local: Tensors, params: Tensors) -> Tensor:
        return sent[0].new_zeros(plan.num_out, sent[0].shape[1])

    def step(self, kernel: Kernel, block: EdgeBlock, rows: Tensors, local: Tensors, params: Tensors, state: Tensor) -> None:
        kernel.sum_forward(block, rows[0], state)

    def finish(self, plan: LayerPlan, local: Tensors, params: Tensors, state: Tensor) -> tuple[Tensors, Tensors]:
        return (state,), ()

    def backward_init(self, plan: LayerPlan, saved: Saved, grads: Tensors) -> Tensor:
        return grads[0].contiguous()

    def backward_step(
        self, kernel: Kernel, block: EdgeBlock, rows: Tensors | None, saved: Saved, state: Tensor, out: Tensors | None
    ) -> None:
        assert out is not None  # a linear reducer without parameters has no other errors to give
        kernel.sum_backward(block, state, out[0])

    def backward_finish(self, saved: Saved, state: Tensor) -> tuple[Tensors, Tensors]:
        return (), ()

    def autograd_forward(
        self, plan: LayerPlan, kernel: Kernel, block: EdgeBlock, rows: Tensors, local: Tensors, params: Tensors
    ) -> Tensors:
        return (kernel.sum_autograd(block, rows[0]),)
