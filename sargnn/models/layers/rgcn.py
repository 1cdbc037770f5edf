"""R-GCN (Schlichtkrull et al., 2018).

    h'_i = W_0 h_i + sum over relations r of (1 / |N_r(i)|) sum over edges j -> i of r of W_r h_j + b
    W_r = sum over b of a_rb V_b        with ``bases``, else free

Two orders give the same. ``transform_first`` maps rows, then sums them: backward fetches rows again (case 2).
``aggregate_first`` sums raw rows per relation and maps the sums: nothing is fetched again, but a table per relation is kept.
The last layer computes the labelled node type only. Initialised as DGL's ``RelGraphConv``.

Letters: N input rows, M output rows, M_r output rows of relation r's destination type, R relations, B bases.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sargnn.engine.aggregate import Engine
from sargnn.engine.fork import fork
from sargnn.engine.linear import linear_map
from sargnn.engine.rebuild import self_rows
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.relation_sum import RelationSum
from sargnn.engine.reducers.rgcn import Rgcn
from sargnn.engine.relation_maps import add_mapped
from sargnn.models.inputs import GraphShape, TypedRows
from sargnn.models.rgcn import Rgcn as RgcnSettings
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, build_stack
from sargnn.shards.plan import LayerPlan


class RgcnLayer(GraphLayer):
    """One R-GCN layer.

    Args:
        in_width, out_width: features of the input and the output rows.
        relations: R. bases: B, or None for a full weight per relation.
        order: ``transform_first``, ``aggregate_first`` or ``auto``: what keeps fewer rows for backward in the engine's mode;
            in a baseline mode what DGL's ``GraphConv`` does.
        bias: whether it has b; not before a batch norm, where its true gradient is zero.
        constant_input: see ``GraphLayer``.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        *,
        relations: int,
        bases: int | None = None,
        order: str = "auto",
        bias: bool = True,
        constant_input: bool = False,
    ) -> None:
        super().__init__(in_width, out_width, constant_input=constant_input)
        self.order = order
        self._chosen: tuple[LayerPlan, str] | None = None
        self.relations = relations
        bound = 1.0 / math.sqrt(in_width)
        self.weight = nn.Parameter(torch.empty(bases or relations, in_width, out_width).uniform_(-bound, bound))
        gain = nn.init.calculate_gain("relu")
        self.coefficients = None
        if bases is not None:
            self.coefficients = nn.Parameter(torch.empty(relations, bases))
            nn.init.xavier_uniform_(self.coefficients, gain=gain)
        self.loop = nn.Parameter(torch.empty(in_width, out_width))
        nn.init.xavier_uniform_(self.loop, gain=gain)
        self.bias = nn.Parameter(torch.zeros(out_width)) if bias else None

    @property
    def reducer(self) -> Reducer:
        order = self._chosen[1] if self._chosen else self.order
        return RelationSum() if order == "aggregate_first" else Rgcn()

    @property
    def sent_widths(self) -> tuple[int, ...]:
        """Raw rows travel, in either order."""
        return (self.in_width,)

    def relation_weights(self) -> Tensor:
        """W [R, in, out]."""
        if self.coefficients is None:
            return self.weight
        return (self.coefficients @ self.weight.flatten(1)).view(self.relations, self.in_width, self.out_width)

    def forward(self, engine: Engine, plan: LayerPlan, h: Tensor, columns: Tensor | None = None) -> Tensor:
        """Rows [N, in_width] to rows [M, out_width]."""
        self._choose(engine, plan)
        reducer, weights = self.reducer, self.relation_weights()
        if isinstance(reducer, Rgcn):
            if engine.lean:
                (out,) = engine.aggregate(plan, reducer, (h,), (), (weights, self.loop))
            else:
                (out,) = engine.aggregate(plan, reducer, (h,), (plan.self_rows(h) @ self.loop,), (weights,))
        else:
            h, again = fork(h)
            if self.constant_input:
                sums = engine.constant(self, plan, lambda: engine.aggregate(plan, reducer, (h,)))
            else:
                sums = engine.aggregate(plan, reducer, (h,))
            own = linear_map(self_rows(plan, again), self.loop.T, None)
            out = add_mapped(plan, own, weights, sums) if engine.lean else _add_mapped_stock(plan, own, weights, sums)
        if self.bias is None:
            return out
        return out.add_(self.bias) if engine.lean else out + self.bias

    def _choose(self, engine: Engine, plan: LayerPlan) -> None:
        """The order on this plan; all workers must call it."""
        if self._chosen is not None and self._chosen[0] is plan:
            return
        order = self.order
        if order == "auto" and not engine.mode.lean:
            # The baseline's choice is that of DGL's GraphConv: the narrower side is mapped to last.
            order = "transform_first" if self.in_width > self.out_width else "aggregate_first"
        elif order == "auto":
            sums, sources = sum(len(degrees) for degrees in plan.relation_degrees), engine.mode.kept_rows(plan)
            if self.constant_input and engine.cache_static:
                sources = max(sources, plan.num_rows)  # sums that are taken once may be as large as the rows themselves
            sums, sources = engine.group.sum_(torch.tensor([sums, sources])).tolist()
            order = "aggregate_first" if sums <= sources else "transform_first"
        self._chosen = plan, order


def _add_mapped_stock(plan: LayerPlan, own: Tensor, weights: Tensor, sums: tuple[Tensor, ...]) -> Tensor:
    """``add_mapped`` in PyTorch's own operators."""
    by_type = plan.by_type(own)
    for r, weight in enumerate(weights.unbind(0)):
        destination = plan.schema.relations[r].destination
        if plan.out_type in (None, destination):
            mean = sums[r] * plan.relation_scale(r, own.dtype)[:, None]
            by_type[destination] = by_type[destination] + mean @ weight
    return plan.joined(by_type)


def build(config: RgcnSettings, shape: GraphShape) -> Stack:
    """The model that ``config`` describes."""

    def layer(spec: LayerSpec) -> RgcnLayer:
        return RgcnLayer(
            spec.in_width,
            spec.out_width,
            relations=len(shape.schema.relations),
            bases=config.bases,
            order=config.order,
            bias=spec.bias,
            constant_input=spec.constant_input,
        )

    return build_stack(config, TypedRows(shape, config.embedding, config.hidden), shape, layer)
