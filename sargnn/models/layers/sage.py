"""GraphSage (Hamilton et al., 2017).

    h'_i = W_self h_i + W_neigh agg(h_j over edges j -> i) + b

Of a graph with edge weights w_e, sum is the sum of w_e h_j and mean that divided by the sum of w_e.
Initialised as DGL's ``SAGEConv``: Glorot uniform with ReLU's gain, the bias as PyTorch's linear layer.
"""

from __future__ import annotations

from torch import Tensor, nn

from sargnn.engine.aggregate import Engine
from sargnn.engine.operators.base import RowMap
from sargnn.engine.reducers import REDUCERS
from sargnn.engine.reducers.base import Reducer
from sargnn.models.inputs import Features, GraphShape
from sargnn.models.sage import WEIGHTED_AGGREGATORS, Sage
from sargnn.models.stack import GraphLayer, LayerInput, LayerSpec, Stack, build_stack
from sargnn.resolve import resolve
from sargnn.shards.plan import LayerPlan


class SageLayer(GraphLayer):
    """One GraphSage layer.

    Args:
        spec: its place in the stack.
        aggregator: a key of ``REDUCERS`` (``mean``, ``max`` or ``sum``), or the target of a reducer outside the package.
    """

    reads_blocks = True

    def __init__(self, spec: LayerSpec, *, aggregator: str = "mean") -> None:
        super().__init__(spec)
        kind = resolve("aggregator", REDUCERS, aggregator)
        self._reducer: Reducer = kind(weighted=True) if aggregator in WEIGHTED_AGGREGATORS else kind()
        self.neigh = nn.Linear(self.in_width, self.out_width, bias=False)
        self.self = nn.Linear(self.in_width, self.out_width, bias=spec.bias)
        gain = nn.init.calculate_gain("relu")
        nn.init.xavier_uniform_(self.self.weight, gain=gain)
        nn.init.xavier_uniform_(self.neigh.weight, gain=gain)

    @property
    def reducer(self) -> Reducer:
        return self._reducer

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        """Rows [N, in_width] to rows [M, out_width]."""
        if self.transforms_first:
            own_map = RowMap(self.self.weight, self.self.bias, of_outputs=True)
            own, z = engine.operators.linears(plan, x.joined(), own_map, RowMap(self.neigh.weight, None, of_outputs=False))
            # The neighbours' sum is folded onto the own rows: it takes no memory of its own.
            (out,) = engine.aggregate(plan, self.reducer, (z,), (own,))
            return out
        x, again = x.fork(engine)
        own = engine.operators.linear(again.self_rows(plan), self.self.weight, self.self.bias)
        gathered = self.gathered(engine, plan, x, lambda rows: engine.aggregate(plan, self.reducer, (rows,))[0])
        return engine.operators.linear(gathered, self.neigh.weight, None, onto=own)


def build(config: Sage, shape: GraphShape) -> Stack:
    """The model that ``config`` describes."""

    def layer(spec: LayerSpec) -> SageLayer:
        return SageLayer(spec, aggregator=config.aggregator)

    return build_stack(config, Features(shape, config.name), shape, layer)
