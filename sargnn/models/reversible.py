"""Reversible stacks of graph layers (RevGNN, Li et al., "Training graph neural networks with 1000 layers", 2021).

    h_0 = W_in x + b_in
    [a, b] = h_(l-1),  a' = a + conv(drop(act(norm(b)))),  b' = b + conv(drop(act(norm(a')))),  h_l = [a', b']     l = 1 .. L
    logits = W_out drop(act(norm(h_L))) + b_out

Each block has two graph layers of half the width, each with parameters and a norm of its own. No block's input is kept
(Gomez et al., 2017; of graphs: Li et al., 2021). Of rows x = [a, b] a block with the functions f and g gives

    forward    a' = a + f(b)      b' = b + g(a')
    inverse    b = b' - g(a')     a = a' - f(b)

and backward goes from the last block's output to each input, and computes f and g once more:

    backward   da' = da'_given + J_g(a')^T db'      db = db' + J_f(b)^T da'      da = da'

In exact numbers the inverse is the input. In floating-point numbers b' - g(a') differs from b by the rounding of both sums,
about an ulp of b' a block, and gradients by as much: 1e-16 relative in fp64, 1e-7 in fp32 for each block that was gone back.
Masks are drawn again by original id and epoch. Batch norms find the statistics of the first pass on a tape, so that no worker
is asked again for them; remote rows are fetched again.

Letters: N input rows, M output rows, L blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from sargnn.config.models import TunedSettings
from sargnn.engine.aggregate import Engine
from sargnn.engine.rebuild import ONE_PASS
from sargnn.engine.row_norm import RowNorm, Tape
from sargnn.engine.segments import on_tape
from sargnn.errors import ConfigError
from sargnn.models.base import LayerInput
from sargnn.models.inputs import GraphShape, Inputs
from sargnn.models.stack import NORMS, GraphLayer, LayerSpec, MlpLayer, Stack
from sargnn.plan.layer_plan import LayerPlan
from sargnn.rng import Purpose
from sargnn.tracking.memory import trim


class Half(NamedTuple):
    """One of a block's two functions: rows [N, F] to rows [N, F], with the parameters that it reads and its norms."""

    run: Callable[[Tensor], Tensor]
    parameters: list[nn.Parameter]
    norms: list[RowNorm]

    @staticmethod
    def of(run: Callable[[Tensor], Tensor], modules: Sequence[nn.Module]) -> Half:
        parameters = [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
        return Half(run, parameters, [child for module in modules for child in module.modules() if isinstance(child, RowNorm)])


def reversible(blocks: Sequence[tuple[Half, Half]], rows: Tensor) -> Tensor:
    """The blocks one after the other on rows [N, 2 F]; where gradients are wanted, only the last one's output is kept."""
    parameters = [parameter for block in blocks for half in block for parameter in half.parameters]
    out: Tensor = _Blocks.apply(blocks, rows, *parameters)
    return out


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blocks: Sequence[tuple[Half, Half]], rows: Tensor, *parameters: Tensor) -> Tensor:
        a, b = (half.contiguous() for half in rows.detach().chunk(2, 1))
        ctx.blocks, ctx.tapes = blocks, []
        for f, g in blocks:
            tapes = Tape(), Tape()
            with on_tape(f.norms, tapes[0]):
                a = a + f.run(b)
            with on_tape(g.norms, tapes[1]):
                b = b + g.run(a)
            ctx.tapes.append(tapes)
        ctx.save_for_backward(a, b)
        return torch.cat([a, b], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.blocks is None:
            raise RuntimeError(ONE_PASS)
        blocks, ctx.blocks = ctx.blocks, None
        a, b = ctx.saved_tensors
        d_a, d_b = (half.contiguous() for half in grad.chunk(2, 1))
        of_parameters: list[tuple[Tensor | None, ...]] = []
        for (f, g), (of_f, of_g) in zip(reversed(blocks), reversed(ctx.tapes), strict=True):
            trim()
            out, through, of_half = _again(g, of_g, a, d_b)
            b, d_a = b - out, d_a + through
            of_parameters.append(of_half)
            del out, through
            out, through, of_half = _again(f, of_f, b, d_a)
            a, d_b = a - out, d_b + through
            of_parameters.append(of_half)
            del out, through
        return None, torch.cat([d_a, d_b], 1), *(grad for of_half in reversed(of_parameters) for grad in of_half)


def _again(half: Half, tape: Tape, rows: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
    """What a half gives, and the gradients of its rows and parameters from that of its output."""
    tape.rewind()
    leaf = rows.detach().requires_grad_()
    with torch.enable_grad(), on_tape(half.norms, tape):
        out = half.run(leaf)
    entry, value = get_gradient_edge(out), out.detach()
    del out
    through, *of_half = torch.autograd.grad([entry], [leaf, *half.parameters], [grad], allow_unused=True)
    return value, torch.zeros_like(rows) if through is None else through, tuple(of_half)


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
