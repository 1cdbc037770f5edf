"""GAT (Velickovic et al., 2018) and GATv2 (Brody et al., 2022).

    GAT     z = W h       e_ji = LeakyReLU(<a_src, z_j> + <a_dst, z_i>)
    GATv2   z = W_src h + b_src, x = W_dst h + b_dst       e_ji = <a, LeakyReLU(z_j + x_i)>

    h'_i = || over heads of softmax-weighted sums of z_j, + b       (the last layer: their mean over heads)

Initialised as DGL's ``GATConv`` and ``GATv2Conv``: Glorot normal with ReLU's gain, biases 0. Attention weights are dropped
after the softmax.

Letters: N input rows, M output rows, K heads, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sargnn.engine.aggregate import Engine
from sargnn.engine.linear import linear, linears, two_linear
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.gat import Gat, GatV2
from sargnn.models.gat import Gat as GatSettings
from sargnn.models.inputs import Features, GraphShape
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, build_stack
from sargnn.rng import Draw, Purpose
from sargnn.shards.plan import LayerPlan


class _AttentiveLayer(GraphLayer):
    """What both scorings share.

    Args:
        in_width: features of the input rows. width: D. heads: K.
        concat: output [M, K D]; else the mean over heads, [M, D].
        attn_dropout: probability to drop an attention weight.
        index: the layer's number in the stack, for its draws.
        bias: whether it has b; not before a batch norm, where its true gradient is zero.
    """

    def __init__(
        self,
        in_width: int,
        width: int,
        *,
        heads: int,
        concat: bool,
        negative_slope: float = 0.2,
        attn_dropout: float = 0.0,
        index: int = 0,
        bias: bool = True,
        constant_input: bool = False,
    ) -> None:
        super().__init__(in_width, heads * width if concat else width, constant_input=constant_input)
        self.heads, self.width, self.concat = heads, width, concat
        self.negative_slope, self.attn_dropout, self.index = negative_slope, attn_dropout, index
        self.bias = nn.Parameter(torch.zeros(self.out_width)) if bias else None

    @property
    def sent_needs_grad(self) -> bool:
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

    def __init__(self, in_width: int, width: int, **choices: object) -> None:
        super().__init__(in_width, width, **choices)  # type: ignore[arg-type]
        self.linear = self._linear(bias=False)
        self.attn_src, self.attn_dst = self._attention_vector(), self._attention_vector()

    @property
    def reducer(self) -> Reducer:
        return Gat(self.heads, self.negative_slope)

    @property
    def sent_widths(self) -> tuple[int, ...]:
        return (self.heads * self.width, self.heads)

    def forward(self, engine: Engine, plan: LayerPlan, h: Tensor, columns: Tensor | None = None) -> Tensor:
        """Rows [N, in_width] to rows [M, out_width]."""
        z, el, er = self._projections(engine, plan, h)
        (rows,) = engine.aggregate(plan, Gat(self.heads, self.negative_slope, self._draw(engine)), (z, el), (er,))
        return self._output(rows)

    def _projections(self, engine: Engine, plan: LayerPlan, h: Tensor) -> tuple[Tensor, ...]:
        """z [N, K D], sources' scores [N, K] and destinations' [M, K].

        <a, W h> = <W^T a, h>: taken from h, so that nothing else of the size of z is held, forward or backward.
        """
        weight = self.linear.weight
        if engine.lean:
            by_head = weight.view(self.heads, self.width, self.in_width)
            scores = ((torch.einsum("hk,hki->hi", a, by_head), None) for a in (self.attn_src, self.attn_dst))
            return linears(h, (weight, None), *scores, counts=(plan.num_rows, plan.num_rows, plan.num_out))
        z = linear(h, self.linear)
        by_row = z.view(len(z), self.heads, self.width)
        return z, (by_row * self.attn_src).sum(2), (plan.self_rows(by_row) * self.attn_dst).sum(2)


class GatV2Layer(_AttentiveLayer):
    """One GATv2 layer."""

    def __init__(self, in_width: int, width: int, **choices: object) -> None:
        super().__init__(in_width, width, **choices)  # type: ignore[arg-type]
        self.src, self.dst = self._linear(bias=True), self._linear(bias=True)
        self.attn = self._attention_vector()

    @property
    def reducer(self) -> Reducer:
        return GatV2(self.heads, self.negative_slope)

    @property
    def sent_widths(self) -> tuple[int, ...]:
        return (self.heads * self.width,)

    def forward(self, engine: Engine, plan: LayerPlan, h: Tensor, columns: Tensor | None = None) -> Tensor:
        """Rows [N, in_width] to rows [M, out_width]."""
        if engine.lean:
            z, x = two_linear(h, self.src, self.dst, (plan.num_rows, plan.num_out))
        else:
            z, x = linear(h, self.src), linear(plan.self_rows(h), self.dst)
        reducer = GatV2(self.heads, self.negative_slope, self._draw(engine))
        (rows,) = engine.aggregate(plan, reducer, (z,), (x,), (self.attn.flatten(),))
        return self._output(rows)


def build(config: GatSettings, shape: GraphShape) -> Stack:
    """The model that ``config`` describes."""
    kind = GatV2Layer if config.v2 else GatLayer

    def layer(spec: LayerSpec) -> GraphLayer:
        return kind(
            spec.in_width,
            shape.num_classes if spec.last else config.hidden,
            heads=config.out_heads if spec.last else config.heads,
            concat=not spec.last,
            negative_slope=config.negative_slope,
            attn_dropout=config.attn_dropout,
            index=spec.index,
            bias=spec.bias,
            constant_input=spec.constant_input,
        )

    return build_stack(config, Features(shape, config.name), shape, layer, hidden_width=config.heads * config.hidden)
