"""One step of propagation, a layer without parameters: what SGC and APPNP are made of.

Letters: N input rows, M output rows, F features.
"""

from __future__ import annotations

from torch import Tensor

from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.dropped_sum import DroppedSum
from sargnn.engine.reducers.sum import Sum
from sargnn.models.layers.gcn import symmetric_sum
from sargnn.models.stack import GraphLayer, LayerInput, LayerSpec
from sargnn.rng import Purpose
from sargnn.shards.plan import LayerPlan


class PropagationStep(GraphLayer):
    """``h'_i = sum over edges j -> i of h_j / sqrt(d_out(j) d_in(i))``: ``S h``, S as in ``layers.gcn``.

    Saves nothing for backward.

    Args:
        index: of the step, from 0. width: F. constant: whether the first step's rows are the same in every epoch.
        edge_dropout: probability to drop an edge in training; the others count 1 / (1 - p) times.
    """

    def __init__(self, index: int, width: int, *, constant: bool = False, edge_dropout: float = 0.0) -> None:
        columns = width if constant else 0
        super().__init__(
            LayerSpec(index=index, last=False, in_width=width, out_width=width, bias=False, constant_columns=columns)
        )
        self.index, self.edge_dropout = index, edge_dropout

    @property
    def reducer(self) -> Reducer:
        return Sum(weighted=True)

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        """Rows [N, F] to rows [M, F]."""
        draw = engine.draw(Purpose.EDGE_DROPOUT, self.index, self.edge_dropout if self.training else 0.0)
        return symmetric_sum(engine, plan, x.joined(), None if draw is None else DroppedSum(draw))
