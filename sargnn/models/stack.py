"""A stack of graph layers with normalisation, activation, dropout and residuals between them.

    h_0 = dropout(x)
    h_l = dropout(activation(norm(layer_l(h_(l-1)) + residual_l(h_(l-1)))))      l = 1 .. L - 1
    logits = layer_L(h_(L-1))

Layers that say so read also what the first layer gave, activated and not dropped (``LayerInput.initial``).

Letters: N input rows, M output rows, F features, C classes, L layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sargnn.config.models import MlpSettings, RowsSettings, StackSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.grouped import Grouped
from sargnn.engine.norm import DistributedBatchNorm
from sargnn.engine.reducers.base import Reducer
from sargnn.engine.reducers.max import Max
from sargnn.engine.reducers.sum import Sum
from sargnn.engine.row_norm import LayerNorm, RowNorm
from sargnn.engine.segments import computed_again, layer_runs
from sargnn.models.base import LayerInput, Model
from sargnn.models.inputs import GraphShape, Inputs, TypedRows, input_rows
from sargnn.plan.cover import Costs
from sargnn.plan.layer_plan import LayerPlan, RowCounts
from sargnn.rng import Draw, Purpose

NORMS: dict[str, type[RowNorm]] = {"batch": DistributedBatchNorm, "layer": LayerNorm}
"""What stands between two layers, beside no norm at all."""
_STREAMS = ("initial", "jumped")
"""What a layer's input may have beside rows and labels."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer's place in a stack.

    Attributes:
        last: whether its outputs are the logits.
        bias: not before a batch norm, where its true gradient is zero.
        constant_columns: how many of the first input columns are the same in every epoch and need no gradient.
    """

    index: int
    last: bool
    in_width: int
    out_width: int
    bias: bool
    constant_columns: int = 0


class GraphLayer(nn.Module, ABC):
    """One layer: rows [N, in_width] to rows [M, out_width].

    ``constant_input``: the input's rows are the same in every epoch and need no gradient; labels beside them may change.
    """

    uses_edges: bool = True
    """Whether it aggregates at all."""
    reads_blocks: bool = False
    """Whether it maps constant columns and labels without joining them."""
    reads_initial: bool = False
    """Whether it reads the first layer's rows beside its input: ``LayerInput.initial``. Not the first layer itself."""
    reads_out_degrees: bool = True
    """Whether it reads how many edges start from a row, which costs an exchange for each sample."""
    gives_fresh_rows: bool = False
    """Whether nobody else holds the rows that it gives, so that others may be added to them in place."""
    takes_own_map: bool = False
    """Whether its ``forward`` takes a further matrix [out_width, in_width] that maps a row itself."""
    decay_group: str | None = None
    """Its group in ``Model.decay_groups``."""
    may_stay_grouped: bool = False
    """Whether the rows that it gives may stay in groups of columns: what stands behind it reads them so."""
    before_batch_norm: bool = False
    """Whether that is a batch norm."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        self.in_width, self.out_width = spec.in_width, spec.out_width
        self.constant_input = bool(spec.constant_columns) and (self.reads_blocks or spec.constant_columns == spec.in_width)

    def transforms_first(self, counts: RowCounts | None) -> bool:
        """Whether a linear map comes before the aggregation, if the reducer is linear: where fewer numbers are made and sent.

            mapped rows + halo rows, of the mapped width  <=  aggregated rows + halo rows, of the input's width

        At equal widths of all rows the map comes first, because a linear aggregation saves nothing for backward. Over a
        constant input the aggregation comes first: its gradient is not wanted, so nothing travels back.
        """
        if self.constant_input or not self.reducer.linear:
            return False
        if counts is None:
            return self.mapped_width <= self.in_width
        mapped, aggregated = counts.rows + counts.halo, counts.out + counts.halo
        return mapped * self.mapped_width <= aggregated * self.in_width

    @property
    def mapped_width(self) -> int:
        return self.out_width

    def exchanged_widths(self, counts: RowCounts | None) -> tuple[int, ...]:
        """Widths of the tensors that travel on a plan with these counts."""
        return (self.mapped_width if self.transforms_first(counts) else self.in_width,)

    @property
    def exchanged_needs_grad(self) -> bool:
        """Whether gradients of the rows that travel are wanted."""
        return not self.constant_input

    @property
    @abstractmethod
    def reducer(self) -> Reducer:
        """How messages are folded."""

    def reducer_on(self, plan: LayerPlan) -> Reducer:
        """The reducer on a plan that the layer was prepared for."""
        return self.reducer

    def why_rows(self, engine: Engine) -> str | None:
        """Why only rows travel for it, not partial results, too; None: both do, or nothing."""
        return engine.why_rows(self.reducer) if self.uses_edges else None

    def partial_costs(self, engine: Engine, counts: RowCounts | None) -> Costs | None:
        """What its rows and its partial results cost in the engine's mode; None where it has no partial results."""
        if not self.uses_edges or self.why_rows(engine) is not None:
            return None
        return engine.mode.costs(
            self.reducer,
            self.exchanged_widths(counts),
            engine.dtype,
            engine.exchange.wire,
            exchanged_needs_grad=self.exchanged_needs_grad,
        )

    def prepare(self, engine: Engine, plan: LayerPlan) -> None:  # noqa: B027 - most layers decide nothing
        """Decide what depends on the plan, before it is first used; all workers must call it together."""

    @abstractmethod
    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor | Grouped:
        """``x``: labels are joined to the rows, unless the layer ``reads_blocks`` and its rows are constant."""

    def aggregated(
        self,
        engine: Engine,
        plan: LayerPlan,
        reducer: Reducer,
        exchanged: tuple[Tensor, ...],
        dest_local: tuple[Tensor, ...],
        params: tuple[Tensor, ...] = (),
    ) -> Tensor | Grouped:
        """``engine.aggregate`` of rows that nobody else reads, as the last thing that the layer does."""
        moments = self.may_stay_grouped and self.before_batch_norm and self.training
        out, *_ = engine.aggregate_in_groups(plan, reducer, exchanged, dest_local, params, given=True, takes_moments=moments)
        return out if self.may_stay_grouped else in_one(engine, out)

    def gathered(self, engine: Engine, plan: LayerPlan, x: LayerInput, aggregate: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Blocks of columns [M, ...] of the aggregated input; constant rows are aggregated once, if that is allowed."""
        first = engine.constant(self, plan, lambda: aggregate(x.rows)) if self.constant_input else aggregate(x.rows)
        return [first] if x.labels is None else [first, aggregate(x.labels)]


def in_one(engine: Engine, rows: Tensor | Grouped) -> Tensor:
    """Rows in one table."""
    return rows.joined(engine.pool) if isinstance(rows, Grouped) else rows


class LayeredModel(Model):
    @property
    @abstractmethod
    def graph_layers(self) -> list[GraphLayer]:
        """The layers, in order."""

    @property
    def uses_edges(self) -> list[bool]:
        return [layer.uses_edges for layer in self.graph_layers]

    @property
    def edges_in_backward(self) -> list[bool]:
        return [layer.uses_edges and layer.exchanged_needs_grad for layer in self.graph_layers]

    def kernels(self, engine: Engine) -> set[str]:
        return {engine.kernel(layer.reducer.operation).name for layer in self.graph_layers if layer.uses_edges}

    def partial_costs(self, engine: Engine, counts: Sequence[RowCounts | None]) -> list[Costs | None]:
        return [layer.partial_costs(engine, count) for layer, count in zip(self.graph_layers, counts, strict=True)]

    def why_rows(self, engine: Engine) -> list[str | None]:
        return [layer.why_rows(engine) for layer in self.graph_layers]


class Stack(LayeredModel):
    """Made by ``build_stack``. ``config`` is None where there is one layer; each of T node types has norms of its own."""

    reads_groups = True
    """Whether what it does behind a hidden layer takes rows in groups of columns."""

    def __init__(
        self, inputs: Inputs, layers: Sequence[GraphLayer], config: StackSettings | None = None, num_types: int = 1
    ) -> None:
        super().__init__()
        self.inputs, self.layers = inputs, nn.ModuleList(layers)
        self.norms, self.residuals = nn.ModuleList(), nn.ModuleList()
        self.activation, self.dropout, self.input_dropout = "none", 0.0, 0.0
        if config is not None:
            self.activation, self.dropout, self.input_dropout = config.activation, config.dropout, config.input_dropout
            for layer in layers[:-1]:
                if config.norm in NORMS:
                    self.norms.append(NORMS[config.norm](layer.out_width, num_types=num_types))
                if config.residual:
                    a, b = layer.in_width, layer.out_width
                    self.residuals.append(nn.Identity() if a == b else nn.Linear(a, b, bias=False))
                layer.may_stay_grouped, layer.before_batch_norm = self.reads_groups, config.norm == "batch"
        self.reads_out_degrees = any(layer.reads_out_degrees for layer in layers)
        self._keeps_initial = any(layer.reads_initial for layer in layers)

    @property
    def graph_layers(self) -> list[GraphLayer]:
        return [layer for layer in self.layers if isinstance(layer, GraphLayer)]

    @property
    def num_kept(self) -> int:
        return len(self.layers)

    def decay_groups(self) -> dict[str, list[nn.Parameter]]:
        """``first``: the first layer; ``norms``; and the groups that layers name."""
        groups = {"first": list(self.layers[0].parameters())}
        if self.norms:
            groups["norms"] = list(self.norms.parameters())
        for layer in self.graph_layers[1:]:
            if layer.decay_group is not None:
                groups.setdefault(layer.decay_group, []).extend(layer.parameters())
        return {name: own for name, own in groups.items() if own}

    def prepare(self, engine: Engine, plans: Sequence[LayerPlan]) -> None:
        for layer, plan in zip(self.graph_layers, plans, strict=True):
            layer.prepare(engine, plan)

    def shares_constants(self, engine: Engine) -> bool:
        first = self.graph_layers[0]
        if not (first.constant_input and first.uses_edges and engine.caches_constants) or first.exchanged_needs_grad:
            return False
        return isinstance(first.reducer, Sum | Max)  # R-GCN has a table for each relation

    def first_constant(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor | None:
        self.graph_layers[0].prepare(engine, plan)
        constant: Tensor | None = engine.find_constant(lambda: self.graph_layers[0](engine, plan, x))
        return constant

    def forward(self, engine: Engine, plans: Sequence[LayerPlan], x: LayerInput, *, hidden: bool = False) -> Tensor:
        p_in = self.input_dropout if self.training else 0.0
        x = x.prepared(engine, plans[0], constant=self.graph_layers[0].constant_input, p=p_in)
        last = len(self.layers) - 1
        runs = layer_runs(len(self.layers), engine.keep_layers) if torch.is_grad_enabled() else [range(len(self.layers))]
        for layers in runs:
            if layers is not runs[-1]:
                x = self._computed_again(engine, layers, plans, x)
                continue
            for index in layers:
                if index == last and hidden:
                    return plans[index].self_rows(self._last_input(x).joined())
                if index == last:
                    return self._last_layer(engine, index, plans[index], self._last_input(x))
                x = self._hidden_layer(engine, index, plans[index], x)
        raise AssertionError("a stack has at least one layer")

    def _computed_again(self, engine: Engine, layers: range, plans: Sequence[LayerPlan], x: LayerInput) -> LayerInput:
        """What a run of hidden layers gives; nothing between is kept."""
        streams: dict[str, Any] = {name: rows for name in _STREAMS if (rows := getattr(x, name)) is not None}
        given_back: list[str] = []

        def run(*given: Tensor) -> tuple[Tensor, ...]:
            rows, *others = given
            before: dict[str, Any] = dict(zip(streams, others, strict=True))
            h = LayerInput(rows, x.labels, **before)
            for index in layers:
                h = self._hidden_layer(engine, index, plans[index], h)
            given_back[:] = [name for name in _STREAMS if getattr(h, name) is not None]
            return (h.rows, *(getattr(h, name) for name in given_back))

        modules = [
            module for group in (self.layers, self.norms, self.residuals) for module in group[layers.start : layers.stop]
        ]
        rows, *others = computed_again(run, modules, [x.rows, *streams.values()])
        after: dict[str, Any] = dict(zip(given_back, others, strict=True))
        return LayerInput(rows, **after)

    def _last_input(self, x: LayerInput) -> LayerInput:
        return x

    def _last_layer(self, engine: Engine, index: int, plan: LayerPlan, x: LayerInput) -> Tensor:
        out: Tensor = self.layers[index](engine, plan, x)
        return out

    def _hidden_layer(self, engine: Engine, index: int, plan: LayerPlan, x: LayerInput) -> LayerInput:
        """Any layer but the last, with what stands behind it."""
        x, own = x.fork_own(engine, plan) if self.residuals else (x, [])
        out: Tensor | Grouped = self.layers[index](engine, plan, x)
        x.let_go()
        if self.residuals:
            out = self._with_residual(engine, index, own, out)
        draw = engine.draw(Purpose.DROPOUT, index, self.dropout if self.training else 0.0)
        if index == 0 and self._keeps_initial:
            initial = self._activated(engine, index, plan, out, None)
            return LayerInput(engine.operators.dropout(initial, plan.self_rows(plan.node_ids), draw), initial=initial)
        h = self._activated(engine, index, plan, out, draw)
        return LayerInput(h, initial=None if x.initial is None else plan.self_rows(x.initial), given=not self.residuals)

    def _with_residual(self, engine: Engine, index: int, own: Sequence[Tensor], out: Tensor | Grouped) -> Tensor:
        """``out`` [M, F] and the layer's residual; ``own``: blocks of the rows that the output rows are."""
        residual = self.residuals[index]
        if isinstance(residual, nn.Linear):
            rows = engine.operators.linear(own, residual.weight, residual.bias)
        else:
            rows = own[0] if len(own) == 1 else torch.cat(tuple(own), 1)
        return engine.operators.add(in_one(engine, out), rows)

    def _activated(self, engine: Engine, index: int, plan: LayerPlan, x: Tensor | Grouped, draw: Draw | None) -> Tensor:
        norm, ids = self.norms[index] if self.norms else None, plan.self_rows(plan.node_ids)
        assert norm is None or isinstance(norm, RowNorm)
        return engine.operators.norm_act_drop(x, norm, self.activation, ids, draw, plan.out_bounds, plan.counted)


def build_stack(
    config: StackSettings,
    inputs: Inputs,
    shape: GraphShape,
    make_layer: Callable[[LayerSpec], GraphLayer],
    hidden_width: int | None = None,
    depth: int | None = None,
    kind: type[Stack] = Stack,
) -> Stack:
    """A stack of layers, the last one as wide as there are classes. Width of the rows between layers and depth are ``config``'s
    where they are None.
    """
    depth = depth or config.num_layers
    first_width = inputs.width + shape.label_columns
    constant = inputs.width if config.input_dropout == 0 and inputs.constant else 0
    widths = [first_width, *[hidden_width or config.hidden] * (depth - 1), shape.num_classes]
    last = depth - 1
    layers = [
        make_layer(
            LayerSpec(
                index=index,
                last=index == last,
                in_width=widths[index],
                out_width=widths[index + 1],
                bias=index == last or config.norm != "batch",
                constant_columns=constant if index == 0 else 0,
            )
        )
        for index in range(depth)
    ]
    return kind(inputs, layers, config, len(shape.schema.node_types))


class Rows(GraphLayer):
    """``h'_i = h_i``: it aggregates nothing."""

    uses_edges = False
    reads_out_degrees = False

    @property
    def reducer(self) -> Reducer:
        raise AssertionError("this layer aggregates nothing")

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        return plan.self_rows(x.joined())


class MlpLayer(Rows):
    """``h'_i = W h_i + b``, of a perceptron, the baseline that reads no edges; initialised as PyTorch's linear layer."""

    reads_blocks = True

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.linear = nn.Linear(self.in_width, self.out_width, bias=spec.bias)

    def forward(self, engine: Engine, plan: LayerPlan, x: LayerInput) -> Tensor:
        return engine.operators.linear(x.self_rows(plan), self.linear.weight, self.linear.bias)


def build_rows(config: RowsSettings, shape: GraphShape) -> Stack:
    """Learned rows of all types, whatever features there are."""
    width, types = shape.num_classes, len(shape.schema.node_types)
    inputs = TypedRows(replace(shape, feature_widths=(0,) * types), width, width)
    return Stack(inputs, [Rows(LayerSpec(0, True, width, width, bias=False))], num_types=types)


def build_mlp(config: MlpSettings, shape: GraphShape) -> Stack:
    return build_stack(config, input_rows(shape, config.name, config.hidden), shape, MlpLayer)
