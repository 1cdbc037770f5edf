"""GCN (Kipf and Welling, 2017); propagation along edges without parameters, which SGC, APPNP and GCNII are made of, too; and
two deep networks, GCNII and ResGCN+.

    h'_i = W (S h)_i + b        (S h)_i = sum over edges j -> i of h_j / sqrt(d_out(j) d_in(i))

On a symmetric graph with self-loops S is D^-1/2 (A + I) D^-1/2; on a directed one the degrees are those that DGL's
``GraphConv(norm="both")`` takes. Degrees of 0 count as 1. Of a graph with edge weights: ``w_e h_j / sqrt(D_out(j) D_in(i))``
with sums of weights in place of degrees, 0 where one is 0. An added self-loop weighs 1.

The map comes before the sum where its output is narrower. Initialised as DGL's ``GraphConv``: Glorot uniform, bias 0.

Letters: N input rows, M output rows, F features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sargnn.bf16 import wide
from sargnn.config.models import GcniiSettings, GcnSettings, ResGcnSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.sum import DroppedSum, Sum
from sargnn.models.base import LayerInput
from sargnn.models.inputs import GraphShape, input_rows
from sargnn.models.sage import SageLayer
from sargnn.models.stack import GraphLayer, LayerSpec, MlpLayer, Stack, build_stack
from sargnn.models.tuned import build_tuned
from sargnn.plan.layer_plan import LayerPlan, RowCounts
from sargnn.rng import Purpose


def symmetric_sum(
    engine: Engine, plan: LayerPlan, rows: Tensor, reducer: Reducer | None = None, *, reuse: bool = False
) -> Tensor:
    """``S h``: rows [N, F] to rows [M, F]. Saves nothing for backward; all workers must call it. ``reducer``: a sum of other
    messages than ``Sum(weighted=True)``'s. ``reuse``: ``rows`` may be scaled in place.
    """
    key = f"symmetric {rows.dtype}"
    if key not in plan.kept:  # autograd would hold scales of each call
        # [rows, 1]: 1 / sqrt(max(degree, 1)); of sums of weights 1 / sqrt(sum), 0 where the sum is 0.
        if plan.weights is not None:
            scales = [torch.where(sums > 0, sums.rsqrt(), 0) for sums in (plan.weights.outward, plan.weights.inward)]
        else:
            scales = [degrees.clamp(min=1).to(wide(rows.dtype)).rsqrt_() for degrees in (plan.out_degrees, plan.in_degrees)]
        plan.kept[key] = [scale.to(wide(rows.dtype))[:, None] for scale in scales]
    of_sources, of_destinations = plan.kept[key]
    messages = engine.operators.scaled_rows(rows, of_sources, reuse=reuse)
    (out,) = engine.aggregate(plan, reducer or Sum(weighted=True), (messages,))
    return engine.operators.scaled_rows(out, of_destinations, reuse=True)


class PropagationStep(GraphLayer):
    """One step, ``S h``. Saves nothing for backward.

    Args:
        constant: whether the first step's rows are the same in every epoch.
        edge_dropout: probability to drop an edge in training; the others count 1 / (1 - p) times. Backward draws them again.
    """

    reducer = Sum(weighted=True)

    def __init__(self, index: int, width: int, *, constant: bool = False, edge_dropout: float = 0.0) -> None:
        columns = width if constant else 0
        super().__init__(
            LayerSpec(index=index, last=False, in_width=width, out_width=width, bias=False, constant_columns=columns)
        )
        self.index, self.edge_dropout = index, edge_dropout

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        draw = engine.draw(Purpose.EDGE_DROPOUT, self.index, self.edge_dropout if self.training else 0.0)
        return symmetric_sum(engine, plan, x.joined(), None if draw is None else DroppedSum(draw))


class GcnLayer(GraphLayer):
    reads_blocks = True
    gives_fresh_rows = True
    reducer = Sum(weighted=True)

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.linear = nn.Linear(self.in_width, self.out_width, bias=spec.bias)
        nn.init.xavier_uniform_(self.linear.weight)
        if spec.bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        if self.transforms_first(plan.counts):
            z = engine.operators.linear([x.taken()], self.linear.weight, None)
            out = symmetric_sum(engine, plan, z, self.reducer, reuse=True)
            return engine.operators.add_bias(out, self.linear.bias)

        def gather(rows: Tensor) -> Tensor:
            return symmetric_sum(engine, plan, rows, self.reducer)

        return engine.operators.linear(self.gathered(engine, plan, x, gather), self.linear.weight, self.linear.bias)


def build(config: GcnSettings, shape: GraphShape) -> Stack:
    return build_tuned(config, input_rows(shape, config.name, config.hidden), shape, GcnLayer)


class GcniiLayer(GraphLayer):
    """One convolution of GCNII, a deep GCN with initial residuals and identity maps (Chen et al., 2020), of L.

        H_0 = relu(W_in X + b_in)
        H_l = relu(((1 - alpha) S H_(l-1) + alpha H_0) ((1 - beta_l) I + beta_l W_l))    beta_l = log(theta / l + 1), l = 1 .. L
        logits = W_out H_L + b_out

    with self-loops; dropout before every map and convolution. A convolution keeps two tables [N, hidden] for backward, the
    inputs of its map and of its activation; its own input is propagated linearly and not kept. Initialised as the authors'
    code: W_l uniform within 1 / sqrt(hidden), the others as PyTorch's linear layer.

    ``spec.index`` is l. Its output is as wide as its input.
    """

    reads_initial = True
    decay_group = "convolutions"
    reducer = Sum(weighted=True)

    def __init__(self, spec: LayerSpec, config: GcniiSettings) -> None:
        super().__init__(spec)
        self.alpha, self.beta = config.alpha, math.log(config.theta / spec.index + 1)
        bound = 1 / math.sqrt(self.out_width)
        self.weight = nn.Parameter(torch.empty(self.out_width, self.in_width).uniform_(-bound, bound))

    def transforms_first(self, counts: RowCounts | None) -> bool:
        """The map needs the first rows, too."""
        return False

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        assert x.initial is not None
        gathered = symmetric_sum(engine, plan, x.rows)
        mixed = gathered.mul_(1 - self.alpha).add_(plan.self_rows(x.initial), alpha=self.alpha)
        identity = torch.eye(self.out_width, device=self.weight.device, dtype=self.weight.dtype)
        return engine.operators.linear([mixed], torch.lerp(identity, self.weight, self.beta), None)


def build_gcnii(config: GcniiSettings, shape: GraphShape) -> Stack:
    def layer(spec: LayerSpec) -> GraphLayer:
        return MlpLayer(spec) if spec.index == 0 or spec.last else GcniiLayer(spec, config)

    return build_stack(config, input_rows(shape, config.name, config.hidden), shape, layer, depth=config.num_layers + 2)


class PreActivationStack(Stack):
    """ResGCN+, L pre-activation residual blocks (Li et al., "DeeperGCN", 2020; the model of Song et al., 2023).

        h_0 = W_in x + b_in
        h_l = h_(l-1) + conv_l(dropout(relu(norm_(l-1)(h_(l-1)))))        l = 1 .. L
        logits = W_out dropout(relu(norm_L(h_L))) + b_out

    conv is a GCN layer or a GraphSage layer (``models.sage``). A block keeps one table [N, hidden] for backward, h_(l-1): what
    its norm reads. The rows that the convolution maps are computed again from it.

    ``LayerInput.initial`` is the stream of rows that layers add to; each reads it normalised, activated and dropped.
    """

    reads_groups = False

    def _hidden_layer(self, engine: Engine, index: int, plan: LayerPlan, x: LayerInput) -> LayerInput:
        stream = self.layers[index](engine, plan, LayerInput(x.rows, x.labels))
        if x.initial is not None:
            stream = engine.operators.add(stream, plan.self_rows(x.initial))
        read, stream = engine.operators.fork(stream)
        draw = engine.draw(Purpose.DROPOUT, index, self.dropout if self.training else 0.0)
        h = self._activated(engine, index, plan, read, draw)
        return LayerInput(h, initial=stream)


def build_resgcn(config: ResGcnSettings, shape: GraphShape) -> Stack:
    def layer(spec: LayerSpec) -> GraphLayer:
        if spec.index == 0 or spec.last:
            return MlpLayer(spec)
        return GcnLayer(spec) if config.conv == "gcn" else SageLayer(spec)

    inputs = input_rows(shape, config.name, config.hidden)
    return build_stack(config, inputs, shape, layer, depth=config.num_layers + 2, kind=PreActivationStack)
