"""A multi-layer perceptron, the baseline that reads no edges; with one layer a linear classifier.

    h'_i = W h_i + b        initialised as PyTorch's linear layer

Letters: N input rows, M output rows.
"""

from __future__ import annotations

from torch import Tensor, nn

from sargnn.config.models import MlpSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.base import Reducer
from sargnn.models.base import LayerInput
from sargnn.models.inputs import GraphShape, input_rows
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, build_stack
from sargnn.plan.layer_plan import LayerPlan


class MlpLayer(GraphLayer):
    uses_edges = False
    reads_blocks = True
    reads_out_degrees = False

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.linear = nn.Linear(self.in_width, self.out_width, bias=spec.bias)

    @property
    def reducer(self) -> Reducer:
        raise AssertionError("this layer aggregates nothing")

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        return engine.operators.linear(x.self_rows(plan), self.linear.weight, self.linear.bias)


def build(config: MlpSettings, shape: GraphShape) -> Stack:
    return build_stack(config, input_rows(shape, config.name, config.hidden), shape, MlpLayer)
