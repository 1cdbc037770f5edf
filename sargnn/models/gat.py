"""GAT (Velickovic et al., 2018) and GATv2 (Brody et al., 2022).

    GAT     z = W h       e_ji = LeakyReLU(<a_src, z_j> + <a_dst, z_i>)
    GATv2   z = W_src h + b_src, x = W_dst h + b_dst       e_ji = <a, LeakyReLU(z_j + x_i)>

    h'_i = || over heads of softmax-weighted sums of z_j, + b       (the last layer: their mean over heads)

Where edges have features f_ji, GAT adds <a_edge, W_edge f_ji> inside of LeakyReLU, and GATv2 W_edge f_ji, as PyG's layers do
with ``edge_dim``. GAT's is A f_ji, with A_k = W_edge,k^T a_edge,k for each head k, so no row of an edge is made.

With ``linear_residual`` R h_i is added per head, with a map R of the layer's own; with ``symmetric_norm`` z_j is divided by
sqrt(d_out(j)) before it is scored, and the sum multiplied by sqrt(d_in(i)); without ``attn_dst`` there is no a_dst. These and
dropped edges are options of DGL's example for ogbn-arxiv (Wang et al., 2021, "Bag of tricks for node classification").

Initialised as DGL's ``GATConv`` and ``GATv2Conv``: Glorot normal with ReLU's gain; with ``init=uniform`` Glorot
uniform, as PyG's maps and attention vectors. Biases are 0. Attention weights are dropped after the softmax.

Letters: N input rows, M output rows, K heads, D head width, C features of an edge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sargnn.bf16 import wide
from sargnn.config.models import GatSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.grouped import Grouped
from sargnn.engine.operators import RowMap
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.gat import Gat, GatV2
from sargnn.models.base import LayerInput
from sargnn.models.inputs import GraphShape, input_rows
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, in_one
from sargnn.models.tuned import build_tuned
from sargnn.plan.layer_plan import LayerPlan, RowCounts
from sargnn.rng import Purpose


class _AttentiveLayer(GraphLayer):
    """A layer's heads are joined, [M, K D]; of the last layer the mean over heads is taken, [M, D]."""

    scoring: type[Gat] | type[GatV2]
    takes_own_map = True

    def __init__(self, spec: LayerSpec, config: GatSettings, edge_width: int = 0) -> None:
        super().__init__(spec)
        self.config, self.index, self.last = config, spec.index, spec.last
        self.heads, self.width = (config.out_heads, spec.out_width) if spec.last else (config.heads, config.hidden)
        self.bias = nn.Parameter(torch.zeros(self.out_width)) if spec.bias else None
        self.residual: nn.Linear | None = None
        self.edge_map: nn.Linear | None = None
        self.edge_width = edge_width

    @property
    def reducer(self) -> Reducer:
        return self.scoring(self.heads, self.config.negative_slope, weighted=True, features=bool(self.edge_width))

    @property
    def exchanged_needs_grad(self) -> bool:
        """What travels is a learned map of the input, also of a constant one."""
        return True

    def _dropping(self, engine: Engine) -> Reducer:
        """The reducer with this epoch's draws of attention weights and edges."""
        p, p_edges = (self.config.attn_dropout, self.config.edge_dropout) if self.training else (0.0, 0.0)
        draw = engine.draw(Purpose.ATTENTION_DROPOUT, self.index, p)
        edges = engine.draw(Purpose.EDGE_DROPOUT, self.index, p_edges)
        features = bool(self.edge_width)
        return self.scoring(self.heads, self.config.negative_slope, draw, edges, weighted=True, features=features)

    def _own_maps(self, own_map_too: Tensor | None) -> list[Tensor]:
        """The layer's own residual [K D, in], per head, and the caller's map behind it."""
        own = None if self.residual is None else self.residual.weight
        return [weight for weight in (own, own_map_too) if weight is not None]

    def _output(self, engine: Engine, rows: Tensor | Grouped, own: Sequence[Tensor]) -> Tensor | Grouped:
        """``own``: rows mapped by ``_own_maps``."""
        own = list(own)
        if isinstance(rows, Grouped):
            if not (own or self.last or self.bias is not None):
                return rows
            rows = rows.joined(engine.pool)
        if self.residual is not None:
            rows = engine.operators.add(rows, own.pop(0), reuse=True)
        out = rows.view(len(rows), self.heads, self.width).mean(1) if self.last else rows
        if own:
            out = engine.operators.add(out, own[0], reuse=True)
        return engine.operators.with_bias(out, self.bias)

    def _linear(self, bias: bool, width: int | None = None) -> nn.Linear:
        layer = nn.Linear(self.in_width if width is None else width, self.heads * self.width, bias=bias)
        self._begin(layer.weight)
        if bias:
            nn.init.zeros_(layer.bias)
        return layer

    def _attention_vector(self) -> nn.Parameter:
        """[K, D]; its fans are those of DGL's [1, K, D], or PyG's K and D."""
        vector = torch.empty(self.heads, self.width)
        self._begin(vector if self.config.init == "uniform" else vector[None])
        return nn.Parameter(vector)

    def _begin(self, weight: Tensor) -> None:
        if self.config.init == "uniform":
            nn.init.xavier_uniform_(weight)
        else:
            nn.init.xavier_normal_(weight, gain=nn.init.calculate_gain("relu"))


class GatLayer(_AttentiveLayer):
    scoring = Gat

    def __init__(self, spec: LayerSpec, config: GatSettings, edge_width: int = 0) -> None:
        super().__init__(spec, config, edge_width)
        self.symmetric_norm = self.reads_out_degrees = config.symmetric_norm
        self.linear = self._linear(bias=False)
        self.attn_src = self._attention_vector()
        self.attn_dst = self._attention_vector() if config.attn_dst else None
        self.residual = self._linear(bias=False) if config.linear_residual else None
        if edge_width:
            self.edge_map, self.attn_edge = self._linear(bias=False, width=edge_width), self._attention_vector()

    def exchanged_widths(self, counts: RowCounts | None) -> tuple[int, ...]:
        return (self.heads * self.width, self.heads)

    def _of_edges(self) -> tuple[Tensor, ...]:
        """A [K, C], where edges have features."""
        if self.edge_map is None:
            return ()
        return (torch.einsum("kd,kdc->kc", self.attn_edge, self.edge_map.weight.unflatten(0, (self.heads, -1))),)

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput, own_map_too: Tensor | None = None) -> Tensor | Grouped:
        z, el, er, *own = engine.operators.attention_maps(
            plan, x.taken(), self.linear.weight, self.attn_src, self.attn_dst, *self._own_maps(own_map_too)
        )
        if self.symmetric_norm:
            scale = _roots(plan.out_degrees, z).reciprocal_()
            z, el = engine.operators.scaled_rows(z, scale), el * scale
        rows = self.aggregated(engine, plan, self._dropping(engine), (z, el), (er,), self._of_edges())
        if self.symmetric_norm:
            rows = in_one(engine, rows)
            rows = engine.operators.scaled_rows(rows, _roots(plan.in_degrees, rows))
        return self._output(engine, rows, own)


class GatV2Layer(_AttentiveLayer):
    scoring = GatV2
    reads_out_degrees = False

    def __init__(self, spec: LayerSpec, config: GatSettings, edge_width: int = 0) -> None:
        super().__init__(spec, config, edge_width)
        self.src, self.dst = self._linear(bias=True), self._linear(bias=True)
        self.attn = self._attention_vector()
        self.residual = self._linear(bias=False) if config.linear_residual else None
        if edge_width:
            self.edge_map = self._linear(bias=False, width=edge_width)

    def exchanged_widths(self, counts: RowCounts | None) -> tuple[int, ...]:
        return (self.heads * self.width,)

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput, own_map_too: Tensor | None = None) -> Tensor | Grouped:
        of_sources = RowMap(self.src.weight, self.src.bias, of_outputs=False)
        of_destinations = RowMap(self.dst.weight, self.dst.bias, of_outputs=True)
        residuals = (RowMap(weight, None, of_outputs=True) for weight in self._own_maps(own_map_too))
        z, scored, *own = engine.operators.linears(plan, x.taken(), of_sources, of_destinations, *residuals)
        params = (self.attn.flatten(), *(() if self.edge_map is None else (self.edge_map.weight,)))
        rows = self.aggregated(engine, plan, self._dropping(engine), (z,), (scored,), params)
        return self._output(engine, rows, own)


def _roots(degrees: Tensor, like: Tensor) -> Tensor:
    """[rows, 1], sqrt(max(degree, 1))."""
    return degrees.clamp(min=1).to(wide(like.dtype)).sqrt_()[:, None]


def build(config: GatSettings, shape: GraphShape) -> Stack:
    kind: type[_AttentiveLayer] = GatV2Layer if config.v2 else GatLayer
    width = config.heads * config.hidden
    of_layer = dataclasses.replace(config, hidden=config.hidden // 2) if config.blocks == "reversible" else config

    def layer(spec: LayerSpec) -> GraphLayer:
        return kind(spec, of_layer, shape.edge_width)

    return build_tuned(config, input_rows(shape, config.name, config.heads * config.hidden), shape, layer, hidden_width=width)
