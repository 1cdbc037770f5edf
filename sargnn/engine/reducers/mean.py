"""Mean over in-neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.engine.reducers.sum import Sum
from sargnn.plan.layer_plan import LayerPlan


class Mean(Sum):
    """``out_i = l_i + (1 / |N(i)|) sum of z_j over edges j -> i``; isolated destinations give l_i.

    |N(i)| is the in-degree in the whole graph. Backward: ``d z_j = sum of g_i / |N(i)|``: case 1, saves nothing.
    Memory beside input and output: one number per row.

    With ``weighted`` and a graph with weights: ``out_i = l_i + sum of w_e z_j / sum of w_e``, l_i where the weights sum to 0.
    """

    name = "mean"

    def scale(self, plan: LayerPlan, like: Tensor) -> Tensor:
        if self.weighted and plan.weights is not None:
            return inverse_or_zero(plan.weights.inward).to(wide(like.dtype))
        return plan.in_degrees.clamp(min=1).to(wide(like.dtype)).reciprocal_()


def inverse_or_zero(sums: Tensor) -> Tensor:
    """1 / sums, 0 where they are 0."""
    return torch.where(sums == 0, 0, sums.reciprocal())
