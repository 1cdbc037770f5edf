"""A stack of graph layers with normalisation, activation, dropout and residuals between them.

    h_0 = dropout(x)
    h_l = dropout(activation(norm(layer_l(h_(l-1)) + residual_l(h_(l-1)))))      l = 1 .. L - 1
    logits = layer_L(h_(L-1))

Letters: N input rows, M output rows, F features, C classes, L layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional
from torch import Tensor, nn

from sargnn.engine.aggregate import Engine
from sargnn.engine.dropout import dropout
from sargnn.engine.fork import added, fork
from sargnn.engine.linear import linear_columns
from sargnn.engine.nodewise import norm_act_drop
from sargnn.engine.norm import DistributedBatchNorm
from sargnn.engine.rebuild import self_rows
from sargnn.engine.reducers.base import Reducer
from sargnn.models.inputs import GraphShape, Inputs
from sargnn.models.settings import StackSettings
from sargnn.rng import Purpose
from sargnn.shards.plan import LayerPlan
from sargnn.spans import NODEWISE, span

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.nn.functional.relu,
    "elu": torch.nn.functional.elu,
}


@dataclass(frozen=True)
class LayerSpec:
    """One layer's place in a stack, for ``build_stack``.

    Attributes:
        index: from 0. last: whether its output are the logits.
        in_width, out_width: features of the input and the output rows.
        bias: whether it has one; not before a batch norm, where its true gradient is zero.
        constant_input: see ``GraphLayer``.
    """

    index: int
    last: bool
    in_width: int
    out_width: int
    bias: bool
    constant_input: bool


def blocks_of(h: Tensor, columns: Tensor | None) -> list[Tensor]:
    """Blocks of a layer's input columns."""
    return [h] if columns is None else [h, columns]


class GraphLayer(nn.Module, ABC):
    """One layer: rows [N, in_width] to rows [M, out_width].

    Args:
        constant_input: the input is the same in every epoch and needs no error: the first layer without input dropout. Its last
            columns may change (labels); they come apart from the others then.
    """

    uses_edges: bool = True
    """Whether it aggregates at all."""

    def __init__(self, in_width: int, out_width: int, *, constant_input: bool) -> None:
        super().__init__()
        self.in_width, self.out_width = in_width, out_width
        self.constant_input = constant_input

    @property
    def transforms_first(self) -> bool:
        """Whether the linear map comes before the aggregation: the narrower side travels, if the reducer is linear.

        At equal widths the map comes first, because a linear aggregation saves nothing for backward. Over a constant
        input the aggregation comes first: its error is not wanted, so nothing travels back.
        """
        return self.out_width <= self.in_width and not self.constant_input and self.reducer.linear

    @property
    def sent_widths(self) -> tuple[int, ...]:
        """Widths of the tensors that travel."""
        return (self.out_width if self.transforms_first else self.in_width,)

    @property
    def sent_needs_grad(self) -> bool:
        """Whether errors of the rows that travel are wanted."""
        return not self.constant_input

    @property
    @abstractmethod
    def reducer(self) -> Reducer:
        """How messages are folded."""

    @abstractmethod
    def forward(self, engine: Engine, plan: LayerPlan, h: Tensor, columns: Tensor | None = None) -> Tensor:
        """Rows [N, in_width] to rows [M, out_width].

        Args:
            columns: [N, k], the last k columns where they are not in ``h``, without gradient; only for a layer with a constant
                input that was built with ``takes_columns``.
        """

    def gathered(
        self, engine: Engine, plan: LayerPlan, h: Tensor, columns: Tensor | None, aggregate: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """Blocks of columns [M, ...] of the aggregated input; those of a constant input are aggregated once, if possible."""
        first = engine.constant(self, plan, lambda: aggregate(h)) if self.constant_input else aggregate(h)
        return blocks_of(first, None if columns is None else aggregate(columns))


class Stack(nn.Module):
    """The whole model; made by ``build_stack``.

    Args:
        inputs: what the first layer reads.
        layers: L graph layers.
        norm: ``batch`` or ``none``.
        activation: a key of ``ACTIVATIONS``.
        residual: add the layer's input (through a linear map without bias where widths differ) before the norm.
        dropout, input_dropout: probabilities.
        num_types: T, node types, each with a norm of its own.
        first_takes_columns: label columns are given to the first layer apart from its other input.
        reads_labels: it needs them, whatever is configured.
    """

    def __init__(
        self,
        inputs: Inputs,
        layers: Sequence[GraphLayer],
        *,
        norm: str,
        activation: str,
        residual: bool,
        dropout: float,
        input_dropout: float,
        num_types: int = 1,
        first_takes_columns: bool = False,
        reads_labels: bool = False,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.first_takes_columns = first_takes_columns
        self.reads_labels = reads_labels
        self.layers = nn.ModuleList(layers)
        hidden = layers[:-1]
        self.norms = nn.ModuleList(
            DistributedBatchNorm(layer.out_width, num_types=num_types) for layer in hidden if norm == "batch"
        )
        self.residuals = nn.ModuleList(_residual(layer.in_width, layer.out_width) for layer in hidden if residual)
        self.activation = activation
        self.dropout, self.input_dropout = dropout, input_dropout

    def forward(
        self, engine: Engine, plans: Sequence[LayerPlan], x: Tensor, columns: Tensor | None = None, *, hidden: bool = False
    ) -> Tensor:
        """Logits [M, C] of the last layer's output rows.

        Args:
            plans: one per layer.
            x: [N, D], the rows of ``inputs`` that the first layer reads.
            columns: [N, label_columns], put beside them.
            hidden: stop before the last layer and give its input, [M, hidden].
        """
        p_in, p = (self.input_dropout, self.dropout) if self.training else (0.0, 0.0)
        h = x
        if columns is not None and not (engine.mode.lean and self.first_takes_columns):
            h, columns = torch.cat([h, columns], 1), None
        h = engine.dropout(h, plans[0].node_ids, purpose=Purpose.INPUT_DROPOUT, layer=0, p=p_in)
        last = len(self.layers) - 1
        for index, (layer, plan) in enumerate(zip(self.layers, plans, strict=True)):
            if index == last and hidden:
                return plan.self_rows(h)
            h, again = fork(h) if self.residuals and index < last else (h, h)
            out = layer(engine, plan, h, columns if index == 0 else None)
            if index == last:
                return out
            if self.residuals:
                residual = self.residuals[index]
                own = [self_rows(plan, block) for block in blocks_of(again, None if index else columns)]
                out = added(out, linear_columns(own, residual) if isinstance(residual, nn.Linear) else _joined(own))
            h = self._between(engine, index, out, plan, p)
        raise AssertionError("a stack has at least one layer")

    def _between(self, engine: Engine, index: int, x: Tensor, plan: LayerPlan, p: float) -> Tensor:
        """Norm, activation and dropout after layer ``index``: fused where the engine allows it."""
        ids = plan.self_rows(plan.node_ids)
        norm = self.norms[index] if self.norms else None
        draw = engine.draw(Purpose.DROPOUT, index, p)
        if engine.lean and (self.training or not torch.is_grad_enabled()):
            if norm is None:
                return norm_act_drop(x, None, None, None, self.activation, ids, draw, engine.group)
            assert isinstance(norm, DistributedBatchNorm)
            return norm.fused(x, engine.group, self.activation, ids, draw, plan.out_bounds)
        with span(NODEWISE):
            h = ACTIVATIONS[self.activation](x if norm is None else norm(x, engine.group, plan.out_bounds))
        return h if draw is None else dropout(h, ids, draw)


def _joined(blocks: list[Tensor]) -> Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1)


def _residual(in_width: int, out_width: int) -> nn.Module:
    return nn.Identity() if in_width == out_width else nn.Linear(in_width, out_width, bias=False)


def build_stack(
    config: StackSettings,
    inputs: Inputs,
    shape: GraphShape,
    make_layer: Callable[[LayerSpec], GraphLayer],
    hidden_width: int | None = None,
    *,
    takes_columns: bool = False,
) -> Stack:
    """A stack of ``num_layers`` layers, the last one as wide as there are classes.

    Args:
        hidden_width: of the rows between layers; ``config.hidden`` if not given.
        takes_columns: a first layer with a constant input takes label columns apart from it.
    """
    first_width = inputs.width + shape.label_columns
    constant = config.input_dropout == 0 and inputs.constant and (takes_columns or not shape.label_columns)
    widths = [first_width, *[hidden_width or config.hidden] * (config.num_layers - 1), shape.num_classes]
    last = config.num_layers - 1
    layers = [
        make_layer(
            LayerSpec(
                index=index,
                last=index == last,
                in_width=widths[index],
                out_width=widths[index + 1],
                bias=index == last or config.norm != "batch",
                constant_input=index == 0 and constant,
            )
        )
        for index in range(config.num_layers)
    ]
    return Stack(
        inputs,
        layers,
        norm=config.norm,
        activation=config.activation,
        residual=config.residual,
        dropout=config.dropout,
        input_dropout=config.input_dropout,
        num_types=len(shape.schema.node_types),
        first_takes_columns=takes_columns and constant,
    )
