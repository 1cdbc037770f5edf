"""The stack of classic networks (GCN, GraphSage, GAT, GIN) with what gives them their best numbers (Luo et al., "Classic GNNs
are strong baselines for node classification", 2024). conv_l is the graph layer, everything else is chosen:

    h_0 = dropout(W_in x + b_in)                                    with ``input_linear``; else h_0 = x
    h_l = dropout(act(norm_l(conv_l(h_(l-1)) + res_l(h_(l-1)))))    l = 1 .. L
    h_l = dropout(act(conv_l(norm_(l-1)(h_(l-1))) + res_l(h_(l-1))))   with ``pre_norm``; of x itself no norm is taken

    res_l   nothing; the identity (a map where widths differ); ``residual=linear``: R_l h_(l-1), on every graph layer
    logits  conv_L(h_(L-1)) + R_L h_(L-1); with ``head=linear`` W j(h_1, .., h_L) + b, behind L layers that are all as wide
    j       h_L; their sum, their maximum or all of them side by side: jumping knowledge (Xu et al., 2018)

GraphSage's map of the own row and R_l are one product, of the sum of both matrices. With ``pre_norm`` the head reads
norm_L(h_L), but of several layers their rows as they are.

Letters: N input rows, M output rows, L graph layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sargnn.config.models import TunedSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.grouped import Grouped
from sargnn.engine.row_norm import RowNorm
from sargnn.models.base import LayerInput
from sargnn.models.inputs import GraphShape, Inputs
from sargnn.models.stack import GraphLayer, LayerSpec, MlpLayer, Stack, build_stack, in_one
from sargnn.plan.layer_plan import LayerPlan
from sargnn.rng import Purpose


class TunedStack(Stack):
    """A stack whose layers may have maps before and behind them, norms in front, and residuals of their own."""

    def __init__(
        self, inputs: Inputs, layers: Sequence[GraphLayer], config: TunedSettings | None = None, num_types: int = 1
    ) -> None:
        assert config is not None
        super().__init__(inputs, layers, config, num_types)
        self._config = config
        first, last = int(config.input_linear), len(layers) - (config.head == "linear")
        graph_layers = range(first, last)
        self._residual_layers = graph_layers if config.residual == "linear" else range(first, min(last, len(layers) - 1))
        if config.residual == "linear":
            maps: list[nn.Module] = [nn.Linear(layer.in_width, layer.out_width, bias=False) for layer in layers[first:last]]
            self.residuals = nn.ModuleList([nn.Identity()] * first + maps)
        elif config.residual and first:
            self.residuals[0] = nn.Identity()
        if self.norms and config.input_linear and not config.pre_norm:
            self.norms[0] = nn.Identity()
        if self.norms and config.pre_norm and config.jumping != "last":
            self.norms[-1] = nn.Identity()

    def _norm(self, index: int) -> RowNorm | None:
        norm = self.norms[index] if self.norms else None
        return norm if isinstance(norm, RowNorm) else None

    def _graph_layer(self, engine: Engine, index: int, plan: LayerPlan, x: LayerInput) -> Tensor | Grouped:
        """A layer's rows with its residual."""
        layer = self.layers[index]
        assert isinstance(layer, GraphLayer)
        if not (self.residuals and index in self._residual_layers):
            out: Tensor | Grouped = layer(engine, plan, x)
            return out
        residual = self.residuals[index]
        if x.initial is not None:
            own = [plan.self_rows(x.initial)]
        elif isinstance(residual, nn.Linear) and layer.takes_own_map:
            out = layer(engine, plan, x, residual.weight)
            return out
        else:
            x, own = x.fork_own(engine, plan)
        out = layer(engine, plan, x)
        if isinstance(residual, nn.Linear) and layer.gives_fresh_rows:
            return engine.operators.linear(own, residual.weight, None, onto=in_one(engine, out))
        return self._with_residual(engine, index, own, out)

    def _hidden_layer(self, engine: Engine, index: int, plan: LayerPlan, x: LayerInput) -> LayerInput:
        out, ids = self._graph_layer(engine, index, plan, x), plan.self_rows(plan.node_ids)
        draw = engine.draw(Purpose.DROPOUT, index, self.dropout if self.training else 0.0)
        maps_only = index == 0 and self._config.input_linear
        norm = None if self._config.pre_norm else self._norm(index)
        if maps_only:
            h = engine.operators.dropout(in_one(engine, out), ids, draw)
        else:
            h = engine.operators.norm_act_drop(out, norm, self.activation, ids, draw, plan.out_bounds, plan.counted)
        jumped, initial = x.jumped, None
        if self._config.jumping != "last" and not maps_only:
            h, jumped = self._jump(engine, plan, h, x.jumped)
        before = self._norm(index) if self._config.pre_norm else None
        if before is not None:
            h, initial = engine.operators.fork(h)
            h = engine.operators.norm_act_drop(h, before, "none", ids, None, plan.out_bounds, plan.counted)
        given = not self.residuals and initial is None and jumped is None
        return LayerInput(h, initial=initial, jumped=jumped, given=given)

    def _jump(self, engine: Engine, plan: LayerPlan, h: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """``h`` for the next layer, and all layers' rows so far, joined."""
        h, own = engine.operators.fork(h)
        if before is None:
            return h, own
        before = plan.self_rows(before)
        if self._config.jumping == "sum":
            return h, engine.operators.add(before, own)
        if self._config.jumping == "cat":
            return h, torch.cat([before, own], 1)
        larger: Tensor = _Larger.apply(before, own)
        return h, larger

    def _last_input(self, x: LayerInput) -> LayerInput:
        return x if x.jumped is None else LayerInput(x.jumped)

    def _last_layer(self, engine: Engine, index: int, plan: LayerPlan, x: LayerInput) -> Tensor:
        return in_one(engine, self._graph_layer(engine, index, plan, x))


class _Larger(torch.autograd.Function):
    """The larger of two tables' entries; the first where they are equal. Saves a byte for each."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, other: Tensor) -> Tensor:
        takes = other > first
        ctx.save_for_backward(takes)
        return torch.where(takes, other, first)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (takes,) = ctx.saved_tensors
        return grad * ~takes, grad * takes


def build_tuned(
    config: TunedSettings,
    inputs: Inputs,
    shape: GraphShape,
    make_layer: Callable[[LayerSpec], GraphLayer],
    hidden_width: int | None = None,
) -> Stack:
    """Arguments as of ``build_stack``."""
    if config.blocks == "reversible":
        from sargnn.models.reversible import build_reversible

        return build_reversible(config, inputs, shape, make_layer, hidden_width or config.hidden)
    if config.is_plain:
        return build_stack(config, inputs, shape, make_layer, hidden_width)
    depth = config.num_layers + config.input_linear + (config.head == "linear")

    def layer(spec: LayerSpec) -> GraphLayer:
        if config.pre_norm and not spec.bias:  # no norm comes behind it
            spec = replace(spec, bias=True)
        if spec.index == 0 and config.input_linear:
            return MlpLayer(replace(spec, bias=True))
        if spec.last and config.head == "linear":
            joined = config.num_layers if config.jumping == "cat" else 1
            return MlpLayer(replace(spec, in_width=joined * spec.in_width))
        return make_layer(spec)

    return build_stack(config, inputs, shape, layer, hidden_width, depth, TunedStack)
