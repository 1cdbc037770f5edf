"""SGC, simple graph convolution (Wu et al., 2019), and APPNP, personalized propagation of neural predictions (Gasteiger et al.,
2019).

    SGC     logits = S^K X W + b
    APPNP   H = MLP(X)        Z_0 = H        Z_(t+1) = (1 - alpha) S Z_t + alpha H        logits = Z_K

S as in ``models.gcn``, with self-loops.

Of SGC constant features are propagated once, and S^K X alone is kept. Labels beside them and features that are dropped are
propagated in every epoch, these on the narrower side of the map, S^K (X W) or (S^K X) W; nothing is saved for backward but the
map's input. Initialised as DGL's ``SGConv``: Glorot uniform, bias 0.

APPNP's propagation is linear and saves nothing for backward, so beside what the perceptron keeps a step's memory is a few
tables [N, C] for any K. Initialised as PyTorch's linear layers.

Letters: N input rows, M output rows, F features, C outputs, K steps, L layers of the perceptron.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sargnn.config.models import AppnpSettings, SgcSettings
from sargnn.engine.aggregate import Engine
from sargnn.models.base import LayerInput
from sargnn.models.gcn import PropagationStep
from sargnn.models.inputs import GraphShape, input_rows
from sargnn.models.stack import GraphLayer, LayeredModel, MlpLayer, build_stack
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


class AppnpModel(LayeredModel):
    """L + K layers, of which the last K read edges."""

    def __init__(self, config: AppnpSettings, shape: GraphShape) -> None:
        super().__init__()
        self.mlp = build_stack(config, input_rows(shape, config.name, config.hidden), shape, MlpLayer)
        self.inputs, self.alpha = self.mlp.inputs, config.alpha
        steps = [PropagationStep(k, shape.num_classes, edge_dropout=config.edge_dropout) for k in range(config.steps)]
        self.steps = nn.ModuleList(steps)

    @property
    def graph_layers(self) -> list[GraphLayer]:
        return [*self.mlp.graph_layers, *(step for step in self.steps if isinstance(step, PropagationStep))]

    @property
    def num_kept(self) -> int:
        return self.mlp.num_kept

    def decay_groups(self) -> dict[str, list[nn.Parameter]]:
        return self.mlp.decay_groups()

    def forward(self, engine: Engine, plans: Sequence[LayerPlan], x: LayerInput, *, hidden: bool = False) -> Tensor:
        first = len(self.mlp.layers)
        z = h = self.mlp(engine, plans[:first], x, hidden=hidden)
        for step, plan in zip(self.steps, plans[first:], strict=True):
            h = plan.self_rows(h)
            z = step(engine, plan, LayerInput(z)).mul_(1 - self.alpha).add_(h, alpha=self.alpha)
        return z
