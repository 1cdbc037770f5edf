"""SGC, simple graph convolution (Wu et al., 2019).

    logits = S^K X W + b        S as in ``models.gcn``, with self-loops

Constant features are propagated once, and S^K X alone is kept. Labels beside them and features that are dropped are propagated
in every epoch, these on the narrower side of the map, S^K (X W) or (S^K X) W; nothing is saved for backward but the map's
input. Initialised as DGL's ``SGConv``: Glorot uniform, bias 0.

Letters: N input rows, M output rows, F features, C outputs, K steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sargnn.config.models import SgcSettings
from sargnn.engine.aggregate import Engine
from sargnn.models.base import LayerInput
from sargnn.models.gcn import PropagationStep
from sargnn.models.inputs import GraphShape, input_rows
from sargnn.models.stack import GraphLayer, LayeredModel
from sargnn.plan.layer_plan import LayerPlan

_LEARNED = 64
"""Width of learned rows, where nodes have no features."""


class SgcModel(LayeredModel):
    keeps_constant_outputs = True

    def __init__(self, config: SgcSettings, shape: GraphShape) -> None:
        super().__init__()
        self.inputs, self.input_dropout = input_rows(shape, config.name, _LEARNED), config.input_dropout
        self.constant_input = self.inputs.constant and not self.input_dropout
        width = self.inputs.width + shape.label_columns
        self.linear = nn.Linear(width, shape.num_classes)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.maps_first = shape.num_classes <= width and not self.constant_input
        travels = shape.num_classes if self.maps_first else width
        self.steps = nn.ModuleList(PropagationStep(k, travels, constant=self.constant_input) for k in range(config.steps))

    @property
    def graph_layers(self) -> list[GraphLayer]:
        return [step for step in self.steps if isinstance(step, PropagationStep)]

    def decay_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"first": list(self.linear.parameters())}

    def forward(self, engine: Engine, plans: Sequence[LayerPlan], x: LayerInput, *, hidden: bool = False) -> Tensor:
        x = x.prepared(engine, plans[0], constant=self.constant_input, p=self.input_dropout if self.training else 0.0)
        if self.maps_first and not hidden:
            mapped = engine.operators.linear(x.blocks, self.linear.weight, None)
            return engine.operators.add_bias(self._propagate(engine, plans, mapped), self.linear.bias)
        if self.constant_input:
            first = engine.constant(self, plans[0], lambda: self._propagate(engine, plans, x.rows))
            propagated = [first, *(self._propagate(engine, plans, block) for block in x.blocks[1:])]
        else:
            propagated = [self._propagate(engine, plans, x.joined())]
        if hidden:
            return torch.cat(propagated, 1)
        return engine.operators.linear(propagated, self.linear.weight, self.linear.bias)

    def _propagate(self, engine: Engine, plans: Sequence[LayerPlan], rows: Tensor) -> Tensor:
        """S^K of rows [N, ...]."""
        for step, plan in zip(self.steps, plans, strict=True):
            rows = step(engine, plan, LayerInput(rows))
        return rows
