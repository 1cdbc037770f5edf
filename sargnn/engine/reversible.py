"""Reversible residual blocks, whose memory does not grow with their number (Gomez et al., 2017; of graphs: Li et al., 2021).

Of rows x in two halves of columns, x = [a, b], a block with the functions f and g gives

    forward    a' = a + f(b)      b' = b + g(a')
    inverse    b = b' - g(a')     a = a' - f(b)

so that no block's input is kept: backward goes from the last block's output to each input, and computes f and g once more:

    backward   da' = da'_given + J_g(a')^T db'      db = db' + J_f(b)^T da'      da = da'

In exact numbers the inverse is the input. In floating-point numbers b' - g(a') differs from b by the rounding of both sums,
about an ulp of b' a block, and gradients by as much: 1e-16 relative in fp64, 1e-7 in fp32 for each block that was gone back.
Masks are drawn again by original id and epoch. Batch norms find the statistics of the first pass on a tape, so that no worker
is asked again for them; remote rows are fetched again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from sargnn.engine.rebuild import ONE_PASS
from sargnn.engine.row_norm import RowNorm, Tape
from sargnn.engine.segments import on_tape
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
