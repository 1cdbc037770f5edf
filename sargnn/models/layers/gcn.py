"""GCN (Kipf and Welling, 2017).

    h'_i = W sum over edges j -> i of h_j / sqrt(d_out(j) d_in(i)) + b

On a symmetric graph with self-loops this is D^-1/2 (A + I) D^-1/2 H W; on a directed one the degrees are those that
DGL's ``GraphConv(norm="both")`` takes. Degrees of 0 count as 1. Initialised as ``GraphConv``: Glorot uniform, bias 0.
"""

from __future__ import annotations

from torch import Tensor, nn

from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.sum import Sum
from sargnn.models.gcn import Gcn
from sargnn.models.inputs import Features, GraphShape
from sargnn.models.stack import GraphLayer, LayerInput, LayerSpec, Stack, build_stack
from sargnn.shards.plan import LayerPlan


class GcnLayer(GraphLayer):
    """One GCN layer.

    Args:
        spec: its place in the stack.
    """

    reads_blocks = True

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self._reducer = Sum()
        self.linear = nn.Linear(self.in_width, self.out_width, bias=spec.bias)
        nn.init.xavier_uniform_(self.linear.weight)
        if spec.bias:
            nn.init.zeros_(self.linear.bias)

    @property
    def reducer(self) -> Reducer:
        return self._reducer

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        """Rows [N, in_width] to rows [M, out_width]."""
        source_scale, destination_scale = _scale(plan.out_degrees, x.rows), _scale(plan.in_degrees, x.rows)
        if self.transforms_first:
            z = engine.operators.linear([x.joined()], self.linear.weight, None)
            (gathered,) = engine.aggregate(plan, self.reducer, (z.mul_(source_scale),))
            out = gathered.mul_(destination_scale)
            return out if self.linear.bias is None else out.add_(self.linear.bias)

        def gather(rows: Tensor) -> Tensor:
            (gathered,) = engine.aggregate(plan, self.reducer, (rows * source_scale,))
            return gathered.mul_(destination_scale)

        return engine.operators.linear(self.gathered(engine, plan, x, gather), self.linear.weight, self.linear.bias)


def symmetric_sum(engine: Engine, plan: LayerPlan, rows: Tensor, reducer: Reducer | None = None) -> Tensor:
    """``S h``: sum over edges j -> i of h_j / sqrt(d_out(j) d_in(i)), rows [N, F] to rows [M, F]; saves nothing for backward.

    Args:
        reducer: a sum of other messages; ``Sum`` if not given.
    """
    key = f"symmetric {rows.dtype}"
    if key not in plan.kept:  # autograd would hold scales of each call
        plan.kept[key] = _scale(plan.out_degrees, rows), _scale(plan.in_degrees, rows)
    of_sources, of_destinations = plan.kept[key]
    (summed,) = engine.aggregate(plan, reducer or Sum(), (rows * of_sources,))
    return summed.mul_(of_destinations)


def _scale(degrees: Tensor, like: Tensor) -> Tensor:
    """[rows, 1], 1 / sqrt(max(degree, 1))."""
    return degrees.clamp(min=1).to(like.dtype).rsqrt_()[:, None]


def build(config: Gcn, shape: GraphShape) -> Stack:
    """The model that ``config`` describes."""

    def layer(spec: LayerSpec) -> GcnLayer:
        return GcnLayer(spec)

    return build_stack(config, Features(shape, config.name), shape, layer)
