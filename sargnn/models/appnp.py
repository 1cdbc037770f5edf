"""APPNP, personalized propagation of neural predictions (Gasteiger et al., 2019).

    H = MLP(X)        Z_0 = H        Z_(t+1) = (1 - alpha) S Z_t + alpha H        logits = Z_K

S as in ``models.gcn``, with self-loops. Propagation is linear and saves nothing for backward, so beside what the
perceptron keeps a step's memory is a few tables [N, C] for any K. Initialised as PyTorch's linear layers.

Letters: N input rows, M output rows, C outputs, K steps, L layers of the perceptron.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sargnn.config.models import AppnpSettings
from sargnn.engine.aggregate import Engine
from sargnn.models.base import LayerInput
from sargnn.models.gcn import PropagationStep
from sargnn.models.inputs import GraphShape, input_rows
from sargnn.models.mlp import MlpLayer
from sargnn.models.stack import GraphLayer, LayeredModel, build_stack
from sargnn.plan.layer_plan import LayerPlan


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
