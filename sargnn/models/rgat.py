"""RGAT: GAT's attention in each relation of a typed graph, as MLPerf's graph benchmark has it, with a map of a node's own row.

    z_rj = W_r h_j       e_ji = LeakyReLU(<a_src,r, z_rj> + <a_dst,r, W_r h_i> + <a_edge,r, W_edge,r f_ji>)
    h'_i = W_0 h_i + sum over relations r of || over heads of sum over edges j -> i of r of a_ji z_rj + b

a_ji is the softmax of e_ji over the edges of relation r into i; f_ji are the edge's features, where there are some. Of the last
layer, which computes the labelled node type only, the mean over heads is taken. A homogeneous graph is one of one relation.

Relations are aggregated one after the other, each with an exchange of the rows that it reads. Initialised as GAT.

Letters: N input rows, M output rows, R relations, K heads, D head width, C features of an edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sargnn.config.models import RgatSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.gat import Gat
from sargnn.models.base import LayerInput
from sargnn.models.inputs import EVERY_TYPE, GraphShape, TypedRows
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, build_stack
from sargnn.plan.layer_plan import LayerPlan, RowCounts
from sargnn.rng import Purpose

if TYPE_CHECKING:
    from sargnn.rng import Draw


class RgatLayer(GraphLayer):
    reads_out_degrees = False

    def __init__(self, spec: LayerSpec, config: RgatSettings, shape: GraphShape) -> None:
        super().__init__(spec)
        relations, edge_width = len(shape.schema.relations), shape.edge_width
        self.config, self.index, self.last, self.edge_width = config, spec.index, spec.last, edge_width
        alone = spec.last and shape.labelled != EVERY_TYPE
        self.types = (shape.labelled,) if alone else tuple(range(len(shape.schema.node_types)))
        self.heads, self.width = (config.out_heads, spec.out_width) if spec.last else (config.heads, config.hidden)
        self.weight = self._drawn(relations, self.heads * self.width, self.in_width)
        self.attn_src, self.attn_dst = (self._drawn(relations, self.heads, self.width) for _ in range(2))
        self.loop = self._drawn(self.heads * self.width, self.in_width)
        if edge_width:
            self.edge_weight = self._drawn(relations, self.heads * self.width, edge_width)
            self.attn_edge = self._drawn(relations, self.heads, self.width)
        self.bias = nn.Parameter(torch.zeros(self.out_width)) if spec.bias else None

    @staticmethod
    def _drawn(*size: int) -> nn.Parameter:
        """Each relation's by Glorot, with ReLU's gain."""
        table = torch.empty(size)
        for matrix in table.view(-1, *size[-2:]):
            nn.init.xavier_normal_(matrix, gain=nn.init.calculate_gain("relu"))
        return nn.Parameter(table)

    @property
    def reducer(self) -> Reducer:
        return self._attention(None)

    def _attention(self, draw: Draw | None) -> Reducer:
        return Gat(self.heads, self.config.negative_slope, draw, weighted=True, features=bool(self.edge_width))

    @property
    def exchanged_needs_grad(self) -> bool:
        return True

    def exchanged_widths(self, counts: RowCounts | None) -> tuple[int, ...]:
        return (self.heads * self.width, self.heads)

    def why_rows(self, engine: Engine) -> str | None:
        return "its relations are aggregated one after the other"

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        operators = engine.operators
        draw = engine.draw(Purpose.ATTENTION_DROPOUT, self.index, self.config.attn_dropout if self.training else 0.0)
        h, own = operators.fork_own(plan, x.joined())
        sources, destinations = plan.by_input_type(h), plan.by_type(own)
        out = {t: operators.linear([destinations[t]], self.loop, None) for t in self.types}
        for r, relation in enumerate(plan.schema.relations):
            if relation.destination not in out:
                continue
            of_relation = plan if plan.relations is None else plan.relations.plans[r]
            weight, rows, ends = self.weight[r], sources[relation.source], destinations[relation.destination]
            z, el, *_ = operators.attention_maps(of_relation, rows, weight, self.attn_src[r], None)
            er = operators.scores(ends, weight, self.attn_dst[r])
            (total,) = engine.aggregate(of_relation, self._attention(draw), (z, el), (er,), self._of_edges(r), given=True)
            out[relation.destination] = operators.add(out[relation.destination], total)
        heads = torch.cat(list(out.values())) if len(out) > 1 else out[self.types[0]]
        return operators.with_bias(heads.view(len(heads), self.heads, self.width).mean(1) if self.last else heads, self.bias)

    def _of_edges(self, r: int) -> tuple[Tensor, ...]:
        """A [K, C] of a relation, as of ``models.gat``, where edges have features."""
        if not self.edge_width:
            return ()
        return (torch.einsum("kd,kdc->kc", self.attn_edge[r], self.edge_weight[r].unflatten(0, (self.heads, -1))),)


def build(config: RgatSettings, shape: GraphShape) -> Stack:
    def layer(spec: LayerSpec) -> RgatLayer:
        return RgatLayer(spec, config, shape)

    width = config.heads * config.hidden
    stack = build_stack(config, TypedRows(shape, config.embedding, width), shape, layer, hidden_width=width)
    stack.by_relation = True
    return stack
