"""Mean over in-neighbours."""

from __future__ import annotations

from torch import Tensor

from sargnn.engine.reducers.base import Saved, Tensors
from sargnn.engine.reducers.sum import Sum
from sargnn.kernels.base import Kernel
from sargnn.kernels.block import EdgeBlock
from sargnn.shards.plan import LayerPlan


class Mean(Sum):
    """``out_i = (1 / |N(i)|) sum of z_j over edges j -> i``; isolated destinations give zeros.

    |N(i)| is the in-degree in the whole graph. Backward: ``d z_j = sum of g_i / |N(i)|``: case 1, saves nothing.
    Memory beside input and output: in backward the scaled error [M, F].
    """

    name = "mean"

    def finish(self, plan: LayerPlan, local: Tensors, params: Tensors, state: Tensor) -> tuple[Tensors, Tensors]:
        return (state.mul_(_scale(plan, state)),), ()

    def backward_init(self, plan: LayerPlan, saved: Saved, grads: Tensors) -> Tensor:
        return grads[0] * _scale(plan, grads[0])

    def autograd_forward(
        self, plan: LayerPlan, kernel: Kernel, block: EdgeBlock, rows: Tensors, local: Tensors, params: Tensors
    ) -> Tensors:
        total = kernel.sum_autograd(block, rows[0])
        return (total * _scale(plan, total),)


def _scale(plan: LayerPlan, like: Tensor) -> Tensor:
    """[M, 1], 1 / max(in-degree, 1)."""
    return plan.in_degrees.clamp(min=1).to(like.dtype).reciprocal_()[:, None]
