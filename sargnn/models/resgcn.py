"""ResGCN+, a deep network of pre-activation residual blocks (Li et al., "DeeperGCN", 2020; the model of Song et al., 2023).

    h_0 = W_in x + b_in
    h_l = h_(l-1) + conv_l(dropout(relu(norm_(l-1)(h_(l-1)))))        l = 1 .. L
    logits = W_out dropout(relu(norm_L(h_L))) + b_out

conv is a GCN layer (``models.gcn``) or a GraphSage layer (``models.sage``). A block keeps one table [N, hidden] for backward,
h_(l-1): what its norm reads. The rows that the convolution maps are computed again from it.

Letters: N input rows, M output rows, L blocks.
"""

from __future__ import annotations

from sargnn.config.models import ResGcnSettings
from sargnn.engine.aggregate import Engine
from sargnn.models.base import LayerInput
from sargnn.models.gcn import GcnLayer
from sargnn.models.inputs import GraphShape, input_rows
from sargnn.models.mlp import MlpLayer
from sargnn.models.sage import SageLayer
from sargnn.models.stack import GraphLayer, LayerSpec, Stack, build_stack
from sargnn.plan.layer_plan import LayerPlan
from sargnn.rng import Purpose


class PreActivationStack(Stack):
    """``LayerInput.initial`` is the stream of rows that layers add to; each reads it normalised, activated and dropped."""

    def _hidden_layer(self, engine: Engine, index: int, plan: LayerPlan, x: LayerInput) -> LayerInput:
        stream = self.layers[index](engine, plan, LayerInput(x.rows, x.labels))
        if x.initial is not None:
            stream = engine.operators.add(stream, plan.self_rows(x.initial))
        read, stream = engine.operators.fork(stream)
        draw = engine.draw(Purpose.DROPOUT, index, self.dropout if self.training else 0.0)
        h = self._activated(engine, index, plan, read, draw)
        return LayerInput(h, initial=stream)


def build(config: ResGcnSettings, shape: GraphShape) -> Stack:
    def layer(spec: LayerSpec) -> GraphLayer:
        if spec.index == 0 or spec.last:
            return MlpLayer(spec)
        return GcnLayer(spec) if config.conv == "gcn" else SageLayer(spec)

    inputs = input_rows(shape, config.name, config.hidden)
    return build_stack(config, inputs, shape, layer, depth=config.num_layers + 2, kind=PreActivationStack)
