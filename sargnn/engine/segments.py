"""Runs of layers of which only the input survives until backward; what lies between is computed again (``engine.keep_layers``).

    forward   y = f(x), without autograd: of all that the layers compute only x, y and the norms' statistics are kept
    backward  y = f(x) once more, now under autograd, with the same masks and statistics; then its gradients

Masks are drawn again by original id and epoch. Batch norms find the statistics of the first pass on a tape: no worker is asked
again, and running statistics have moved once. Remote rows are fetched again. The last run needs no second pass.

While run k (from 0) goes backward, the inputs of k runs and what its own n_k layers keep are held. With s runs of L / s layers
that is at most s + L / s tables, 2 sqrt(L) for s = sqrt(L) (Chen et al., "Training deep nets with sublinear memory cost").
With n_k = B - k it is B for every run, and s runs have L = B + (B - 1) + ... layers: B = sqrt(2 L). That is what ``sqrt`` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from sargnn.engine.rebuild import ONE_PASS
from sargnn.engine.row_norm import RowNorm, Tape
from sargnn.tracking.memory import trim

KeepLayers = Literal["all", "sqrt"] | int
Run = Callable[..., tuple[Tensor, ...]]


def layer_runs(depth: int, keep: KeepLayers) -> list[range]:
    """The runs of ``depth`` layers, each of which keeps its first layer's input."""
    if keep == "all":
        return [range(depth)]
    if keep != "sqrt":
        number = min(depth, keep)
        return [range(depth * k // number, depth * (k + 1) // number) for k in range(number)]
    length, first = math.ceil((math.sqrt(8 * depth + 1) - 1) / 2), 0
    runs = []
    while first < depth:
        runs.append(range(first, min(first + length, depth)))
        first, length = runs[-1].stop, length - 1
    return runs


def computed_again(run: Run, modules: Iterable[nn.Module], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """``run(*tensors)``, of which nothing but ``tensors`` and the statistics of batch norms is kept for backward.

    Args:
        run: called again in backward.
        modules: whose parameters and norms it uses.
        tensors: the rows that it reads; others that it uses need no gradient.
    """
    modules = list(modules)
    parameters = [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
    norms = [child for module in modules for child in module.modules() if isinstance(child, RowNorm)]
    out: tuple[Tensor, ...] = _Again.apply(run, norms, len(tensors), *tensors, *parameters)
    return out


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, norms: list[RowNorm], num_tensors: int, *given: Tensor) -> tuple[Tensor, ...]:
        tensors = given[:num_tensors]
        ctx.run, ctx.norms, ctx.parameters, ctx.tape = run, norms, given[num_tensors:], Tape()
        ctx.save_for_backward(*tensors)
        with on_tape(norms, ctx.tape):
            return run(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.run is None:
            raise RuntimeError(ONE_PASS)
        run, ctx.run = ctx.run, None
        tensors = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]
        ctx.tape.rewind()
        trim()
        with torch.enable_grad(), on_tape(ctx.norms, ctx.tape):
            out = run(*tensors)
        wanted = [*(tensor for tensor in tensors if tensor.requires_grad), *ctx.parameters]
        # Where gradients enter the graph, without the tables themselves.
        entries = [get_gradient_edge(output) for output in out if output.requires_grad]
        grads = tuple(grad for output, grad in zip(out, grads, strict=True) if output.requires_grad)
        del out
        gradients = iter(torch.autograd.grad(entries, wanted, grads, allow_unused=True))
        of_tensors = [next(gradients) if tensor.requires_grad else None for tensor in tensors]
        return (None, None, None, *of_tensors, *gradients)


@contextmanager
def on_tape(norms: Sequence[RowNorm], tape: Tape) -> Iterator[None]:
    """Inside, these norms keep on the tape what they find, or find it there."""
    for norm in norms:
        norm.tape = tape
    try:
        yield
    finally:
        for norm in norms:
            norm.tape = None
