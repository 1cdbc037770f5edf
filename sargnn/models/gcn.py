"""GCN (Kipf and Welling, 2017).

    h'_i = W (S h)_i + b        S h as in ``models.propagation``

The map comes before the sum where its output is narrower. Initialised as DGL's ``GraphConv``: Glorot uniform, bias 0.

Letters: N input rows, M output rows.
"""

from __future__ import annotations

from torch import Tensor, nn

from sargnn.config.models import GcnSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.sum import Sum
from sargnn.models.base import LayerInput
from sargnn.models.inputs import Features, GraphShape
from sargnn.models.propagation import symmetric_sum
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, build_stack
from sargnn.plan.layer_plan import LayerPlan


class GcnLayer(GraphLayer):
    """One GCN layer.

    Args:
        spec: its place in the stack.
    """

    reads_blocks = True
    reducer = Sum(weighted=True)

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.linear = nn.Linear(self.in_width, self.out_width, bias=spec.bias)
        nn.init.xavier_uniform_(self.linear.weight)
        if spec.bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        if self.transforms_first(plan.counts):
            z = engine.operators.linear([x.joined()], self.linear.weight, None)
            out = symmetric_sum(engine, plan, z, self.reducer, reuse=True)
            return engine.operators.add_bias(out, self.linear.bias)

        def gather(rows: Tensor) -> Tensor:
            return symmetric_sum(engine, plan, rows, self.reducer)

        return engine.operators.linear(self.gathered(engine, plan, x, gather), self.linear.weight, self.linear.bias)


def build(config: GcnSettings, shape: GraphShape) -> Stack:
    """The model that ``config`` describes."""
    return build_stack(config, Features(shape, config.name), shape, GcnLayer)
