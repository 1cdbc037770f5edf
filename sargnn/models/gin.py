"""GIN (Xu et al., 2019).

    h'_i = MLP((1 + eps) h_i + sum of h_j over edges j -> i)

MLP: linear maps with norm and activation between them. The first, W_1, comes before the sum where that is no wider:
W_1 ((1 + eps) h_i + sum of h_j) = (1 + eps) W_1 h_i + sum of W_1 h_j.

Of a graph with edge weights w_e it is the sum of w_e h_j. Where edges have features f_e it is that of
w_e relu(h_j + W f_e + b), GINE (Hu et al., 2020), with W and b of each layer's own. Initialised as PyTorch's linear layers.

Letters: N input rows, M output rows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sargnn.config.models import GinSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.gine import Gine
from sargnn.engine.reducers.sum import Sum
from sargnn.engine.row_norm import RowNorm
from sargnn.models.base import LayerInput
from sargnn.models.inputs import GraphShape, input_rows
from sargnn.models.stack import NORMS, GraphLayer, LayerSpec, Stack
from sargnn.models.tuned import build_tuned
from sargnn.plan.layer_plan import LayerPlan


class GinLayer(GraphLayer):
    """One GIN layer.

    Args:
        config: its ``hidden``, ``norm`` and ``activation`` are those inside the perceptron.
        edge_width: D, features of an edge; 0: there are none.
    """

    reads_blocks = True
    reads_out_degrees = False
    reducer: Reducer = Sum(weighted=True)

    def __init__(self, spec: LayerSpec, config: GinSettings, edge_width: int = 0) -> None:
        super().__init__(spec)
        self.edge_map = nn.Linear(edge_width, self.in_width) if edge_width else None
        if edge_width:
            self.reducer = Gine()
        self.activation = config.activation
        self.eps = nn.Parameter(torch.tensor([config.eps])) if config.learn_eps else config.eps
        inside = [config.hidden] * (config.mlp_layers - 1)
        biases = [config.norm != "batch"] * len(inside) + [spec.bias]
        ends = zip([self.in_width, *inside], [*inside, self.out_width], biases, strict=True)
        self.maps = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b, bias in ends)
        self.norms = nn.ModuleList(NORMS[config.norm](width) for width in inside if config.norm in NORMS)

    @property
    def mapped_width(self) -> int:
        return self._linear(0).out_features

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        operators, first = engine.operators, self._linear(0)
        if self.transforms_first(plan.counts):
            z = operators.linear([x.joined()], first.weight, None)
            h = operators.add_bias(self._with_neighbours(engine, plan, z), first.bias)
        else:
            h = operators.linear(self._blocks_with_neighbours(engine, plan, x), first.weight, first.bias)
        ids = plan.self_rows(plan.node_ids)
        for index in range(1, len(self.maps)):
            norm, linear = self.norms[index - 1] if self.norms else None, self._linear(index)
            assert norm is None or isinstance(norm, RowNorm)
            h = operators.norm_act_drop(h, norm, self.activation, ids, None, plan.out_bounds, plan.counted)
            h = operators.linear([h], linear.weight, linear.bias)
        return h

    def _linear(self, index: int) -> nn.Linear:
        linear = self.maps[index]
        assert isinstance(linear, nn.Linear)
        return linear

    def _with_neighbours(self, engine: Engine, plan: LayerPlan, rows: Tensor) -> Tensor:
        """``(1 + eps) x_i + sum of x_j`` [M, F] of rows x [N, F]; of relu(x_j + W f_e + b) where edges have features."""
        rows, own = engine.operators.fork_own(plan, rows)
        own = engine.operators.scale(own, 1 + self.eps)
        of_edges = () if self.edge_map is None else (self.edge_map.weight, self.edge_map.bias)
        (total,) = engine.aggregate(plan, self.reducer, (rows,), (own,), of_edges)
        return total

    def _blocks_with_neighbours(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> list[Tensor]:
        """The same of each block of columns; of constant rows computed once, with a learned eps their sums alone."""
        if self.edge_map is not None:
            return [self._with_neighbours(engine, plan, x.joined())]
        if not (self.constant_input and isinstance(self.eps, Tensor)):
            return self.gathered(engine, plan, x, lambda rows: self._with_neighbours(engine, plan, rows))
        sums = self.gathered(engine, plan, x, lambda rows: engine.aggregate(plan, self.reducer, (rows,))[0])
        factor, both = 1 + self.eps, zip(sums, x.self_rows(plan), strict=True)
        if factor.dtype == sums[0].dtype:
            return [torch.addcmul(total, own, factor) for total, own in both]
        return [engine.operators.add(engine.operators.scale(own, factor), total) for total, own in both]


def build(config: GinSettings, shape: GraphShape) -> Stack:
    inputs = input_rows(shape, config.name, config.hidden)
    return build_tuned(config, inputs, shape, lambda spec: GinLayer(spec, config, shape.edge_width))
