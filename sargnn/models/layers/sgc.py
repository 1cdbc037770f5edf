"""SGC, simple graph convolution (Wu et al., 2019).

    logits = S^K X W + b        S = D^-1/2 (A + I) D^-1/2, on a directed graph with both degrees, as in ``layers.gcn``

Constant features are propagated once, and of all their tables S^K X alone is kept; labels beside them are propagated in every
epoch. Features that are dropped are propagated in every epoch, on the narrower side of the linear map, S^K (X W) or (S^K X) W;
nothing is saved for backward but the linear map's input. Initialised as DGL's ``SGConv``: Glorot uniform, bias 0.

Letters: N input rows, M output rows, F features, C outputs, K steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sargnn.engine.aggregate import Engine
from sargnn.models.base import LayerInput, Model
from sargnn.models.inputs import Features, GraphShape, Inputs
from sargnn.models.layers.propagation import PropagationStep
from sargnn.models.sgc import Sgc
from sargnn.shards.cover import Costs
from sargnn.shards.plan import LayerPlan, RowCounts


class SgcModel(Model):
    """K steps of propagation and one linear map.

    Args:
        inputs: the rows that are propagated. label_columns: how many columns of labels stand beside them.
        num_outputs: C. steps: K. input_dropout: a probability.
    """

    keeps_constant_outputs = True

    def __init__(self, inputs: Inputs, label_columns: int, num_outputs: int, *, steps: int, input_dropout: float) -> None:
        super().__init__()
        self.inputs, self.input_dropout = inputs, input_dropout
        self.constant_input = inputs.constant and not input_dropout
        width = inputs.width + label_columns
        self.linear = nn.Linear(width, num_outputs)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.maps_first = num_outputs <= width and not self.constant_input
        travels = num_outputs if self.maps_first else width
        self.steps = nn.ModuleList(PropagationStep(k, travels, constant=self.constant_input) for k in range(steps))

    @property
    def uses_edges(self) -> list[bool]:
        return [True] * len(self.steps)

    def kernels(self, engine: Engine) -> set[str]:
        return {engine.kernel("sum").name}

    def partial_costs(self, engine: Engine, counts: Sequence[RowCounts | None]) -> list[Costs | None]:
        steps = [step for step in self.steps if isinstance(step, PropagationStep)]
        return [step.partial_costs(engine, count) for step, count in zip(steps, counts, strict=True)]

    def why_rows(self, engine: Engine) -> list[str | None]:
        return [step.why_rows(engine) for step in self.steps if isinstance(step, PropagationStep)]

    def decay_groups(self) -> dict[str, list[nn.Parameter]]:
        """``first``: its one map."""
        return {"first": list(self.linear.parameters())}

    def forward(self, engine: Engine, plans: Sequence[LayerPlan], x: LayerInput, *, hidden: bool = False) -> Tensor:
        x = x.prepared(engine, plans[0], constant=self.constant_input, p=self.input_dropout if self.training else 0.0)
        if self.maps_first and not hidden:
            mapped = engine.operators.linear(x.blocks, self.linear.weight, None)
            return engine.operators.add_bias(self._propagate(engine, plans, mapped), self.linear.bias)
        propagated = self._propagated(engine, plans, x)
        if hidden:
            return torch.cat(propagated, 1)
        return engine.operators.linear(propagated, self.linear.weight, self.linear.bias)

    def _propagated(self, engine: Engine, plans: Sequence[LayerPlan], x: LayerInput) -> list[Tensor]:
        """S^K of the input's blocks of columns, [M, ...] each; of constant rows computed once, where that is allowed."""
        if not self.constant_input:
            return [self._propagate(engine, plans, x.joined())]
        first = engine.constant(self, plans[0], lambda: self._propagate(engine, plans, x.rows))
        return [first, *(self._propagate(engine, plans, block) for block in x.blocks[1:])]

    def _propagate(self, engine: Engine, plans: Sequence[LayerPlan], rows: Tensor) -> Tensor:
        """S^K of rows [N, ...]."""
        for step, plan in zip(self.steps, plans, strict=True):
            rows = step(engine, plan, LayerInput(rows))
        return rows


def build(config: Sgc, shape: GraphShape) -> SgcModel:
    """The model that ``config`` describes."""
    return SgcModel(
        Features(shape, config.name),
        shape.label_columns,
        shape.num_classes,
        steps=config.steps,
        input_dropout=config.input_dropout,
    )
