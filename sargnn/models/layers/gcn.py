"""GCN (Kipf and Welling, 2017).

    h'_i = W sum over edges j -> i of h_j / sqrt(d_out(j) d_in(i)) + b

On a symmetric graph with self-loops this is D^-1/2 (A + I) D^-1/2 H W; on a directed one the degrees are those that
DGL's ``GraphConv(norm="both")`` takes. Degrees of 0 count as 1. Initialised as ``GraphConv``: Glorot uniform, bias 0.

Of a graph with edge weights: ``w_e h_j / sqrt(D_out(j) D_in(i))`` with sums of weights in place of degrees, 0 where one is 0.
An added self-loop weighs 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sargnn.bf16 import wide
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
        self._reducer = Sum(weighted=True)
        self.linear = nn.Linear(self.in_width, self.out_width, bias=spec.bias)
        nn.init.xavier_uniform_(self.linear.weight)
        if spec.bias:
            nn.init.zeros_(self.linear.bias)

    @property
    def reducer(self) -> Reducer:
        return self._reducer

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        """Rows [N, in_width] to rows [M, out_width]."""
        if self.transforms_first(plan.counts):
            z = engine.operators.linear([x.joined()], self.linear.weight, None)
            out = symmetric_sum(engine, plan, z, self.reducer, reuse=True)
            return engine.operators.add_bias(out, self.linear.bias)

        def gather(rows: Tensor) -> Tensor:
            return symmetric_sum(engine, plan, rows, self.reducer)

        return engine.operators.linear(self.gathered(engine, plan, x, gather), self.linear.weight, self.linear.bias)


def symmetric_sum(
    engine: Engine, plan: LayerPlan, rows: Tensor, reducer: Reducer | None = None, *, reuse: bool = False
) -> Tensor:
    """``S h``, S = D_in^-1/2 A D_out^-1/2: rows [N, F] to rows [M, F]; saves nothing for backward; all workers must call it.

    A_ij counts the edges j -> i; of a graph with edge weights it is their sum, and so are the degrees.

    Args:
        reducer: a sum of other messages; ``Sum(weighted=True)`` if not given.
        reuse: ``rows`` are of no further use to the caller, who lets them be scaled in place.
    """
    key = f"symmetric {rows.dtype}"
    if key not in plan.kept:  # autograd would hold scales of each call
        plan.kept[key] = (_scale(plan.out_degrees, plan.out_weights, rows), _scale(plan.in_degrees, plan.in_weights, rows))
    of_sources, of_destinations = plan.kept[key]
    messages = engine.operators.scaled_rows(rows, of_sources, reuse=reuse)
    (out,) = engine.aggregate(plan, reducer or Sum(weighted=True), (messages,))
    return engine.operators.scaled_rows(out, of_destinations, reuse=True)


def _scale(degrees: Tensor, weights: Tensor | None, like: Tensor) -> Tensor:
    """[rows, 1], 1 / sqrt(max(degree, 1)); of sums of weights 1 / sqrt(sum), 0 where the sum is 0."""
    if weights is not None:
        return torch.where(weights > 0, weights.rsqrt(), 0).to(wide(like.dtype))[:, None]
    return degrees.clamp(min=1).to(wide(like.dtype)).rsqrt_()[:, None]


def build(config: Gcn, shape: GraphShape) -> Stack:
    """The model that ``config`` describes."""

    def layer(spec: LayerSpec) -> GcnLayer:
        return GcnLayer(spec)

    return build_stack(config, Features(shape, config.name), shape, layer)
