"""Reversible stacks of graph layers (RevGNN, Li et al., "Training graph neural networks with 1000 layers", 2021).

    h_0 = W_in x + b_in
    [a, b] = h_(l-1),  a' = a + conv(drop(act(norm(b)))),  b' = b + conv(drop(act(norm(a')))),  h_l = [a', b']     l = 1 .. L
    logits = W_out drop(act(norm(h_L))) + b_out

Each block has two graph layers of half the width, each with parameters and a norm of its own. No block's input is kept
(``engine.reversible``).

Letters: N input rows, M output rows, L blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from sargnn.config.models import TunedSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.reversible import Half, reversible
from sargnn.engine.row_norm import RowNorm
from sargnn.errors import ConfigError
from sargnn.models.base import LayerInput
from sargnn.models.inputs import GraphShape, Inputs
from sargnn.models.mlp import MlpLayer
from sargnn.models.stack import NORMS, GraphLayer, LayerSpec, Stack
from sargnn.plan.layer_plan import LayerPlan
from sargnn.rng import Purpose


class ReversibleStack(Stack):
    """``layers``: a map, 2 L graph layers, a map."""

    def __init__(self, inputs: Inputs, layers: Sequence[GraphLayer], config: TunedSettings) -> None:
        super().__init__(inputs, layers)
        self.activation, self.dropout, self.input_dropout = config.activation, config.dropout, config.input_dropout
        if config.norm in NORMS:
            self.norms.extend(NORMS[config.norm](layer.in_width) for layer in layers[1:])
        self.reads_out_degrees = any(layer.reads_out_degrees for layer in layers)

    takes_flows = False

    @property
    def num_kept(self) -> int:
        return 1

    def forward(self, engine: Engine, plans: Sequence[LayerPlan], x: LayerInput, *, hidden: bool = False) -> Tensor:
        p_in, last = self.input_dropout if self.training else 0.0, len(self.layers) - 1
        if any(plan.num_out != plan.num_rows for plan in plans[1:last]):
            raise ConfigError("Reversible blocks need all rows of the layer before.", hint="model.blocks=plain")
        x = x.prepared(engine, plans[0], constant=self.graph_layers[0].constant_input, p=p_in)
        rows: Tensor = self.layers[0](engine, plans[0], x)
        halves = [self._half(engine, index, plans[index]) for index in range(1, last)]
        rows = reversible(list(zip(halves[::2], halves[1::2], strict=True)), rows)
        rows = self._read(engine, last, plans[last], rows)
        if hidden:
            return plans[last].self_rows(rows)
        out: Tensor = self.layers[last](engine, plans[last], LayerInput(rows))
        return out

    def _read(self, engine: Engine, index: int, plan: LayerPlan, rows: Tensor) -> Tensor:
        norm = self.norms[index - 1] if self.norms else None
        assert norm is None or isinstance(norm, RowNorm)
        draw = engine.draw(Purpose.DROPOUT, index, self.dropout if self.training else 0.0)
        return engine.operators.norm_act_drop(rows, norm, self.activation, plan.node_ids, draw, plan.row_bounds, plan.counted)

    def _half(self, engine: Engine, index: int, plan: LayerPlan) -> Half:
        def run(rows: Tensor) -> Tensor:
            out: Tensor = self.layers[index](engine, plan, LayerInput(self._read(engine, index, plan, rows)))
            return out

        modules: list[nn.Module] = [self.layers[index], *([self.norms[index - 1]] if self.norms else [])]
        return Half.of(run, modules)


def build_reversible(
    config: TunedSettings, inputs: Inputs, shape: GraphShape, make_layer: Callable[[LayerSpec], GraphLayer], width: int
) -> Stack:
    """The stack that ``config`` describes. ``width`` is of the rows between layers; ``make_layer``'s are half as wide."""
    first, last, half = inputs.width + shape.label_columns, 2 * config.num_layers + 1, width // 2
    constant = inputs.width if config.input_dropout == 0 and inputs.constant else 0
    inner = LayerSpec(index=0, last=False, in_width=half, out_width=half, bias=True)
    layers: list[GraphLayer] = [MlpLayer(replace(inner, in_width=first, out_width=width, constant_columns=constant))]
    layers += [make_layer(replace(inner, index=index)) for index in range(1, last)]
    layers.append(MlpLayer(replace(inner, index=last, last=True, in_width=width, out_width=shape.num_classes)))
    return ReversibleStack(inputs, layers, config)
