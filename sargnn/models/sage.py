"""GraphSage (Hamilton et al., 2017).

    h'_i = W_self h_i + W_neigh agg(h_j over edges j -> i) + b
    agg    mean, max, sum; pool: max of relu(W_pool h_j + b_pool); lstm: the last state of an LSTM over the h_j, in an order
           that is drawn each epoch

Of a graph with edge weights w_e, sum is the sum of w_e h_j and mean that divided by the sum of w_e.
Initialised as DGL's ``SAGEConv``: Glorot uniform with ReLU's gain, the bias as PyTorch's linear layer, an LSTM as PyTorch's.

Letters: N input rows, M output rows.
"""

from __future__ import annotations

from torch import Tensor, nn

from sargnn.config.combinations import LSTM
from sargnn.config.models import WEIGHTED_AGGREGATORS, SageSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.grouped import Grouped
from sargnn.engine.operators import RowMap
from sargnn.engine.reducers import REDUCERS
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.lstm import Lstm
from sargnn.errors import ConfigError
from sargnn.models.base import LayerInput
from sargnn.models.inputs import GraphShape, input_rows
from sargnn.models.stack import GraphLayer, LayerSpec, Stack
from sargnn.models.tuned import build_tuned
from sargnn.plan.layer_plan import LayerPlan
from sargnn.resolve import resolve
from sargnn.rng import Draw, Purpose


class SageLayer(GraphLayer):
    """``aggregator``: a key of ``REDUCERS``, or the target of a reducer outside the package."""

    reads_blocks = True
    reads_out_degrees = False
    takes_own_map = True

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

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput, own_map_too: Tensor | None = None) -> Tensor | Grouped:
        weight = self.self.weight if own_map_too is None else self.self.weight + own_map_too
        if self.transforms_first(plan.counts):
            own_map = RowMap(weight, self.self.bias, of_outputs=True)
            own, z = engine.operators.linears(plan, x.taken(), own_map, RowMap(self.neigh.weight, None, of_outputs=False))
            # The neighbours' sum is folded onto the own rows: it takes no memory of its own.
            return self.aggregated(engine, plan, self.reducer, (z,), (own,))
        read, (x, rows) = x, x.fork_own(engine, plan)
        # Rows that were made for this layer are let go of before they are summed; constant ones are there in any case.
        neighbours = self.neighbours(engine, plan, x) if self.constant_input else None
        own = engine.operators.linear(rows, weight, self.self.bias)
        del rows
        read.let_go()
        if neighbours is None:
            neighbours = self.neighbours(engine, plan, x)
        return engine.operators.linear(neighbours, self.neigh.weight, None, onto=own)

    def neighbours(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> list[Tensor]:
        """agg(h_j), [M, in_width] in blocks of columns."""
        return self.gathered(engine, plan, x, lambda rows: engine.aggregate(plan, self.reducer, (rows,), given=x.given)[0])


class PoolLayer(SageLayer):
    """What travels is mapped and activated, so its gradient is wanted."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec, aggregator="max")
        self.pool = nn.Linear(self.in_width, self.in_width)
        nn.init.xavier_uniform_(self.pool.weight, gain=nn.init.calculate_gain("relu"))

    @property
    def exchanged_needs_grad(self) -> bool:
        return True

    def neighbours(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> list[Tensor]:
        h = engine.operators.linear(x.blocks, self.pool.weight, self.pool.bias)
        h = engine.operators.norm_act_drop(h, None, "relu", plan.node_ids, None, plan.row_bounds)
        return list(engine.aggregate(plan, self.reducer, (h,)))


class LstmLayer(SageLayer):
    """For modes that hold all rows of a node's neighbours.

    Their order is drawn by original ids, anew for each layer and epoch; in evaluation it is that of epoch 0.
    """

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec, aggregator="lstm")
        self.index = spec.index
        self.lstm = nn.LSTM(self.in_width, self.in_width)

    def prepare(self, engine: Engine, plan: LayerPlan) -> None:
        if plan.merged is None and plan.world > 1:  # a mode from outside the package, which the settings do not know
            raise ConfigError(LSTM.why, given=f"mode={engine.mode.name}", allowed=str(LSTM.allowed), hint=LSTM.hint)

    def neighbours(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> list[Tensor]:
        draw = Draw(engine.seed, engine.epoch if self.training else 0, Purpose.NEIGHBOURS, self.index, 0.0)
        return list(engine.aggregate(plan, Lstm(draw), (x.joined(),), (), tuple(self.lstm.all_weights[0])))


def build(config: SageSettings, shape: GraphShape) -> Stack:
    def layer(spec: LayerSpec) -> SageLayer:
        if config.aggregator == "pool":
            return PoolLayer(spec)
        return LstmLayer(spec) if config.aggregator == "lstm" else SageLayer(spec, aggregator=config.aggregator)

    return build_tuned(config, input_rows(shape, config.name, config.hidden), shape, layer)
