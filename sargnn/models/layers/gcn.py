"""GCN (Kipf and Welling, 2017).

    h'_i = W sum over edges j -> i of h_j / sqrt(d_out(j) d_in(i)) + b

On a symmetric graph with self-loops this is D^-1/2 (A + I) D^-1/2 H W; on a directed one the degrees are those that
DGL's ``GraphConv(norm="both")`` takes. Degrees of 0 count as 1. Initialised as ``GraphConv``: Glorot uniform, bias 0.
"""

from __future__ import annotations

from torch import Tensor, nn

from sargnn.engine.aggregate import Engine
from sargnn.engine.linear import linear_columns, linear_map
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.sum import Sum
from sargnn.models.gcn import Gcn
from sargnn.models.inputs import Features, GraphShape
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, build_stack
from sargnn.shards.plan import LayerPlan


class GcnLayer(GraphLayer):
    """One GCN layer.

    Args:
        in_width, out_width: features of the input and the output rows.
        bias: whether it has b; not before a batch norm, where its true gradient is zero.
        constant_input: see ``GraphLayer``.
    """

    def __init__(self, in_width: int, out_width: int, *, bias: bool = True, constant_input: bool = False) -> None:
        super().__init__(in_width, out_width, constant_input=constant_input)
        self._reducer = Sum()
        self.linear = nn.Linear(in_width, out_width, bias=bias)
        nn.init.xavier_uniform_(self.linear.weight)
        if bias:
            nn.init.zeros_(self.linear.bias)

    @property
    def reducer(self) -> Reducer:
        return self._reducer

    def forward(self, engine: Engine, plan: LayerPlan, h: Tensor, columns: Tensor | None = None) -> Tensor:
        """Rows [N, in_width] to rows [M, out_width]."""
        source_scale, destination_scale = _scale(plan.out_degrees, h), _scale(plan.in_degrees, h)
        if self.transforms_first:
            z = linear_map(h, self.linear.weight, None).mul_(source_scale)
            (gathered,) = engine.aggregate(plan, self.reducer, (z,))
            out = gathered.mul_(destination_scale)
            return out if self.linear.bias is None else out.add_(self.linear.bias)

        def gather(x: Tensor) -> Tensor:
            (gathered,) = engine.aggregate(plan, self.reducer, (x * source_scale,))
            return gathered.mul_(destination_scale)

        return linear_columns(self.gathered(engine, plan, h, columns, gather), self.linear)


def _scale(degrees: Tensor, like: Tensor) -> Tensor:
    """[rows, 1], 1 / sqrt(max(degree, 1))."""
    return degrees.clamp(min=1).to(like.dtype).rsqrt_()[:, None]


def build(config: Gcn, shape: GraphShape) -> Stack:
    """The model that ``config`` describes."""

    def layer(spec: LayerSpec) -> GcnLayer:
        return GcnLayer(spec.in_width, spec.out_width, bias=spec.bias, constant_input=spec.constant_input)

    return build_stack(config, Features(shape, config.name), shape, layer, takes_columns=True)
