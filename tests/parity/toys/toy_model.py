"""A graph isomorphism layer (Xu et al., 2019) with epsilon 0: h'_i = W (h_i + sum of h_j over edges j -> i) + b."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from sargnn.config.models import StackSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.sum import Sum
from sargnn.models.base import LayerInput
from sargnn.models.inputs import Features, GraphShape
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, build_stack
from sargnn.plan.layer_plan import LayerPlan


@dataclass(frozen=True)
class Toy(StackSettings):
    """Its settings."""

    @property
    def operations(self) -> tuple[str, ...]:
        return ("sum",)

    def build(self, shape: GraphShape) -> Stack:
        return build_stack(self, Features(shape, self.name), shape, ToyLayer)


class ToyLayer(GraphLayer):
    """One layer: always sums before it maps."""

    reads_blocks = True

    def transforms_first(self, counts: object) -> bool:
        return False

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.linear = nn.Linear(self.in_width, self.out_width, bias=spec.bias)

    @property
    def reducer(self) -> Reducer:
        return Sum()

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        x, again = x.fork(engine)
        own = engine.operators.linear(again.self_rows(plan), self.linear.weight, None)
        sums = self.gathered(engine, plan, x, lambda rows: engine.aggregate(plan, self.reducer, (rows,))[0])
        return engine.operators.add_bias(engine.operators.linear(sums, self.linear.weight, None, onto=own), self.linear.bias)
