"""Label propagation (Zhu and Ghahramani, 2002), the baseline that reads no features: nothing is trained.

    Y_0 = training labels, one-hot, zero elsewhere        Y_(t+1) = clamp(alpha S Y_t + (1 - alpha) Y_0, 0, 1)

S as in ``engine.propagate``. Its logits are log Y, each row scaled to sum to one, so that the loss is a likelihood; it is
taken on the training nodes, which know their own labels.

Letters: N own rows, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.engine.aggregate import Engine
from sargnn.engine.propagate import propagate
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.sum import Sum
from sargnn.errors import ConfigError
from sargnn.models.inputs import GraphShape, Inputs
from sargnn.models.label_propagation import LabelPropagation
from sargnn.models.stack import GraphLayer, LayerInput, LayerSpec, Stack
from sargnn.partition.cut import Part
from sargnn.shards.copies import Copies
from sargnn.shards.plan import LayerPlan
from sargnn.tasks.kinds import KINDS

_LEAST = 1e-12


class NoRows(Inputs):
    """No features: a table without columns."""

    def __init__(self) -> None:
        super().__init__()
        self.width, self.constant = 0, True

    def load(self, part: Part, seed: int, device: torch.device, dtype: torch.dtype, copies: Copies | None = None) -> Tensor:
        return torch.zeros(len(part.node_ids), 0, device=device, dtype=dtype)


class PropagationLayer(GraphLayer):
    """All steps of it."""

    def __init__(self, config: LabelPropagation, num_classes: int) -> None:
        super().__init__(LayerSpec(index=0, last=True, in_width=num_classes, out_width=num_classes, bias=False))
        self.alpha, self.steps, self.adjacency = config.alpha, config.steps, config.adjacency

    @property
    def reducer(self) -> Reducer:
        return Sum(weighted=True)

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        """Labels [N, C] to logits [N, C]."""
        scores = propagate(
            engine,
            plan,
            x.joined(),
            alpha=self.alpha,
            steps=self.steps,
            adjacency=self.adjacency,
            after=lambda y: y.clamp_(0, 1),
        )
        return (scores + _LEAST).div_(scores.sum(1, keepdim=True) + _LEAST * scores.shape[1]).log_()


def build(config: LabelPropagation, shape: GraphShape) -> Stack:
    """The model that ``config`` describes."""
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
    layer = PropagationLayer(config, shape.num_classes)
    return Stack(
        NoRows(),
        [layer],
        norm="none",
        activation="relu",
        residual=False,
        dropout=0.0,
        input_dropout=0.0,
        reads_labels=True,
    )
