"""APPNP, personalized propagation of neural predictions (Gasteiger et al., 2019).

    H = MLP(X)        Z_0 = H        Z_(t+1) = (1 - alpha) S Z_t + alpha H        logits = Z_K

S as in ``layers.gcn``, with self-loops. Propagation is linear and saves nothing for backward, so beside what the perceptron
keeps a step's memory is a few tables [N, C], however many steps there are. Edges that are dropped are drawn again in backward.
Initialised as PyTorch's linear layers.

Letters: N input rows, M output rows, C outputs, K steps, L layers of the perceptron.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sargnn.engine.aggregate import Engine
from sargnn.models.appnp import Appnp
from sargnn.models.base import LayerInput, Model
from sargnn.models.inputs import Features, GraphShape
from sargnn.models.layers.mlp import MlpLayer
from sargnn.models.layers.propagation import PropagationStep
from sargnn.models.stack import Stack, build_stack
from sargnn.shards.cover import Costs
from sargnn.shards.plan import LayerPlan, RowCounts


class AppnpModel(Model):
    """A perceptron, and K steps that propagate its outputs: L + K layers, of which the last K read edges.

    Args:
        mlp: the perceptron. num_outputs: C. steps: K. alpha: the teleport probability.
        edge_dropout: probability to drop an edge in a step.
    """

    def __init__(self, mlp: Stack, num_outputs: int, *, steps: int, alpha: float, edge_dropout: float) -> None:
        super().__init__()
        self.mlp, self.inputs, self.alpha = mlp, mlp.inputs, alpha
        self.steps = nn.ModuleList(PropagationStep(k, num_outputs, edge_dropout=edge_dropout) for k in range(steps))

    @property
    def uses_edges(self) -> list[bool]:
        return [*self.mlp.uses_edges, *[True] * len(self.steps)]

    @property
    def num_kept(self) -> int:
        return self.mlp.num_kept

    def kernels(self, engine: Engine) -> set[str]:
        return {engine.kernel("sum").name}

    def partial_costs(self, engine: Engine, counts: Sequence[RowCounts | None]) -> list[Costs | None]:
        first = len(self.mlp.layers)
        steps = [step for step in self.steps if isinstance(step, PropagationStep)]
        propagated = [step.partial_costs(engine, count) for step, count in zip(steps, counts[first:], strict=True)]
        return [*self.mlp.partial_costs(engine, counts[:first]), *propagated]

    def why_rows(self, engine: Engine) -> list[str | None]:
        steps = [step for step in self.steps if isinstance(step, PropagationStep)]
        return [*self.mlp.why_rows(engine), *(step.why_rows(engine) for step in steps)]

    def decay_groups(self) -> dict[str, list[nn.Parameter]]:
        """Those of the perceptron."""
        return self.mlp.decay_groups()

    def forward(self, engine: Engine, plans: Sequence[LayerPlan], x: LayerInput, *, hidden: bool = False) -> Tensor:
        first = len(self.mlp.layers)
        z = h = self.mlp(engine, plans[:first], x, hidden=hidden)
        for step, plan in zip(self.steps, plans[first:], strict=True):
            h = plan.self_rows(h)
            z = step(engine, plan, LayerInput(z)).mul_(1 - self.alpha).add_(h, alpha=self.alpha)
        return z


def build(config: Appnp, shape: GraphShape) -> AppnpModel:
    """The model that ``config`` describes."""
    mlp = build_stack(config, Features(shape, config.name), shape, MlpLayer)
    return AppnpModel(mlp, shape.num_classes, steps=config.steps, alpha=config.alpha, edge_dropout=config.edge_dropout)
