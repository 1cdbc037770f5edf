"""GraphSage (Hamilton et al., 2017).

    h'_i = W_self h_i + W_neigh agg(h_j over edges j -> i) + b

Initialised as DGL's ``SAGEConv``: Glorot uniform with ReLU's gain, the bias as PyTorch's linear layer.
"""

from __future__ import annotations

from torch import Tensor, nn

from sargnn.engine.aggregate import Engine
from sargnn.engine.fork import fork
from sargnn.engine.linear import linear, linear_columns, two_linear
from sargnn.engine.rebuild import self_rows
from sargnn.engine.reducers import REDUCERS
from sargnn.engine.reducers.base import Reducer
from sargnn.models.inputs import Features, GraphShape
from sargnn.models.sage import Sage
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, blocks_of, build_stack
from sargnn.resolve import resolve
from sargnn.shards.plan import LayerPlan


class SageLayer(GraphLayer):
    """One GraphSage layer.

    Args:
        in_width, out_width: features of the input and the output rows.
        aggregator: a key of ``REDUCERS``: ``mean``, ``max`` or ``sum``.
        bias: whether it has b; not before a batch norm, where its true gradient is zero.
        constant_input: see ``GraphLayer``.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        *,
        aggregator: str = "mean",
        bias: bool = True,
        constant_input: bool = False,
    ) -> None:
        super().__init__(in_width, out_width, constant_input=constant_input)
        self._reducer: Reducer = resolve("aggregator", REDUCERS, aggregator)()
        self.neigh = nn.Linear(in_width, out_width, bias=False)
        self.self = nn.Linear(in_width, out_width, bias=bias)
        gain = nn.init.calculate_gain("relu")
        nn.init.xavier_uniform_(self.self.weight, gain=gain)
        nn.init.xavier_uniform_(self.neigh.weight, gain=gain)

    @property
    def reducer(self) -> Reducer:
        return self._reducer

    def forward(self, engine: Engine, plan: LayerPlan, h: Tensor, columns: Tensor | None = None) -> Tensor:
        """Rows [N, in_width] to rows [M, out_width]."""
        if self.transforms_first:
            if engine.lean:
                own, z = two_linear(h, self.self, self.neigh, (plan.num_out, plan.num_rows))
            else:
                own, z = linear(plan.self_rows(h), self.self), linear(h, self.neigh)
            # The neighbours' sum is folded onto the own rows: no room of its own.
            (out,) = engine.aggregate(plan, self.reducer, (z,), (own,))
            return out
        h, again = fork(h)
        own = linear_columns([self_rows(plan, block) for block in blocks_of(again, columns)], self.self)
        gathered = self.gathered(engine, plan, h, columns, lambda x: engine.aggregate(plan, self.reducer, (x,))[0])
        return linear_columns(gathered, self.neigh, own) if engine.lean else own + linear_columns(gathered, self.neigh)


def build(config: Sage, shape: GraphShape) -> Stack:
    """The model that ``config`` describes."""

    def layer(spec: LayerSpec) -> SageLayer:
        return SageLayer(
            spec.in_width,
            spec.out_width,
            aggregator=config.aggregator,
            bias=spec.bias,
            constant_input=spec.constant_input,
        )

    return build_stack(config, Features(shape, config.name), shape, layer, takes_columns=True)
