"""Mean over in-neighbours."""

from __future__ import annotations

from torch import Tensor

from sargnn.engine.reducers.sum import Sum
from sargnn.shards.plan import LayerPlan


class Mean(Sum):
    """``out_i = l_i + (1 / |N(i)|) sum of z_j over edges j -> i``; isolated destinations give l_i.

    |N(i)| is the in-degree in the whole graph. Backward: ``d z_j = sum of g_i / |N(i)|``: case 1, saves nothing.
    Memory beside input and output: one number per row.
    """

    name = "mean"

    def scale(self, plan: LayerPlan, like: Tensor) -> Tensor:
        return plan.in_degrees.clamp(min=1).to(like.dtype).reciprocal_()
