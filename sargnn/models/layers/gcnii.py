"""GCNII, a deep GCN with initial residuals and identity maps (Chen et al., 2020).

    H_0 = relu(W_in X + b_in)
    H_l = relu(((1 - alpha) S H_(l-1) + alpha H_0) ((1 - beta_l) I + beta_l W_l))        beta_l = log(theta / l + 1), l = 1 .. L
    logits = W_out H_L + b_out

S as in ``layers.gcn``, with self-loops; dropout before every map and convolution, as a stack has it. A convolution keeps two
tables [N, hidden] for backward, the input of its map and that of its activation; its own input, which is propagated linearly,
is not kept. Initialised as the authors' code: W_l uniform within 1 / sqrt(hidden), the others as PyTorch's linear layer.

Letters: N input rows, M output rows, L convolutions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.sum import Sum
from sargnn.models.gcnii import Gcnii
from sargnn.models.inputs import Features, GraphShape
from sargnn.models.layers.gcn import symmetric_sum
from sargnn.models.layers.mlp import MlpLayer
from sargnn.models.stack import GraphLayer, LayerInput, LayerSpec, Stack, build_stack
from sargnn.shards.plan import LayerPlan, RowCounts


class GcniiLayer(GraphLayer):
    """One convolution; ``spec.index`` is l.

    Args:
        spec: its place in the stack, behind the first linear map; as wide as its input.
    """

    reads_initial = True
    decay_group = "convolutions"

    def __init__(self, spec: LayerSpec, *, alpha: float, theta: float) -> None:
        super().__init__(spec)
        self.alpha, self.beta = alpha, math.log(theta / spec.index + 1)
        bound = 1 / math.sqrt(self.out_width)
        self.weight = nn.Parameter(torch.empty(self.out_width, self.in_width).uniform_(-bound, bound))

    def transforms_first(self, counts: RowCounts | None) -> bool:
        """Never: the map needs the first rows, too."""
        return False

    @property
    def reducer(self) -> Reducer:
        return Sum(weighted=True)

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        """Rows [N, hidden] to rows [M, hidden]."""
        assert x.initial is not None
        gathered = symmetric_sum(engine, plan, x.rows)
        mixed = gathered.mul_(1 - self.alpha).add_(plan.self_rows(x.initial), alpha=self.alpha)
        identity = torch.eye(self.out_width, device=self.weight.device, dtype=self.weight.dtype)
        return engine.operators.linear([mixed], torch.lerp(identity, self.weight, self.beta), None)


def build(config: Gcnii, shape: GraphShape) -> Stack:
    """The model that ``config`` describes."""

    def layer(spec: LayerSpec) -> GraphLayer:
        if spec.index == 0 or spec.last:
            return MlpLayer(spec)
        return GcniiLayer(spec, alpha=config.alpha, theta=config.theta)

    return build_stack(config, Features(shape, config.name), shape, layer, depth=config.num_layers + 2)
