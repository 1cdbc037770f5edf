"""GCNII, a deep GCN with initial residuals and identity maps (Chen et al., 2020).

    H_0 = relu(W_in X + b_in)
    H_l = relu(((1 - alpha) S H_(l-1) + alpha H_0) ((1 - beta_l) I + beta_l W_l))        beta_l = log(theta / l + 1), l = 1 .. L
    logits = W_out H_L + b_out

S as in ``models.gcn``, with self-loops; dropout before every map and convolution. A convolution keeps two tables
[N, hidden] for backward, the inputs of its map and of its activation; its own input is propagated linearly and not kept.
Initialised as the authors' code: W_l uniform within 1 / sqrt(hidden), the others as PyTorch's linear layer.

Letters: N input rows, M output rows, L convolutions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sargnn.config.models import GcniiSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.sum import Sum
from sargnn.models.base import LayerInput
from sargnn.models.gcn import symmetric_sum
from sargnn.models.inputs import GraphShape, input_rows
from sargnn.models.mlp import MlpLayer
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, build_stack
from sargnn.plan.layer_plan import LayerPlan, RowCounts


class GcniiLayer(GraphLayer):
    """One convolution; ``spec.index`` is l. Its output is as wide as its input."""

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


def build(config: GcniiSettings, shape: GraphShape) -> Stack:
    def layer(spec: LayerSpec) -> GraphLayer:
        return MlpLayer(spec) if spec.index == 0 or spec.last else GcniiLayer(spec, config)

    return build_stack(config, input_rows(shape, config.name, config.hidden), shape, layer, depth=config.num_layers + 2)
