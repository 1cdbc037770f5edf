"""Label propagation (Zhu and Ghahramani, 2002), the baseline that reads no features: nothing is trained.

    Y_0 = training labels, one-hot, zero elsewhere        Y_(t+1) = clamp(alpha S Y_t + (1 - alpha) Y_0, 0, 1)

S as in ``engine.propagate``. Its logits are log Y, each row scaled to sum to one, so that the loss is a likelihood; it is
taken on the training nodes, which know their own labels.

Letters: N own rows, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.config.models import LabelPropagationSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.propagate import propagate
from sargnn.engine.reducers.sum import Sum
from sargnn.errors import ConfigError
from sargnn.models.base import LayerInput
from sargnn.models.inputs import GraphShape, Inputs
from sargnn.models.stack import GraphLayer, LayerSpec, Stack
from sargnn.partition.part import Part
from sargnn.plan.copies import Copies
from sargnn.plan.layer_plan import LayerPlan
from sargnn.tasks.kinds import KINDS

_LEAST = 1e-12


class NoRows(Inputs):
    """A table without columns."""

    def __init__(self) -> None:
        super().__init__()
        self.width, self.constant = 0, True

    def load(self, part: Part, seed: int, device: torch.device, dtype: torch.dtype, copies: Copies | None = None) -> Tensor:
        return torch.zeros(len(part.node_ids), 0, device=device, dtype=dtype)


class LabelPropagationLayer(GraphLayer):
    reducer = Sum(weighted=True)

    def __init__(self, config: LabelPropagationSettings, num_classes: int) -> None:
        super().__init__(LayerSpec(index=0, last=True, in_width=num_classes, out_width=num_classes, bias=False))
        self.config = config

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        """Labels [N, C] to logits [N, C]."""
        config = self.config
        scores = propagate(
            engine,
            plan,
            x.joined(),
            alpha=config.alpha,
            steps=config.steps,
            adjacency=config.adjacency,
            after=lambda y: y.clamp_(0, 1),
        )
        return (scores + _LEAST).div_(scores.sum(1, keepdim=True) + _LEAST * scores.shape[1]).log_()


class LabelPropagation(Stack):
    reads_labels = True


def build(config: LabelPropagationSettings, shape: GraphShape) -> Stack:
    if not KINDS[shape.task].are_shares:
        raise ConfigError(
            f"The model '{config.name}' spreads the shares of classes, which are positive and add up to one.",
            given=f"labels of the task {shape.task}",
            allowed="labels that are classes",
            hint="model=linear is as plain",
        )
    if shape.schema.typed:
        raise ConfigError(
            f"The model '{config.name}' knows neither node types nor relations.", hint="dataset.homogenize=true drops them"
        )
    return LabelPropagation(NoRows(), [LabelPropagationLayer(config, shape.num_classes)])
