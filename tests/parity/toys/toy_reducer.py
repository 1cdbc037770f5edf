"""Half of the sum over in-neighbours."""

from __future__ import annotations

from torch import Tensor

from sargnn.engine.reducers.sum import Sum
from sargnn.plan.layer_plan import LayerPlan


class Half(Sum):
    """``out_i = l_i + sum of z_j / 2 over edges j -> i``; backward ``d z_j = sum of g_i / 2``."""

    name = "half"

    def scale(self, plan: LayerPlan, like: Tensor) -> Tensor:
        return like.new_full((plan.num_out,), 0.5)
