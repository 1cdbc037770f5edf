"""Sum over in-neighbours of which a share of the edges takes no part, drawn by the original ids of their ends.

Letters: E edges of a block.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import AutogradOperation, Operation, takes_weights
from sargnn.bf16 import wide
from sargnn.engine.reducers.base import Fold
from sargnn.engine.reducers.edge_weights import without_weights
from sargnn.engine.reducers.sum import Sum
from sargnn.plan.layer_plan import LayerPlan
from sargnn.rng import Draw


class DroppedSum(Sum):
    """``Sum`` with r_ji w_ji for w_ji: r = 0 with probability p, else 1 / (1 - p), w the edge weights, or 1.

    r is drawn again in backward (case 1). Memory beside input and output: a few numbers for each edge of one block.

    Args:
        draw: which edges are dropped. Parallel ones share a draw.
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
