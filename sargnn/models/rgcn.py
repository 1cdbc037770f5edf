"""R-GCN (Schlichtkrull et al., 2018).

    h'_i = W_0 h_i + sum over relations r of (1 / |N_r(i)|) sum over edges j -> i of r of W_r h_j + b
    W_r = sum over b of a_rb V_b        with ``bases``, else free

Of a graph with edge weights: the sum of w_e W_r h_j, divided by the sum of w_e; 0 where that is 0.

Two orders give the same. ``transform_first`` maps rows, then sums them: backward fetches rows again (case 2),
but those whose sums a peer has sent.
``aggregate_first`` sums raw rows per relation and maps the sums: nothing is fetched again, but a table per relation is kept.
The last layer computes the labelled node type only. Initialised as DGL's ``RelGraphConv``.

Letters: N input rows, M output rows, M_r output rows of relation r's destination type, R relations, B bases.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sargnn.config.models import RgcnSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.rgcn import RelationSum, Rgcn
from sargnn.models.base import LayerInput
from sargnn.models.inputs import GraphShape, TypedRows
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, build_stack
from sargnn.plan.layer_plan import LayerPlan, RowCounts


class RgcnLayer(GraphLayer):
    """One R-GCN layer.

    Args:
        bases: B, or None for a full weight per relation.
        order: ``transform_first``, ``aggregate_first`` or ``auto``: what keeps fewer rows for backward in the engine's mode;
            in a baseline mode what DGL's ``GraphConv`` does.
    """

    reads_out_degrees = False

    def __init__(self, spec: LayerSpec, *, relations: int, bases: int | None = None, order: str = "auto") -> None:
        super().__init__(spec)
        in_width, out_width = self.in_width, self.out_width
        self.order, self.relations = order, relations
        bound = 1.0 / math.sqrt(in_width)
        self.weight = nn.Parameter(torch.empty(bases or relations, in_width, out_width).uniform_(-bound, bound))
        gain = nn.init.calculate_gain("relu")
        self.coefficients = None
        if bases is not None:
            self.coefficients = nn.Parameter(torch.empty(relations, bases))
            nn.init.xavier_uniform_(self.coefficients, gain=gain)
        self.loop = nn.Parameter(torch.empty(in_width, out_width))
        nn.init.xavier_uniform_(self.loop, gain=gain)
        self.bias = nn.Parameter(torch.zeros(out_width)) if spec.bias else None

    @property
    def _mapping(self) -> Rgcn:
        return Rgcn(self.out_width, bases=self.coefficients is not None)

    @property
    def reducer(self) -> Reducer:
        return RelationSum() if self.order == "aggregate_first" else self._mapping

    def prepare(self, engine: Engine, plan: LayerPlan) -> None:
        if self._key in plan.kept:
            return
        order = self.order
        if plan.partials is not None:  # which RelationSum has none of
            order = "transform_first"
        if order == "auto":
            keeps_sums = self.constant_input and engine.caches_constants and engine.keeps_constants
            first = engine.operators.sums_relations_first(
                plan, engine.mode, self.in_width, self.out_width, keeps_sums=keeps_sums
            )
            order = "aggregate_first" if first else "transform_first"
        plan.kept[self._key] = order

    @property
    def _key(self) -> str:
        """Of its order among what is kept with a plan."""
        return f"order of {id(self)}"

    def reducer_on(self, plan: LayerPlan) -> Reducer:
        assert self._key in plan.kept, "prepare(engine, plan) comes first: all workers choose the order together"
        return RelationSum() if plan.kept[self._key] == "aggregate_first" else self._mapping

    def exchanged_widths(self, counts: RowCounts | None) -> tuple[int, ...]:
        """Raw rows travel, in either order."""
        return (self.in_width,)

    def why_rows(self, engine: Engine) -> str | None:
        """Not where sums of raw rows may be kept: they are taken once."""
        kept = self.constant_input and engine.caches_constants and self.order != "transform_first"
        return RelationSum.no_partials if kept else super().why_rows(engine)

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        reducer, h = self.reducer_on(plan), x.joined()
        weights = (self.weight,) if self.coefficients is None else (self.weight, self.coefficients)
        if isinstance(reducer, Rgcn):
            dest_local, params = engine.operators.self_loop(plan, h, self.loop)
            (out,) = engine.aggregate(plan, reducer, (h,), dest_local, (*weights, *params))
        else:
            h, own_rows = engine.operators.fork_own(plan, h)
            if self.constant_input:
                sums = engine.constant(self, plan, lambda: engine.aggregate(plan, reducer, (h,)))
            else:
                sums = engine.aggregate(plan, reducer, (h,))
            own = engine.operators.linear([own_rows], self.loop.T, None)
            out = engine.operators.add_relation_maps(plan, own, weights, sums)
        return engine.operators.add_bias(out, self.bias)


def build(config: RgcnSettings, shape: GraphShape) -> Stack:
    def layer(spec: LayerSpec) -> RgcnLayer:
        return RgcnLayer(spec, relations=len(shape.schema.relations), bases=config.bases, order=config.order)

    return build_stack(config, TypedRows(shape, config.embedding, config.hidden), shape, layer)
