"""A multi-layer perceptron, the baseline that reads no edges; with one layer a linear classifier.

    h'_i = W h_i + b        initialised as PyTorch's linear layer

Letters: N input rows, M output rows.
"""

from __future__ import annotations

from torch import Tensor, nn

from sargnn.engine.aggregate import Engine
from sargnn.engine.linear import linear_columns
from sargnn.engine.rebuild import self_rows
from sargnn.engine.reducers.base import Reducer
from sargnn.models.inputs import Features, GraphShape
from sargnn.models.mlp import Mlp
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, blocks_of, build_stack
from sargnn.shards.plan import LayerPlan


class MlpLayer(GraphLayer):
    """One layer.

    Args:
        bias: whether it has b; not before a batch norm, where its true gradient is zero.
    """

    uses_edges = False

    def __init__(self, in_width: int, out_width: int, *, bias: bool, constant_input: bool = False) -> None:
        super().__init__(in_width, out_width, constant_input=constant_input)
        self.linear = nn.Linear(in_width, out_width, bias=bias)

    @property
    def reducer(self) -> Reducer:
        raise AssertionError("this layer aggregates nothing")

    def forward(self, engine: Engine, plan: LayerPlan, h: Tensor, columns: Tensor | None = None) -> Tensor:
        """Rows [N, in_width] to rows [M, out_width]."""
        return linear_columns([self_rows(plan, block) for block in blocks_of(h, columns)], self.linear)


def build(config: Mlp, shape: GraphShape) -> Stack:
    """The model that ``config`` describes."""

    def layer(spec: LayerSpec) -> MlpLayer:
        return MlpLayer(spec.in_width, spec.out_width, bias=spec.bias, constant_input=spec.constant_input)

    return build_stack(config, Features(shape, config.name), shape, layer, takes_columns=True)
