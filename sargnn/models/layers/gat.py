"""GAT (Velickovic et al., 2018) and GATv2 (Brody et al., 2022).

    GAT     z = W h       e_ji = LeakyReLU(<a_src, z_j> + <a_dst, z_i>)
    GATv2   z = W_src h + b_src, x = W_dst h + b_dst       e_ji = <a, LeakyReLU(z_j + x_i)>

    h'_i = || over heads of softmax-weighted sums of z_j, + b       (the last layer: their mean over heads)

Of a graph with edge weights, as DGL's layers have it: each weighted coefficient times w_e; the softmax does not see w_e.
Initialised as DGL's ``GATConv`` and ``GATv2Conv``: Glorot normal with ReLU's gain, biases 0. Attention weights are dropped
after the softmax.

Letters: N input rows, M output rows, K heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sargnn.engine.aggregate import Engine
from sargnn.engine.operators.base import RowMap
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.gat import Gat, GatV2
from sargnn.models.gat import Gat as GatSettings
from sargnn.models.inputs import Features, GraphShape
from sargnn.models.stack import GraphLayer, LayerInput, LayerSpec, Stack, build_stack
from sargnn.rng import Draw, Purpose
from sargnn.shards.plan import LayerPlan


class _AttentiveLayer(GraphLayer):
    """What both scorings share.

    Args:
        spec: its place in the stack.
        width: D. heads: K.
        concat: output [M, K D]; else the mean over heads, [M, D].
        negative_slope: of the scores' LeakyReLU.
        attn_dropout: probability to drop an attention weight.
    """

    def __init__(
        self, spec: LayerSpec, width: int, *, heads: int, concat: bool, negative_slope: float = 0.2, attn_dropout: float = 0.0
    ) -> None:  # fmt: skip
        super().__init__(spec, heads * width if concat else width)
        self.heads, self.width, self.concat = heads, width, concat
        self.negative_slope, self.attn_dropout, self.index = negative_slope, attn_dropout, spec.index
        self.bias = nn.Parameter(torch.zeros(self.out_width)) if spec.bias else None

    @property
    def exchanged_needs_grad(self) -> bool:
        """Always: what travels is a learned map of the input, also of a constant one."""
        return True

    def _draw(self, engine: Engine) -> Draw | None:
        return engine.draw(Purpose.ATTENTION_DROPOUT, self.index, self.attn_dropout if self.training else 0.0)

    def _output(self, rows: Tensor) -> Tensor:
        """Heads joined, bias added."""
        out = rows if self.concat else rows.view(len(rows), self.heads, self.width).mean(1)
        return out if self.bias is None else out + self.bias

    def _linear(self, bias: bool) -> nn.Linear:
        layer = nn.Linear(self.in_width, self.heads * self.width, bias=bias)
        nn.init.xavier_normal_(layer.weight, gain=nn.init.calculate_gain("relu"))
        if bias:
            nn.init.zeros_(layer.bias)
        return layer

    def _attention_vector(self) -> nn.Parameter:
        """[K, D], with the fans of DGL's [1, K, D]."""
        vector = torch.empty(1, self.heads, self.width)
        nn.init.xavier_normal_(vector, gain=nn.init.calculate_gain("relu"))
        return nn.Parameter(vector[0])


class GatLayer(_AttentiveLayer):
    """One GAT layer."""

    def __init__(self, spec: LayerSpec, width: int, **choices: Any) -> None:
        super().__init__(spec, width, **choices)
        self.linear = self._linear(bias=False)
        self.attn_src, self.attn_dst = self._attention_vector(), self._attention_vector()

    @property
    def reducer(self) -> Reducer:
        return Gat(self.heads, self.negative_slope, weighted=True)

    @property
    def exchanged_widths(self) -> tuple[int, ...]:
        return (self.heads * self.width, self.heads)

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        """Rows [N, in_width] to rows [M, out_width]."""
        z, el, er = engine.operators.attention_maps(plan, x.joined(), self.linear.weight, self.attn_src, self.attn_dst)
        reducer = Gat(self.heads, self.negative_slope, self._draw(engine), weighted=True)
        (rows,) = engine.aggregate(plan, reducer, (z, el), (er,))
        return self._output(rows)


class GatV2Layer(_AttentiveLayer):
    """One GATv2 layer."""

    def __init__(self, spec: LayerSpec, width: int, **choices: Any) -> None:
        super().__init__(spec, width, **choices)
        self.src, self.dst = self._linear(bias=True), self._linear(bias=True)
        self.attn = self._attention_vector()

    @property
    def reducer(self) -> Reducer:
        return GatV2(self.heads, self.negative_slope, weighted=True)

    @property
    def exchanged_widths(self) -> tuple[int, ...]:
        return (self.heads * self.width,)

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        """Rows [N, in_width] to rows [M, out_width]."""
        of_sources = RowMap(self.src.weight, self.src.bias, of_outputs=False)
        of_destinations = RowMap(self.dst.weight, self.dst.bias, of_outputs=True)
        z, own = engine.operators.linears(plan, x.joined(), of_sources, of_destinations)
        reducer = GatV2(self.heads, self.negative_slope, self._draw(engine), weighted=True)
        (rows,) = engine.aggregate(plan, reducer, (z,), (own,), (self.attn.flatten(),))
        return self._output(rows)


def build(config: GatSettings, shape: GraphShape) -> Stack:
    """The model that ``config`` describes."""
    kind = GatV2Layer if config.v2 else GatLayer

    def layer(spec: LayerSpec) -> GraphLayer:
        return kind(
            spec,
            shape.num_classes if spec.last else config.hidden,
            heads=config.out_heads if spec.last else config.heads,
            concat=not spec.last,
            negative_slope=config.negative_slope,
            attn_dropout=config.attn_dropout,
        )

    return build_stack(config, Features(shape, config.name), shape, layer, hidden_width=config.heads * config.hidden)
