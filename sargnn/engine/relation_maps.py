"""The maps of R-GCN's sums per relation, ``aggregate_first``.

    y_i = own_i + sum over relations r of c_r,i s_r,i W_r          c_r,i = 1 / |N_r(i)|
    d own = g        d W_r = s_r^T (c_r g)        d s_r = (c_r g) W_r^T

Of a graph with edge weights |N_r(i)| is their sum (``LayerPlan.relation_scale``).

Letters: M output rows, M_r output rows of relation r's destination type, R relations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.bf16 import wide
from sargnn.engine.workspace import Workspace
from sargnn.plan.layer_plan import LayerPlan

_CHUNK_ROWS = 8192


class _AddMapped(torch.autograd.Function):
    """Saves W and the sums; in backward the sums' gradients take the sums' memory."""

    @staticmethod
    def forward(ctx: Any, work: Workspace, plan: LayerPlan, own: Tensor, weights: Tensor, *sums: Tensor) -> Tensor:
        ctx.mark_dirty(own)
        ctx.plan, ctx.work = plan, work
        ctx.save_for_backward(weights, *sums)
        held = wide(own.dtype)
        with work.linear():
            for r, table in enumerate(sums):
                out, scale = own[plan.out_of(r)], plan.relation_scale(r, held)
                for rows in _chunks(len(table)):
                    work.rows.add_product(out[rows], (table[rows] * scale[rows, None]).to(own.dtype), weights[r])
        return own

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan: LayerPlan = ctx.plan
        weights, *sums = ctx.saved_tensors
        d_weights = torch.zeros_like(weights)
        d_sums: list[Tensor | None] = []
        held = wide(grad.dtype)
        with ctx.work.linear():
            for r, table in enumerate(sums):
                wanted = ctx.needs_input_grad[4 + r]
                d_out, scale = grad[plan.out_of(r)], plan.relation_scale(r, held)
                for rows in _chunks(len(table)):
                    scaled = (d_out[rows] * scale[rows, None]).to(grad.dtype)
                    ctx.work.rows.add_transposed_product(d_weights[r], table[rows], scaled)
                    if wanted:
                        ctx.work.rows.product(scaled, weights[r].T, table[rows])
                d_sums.append(table if wanted else None)
        return None, None, grad, d_weights, *d_sums


def add_mapped(work: Workspace, plan: LayerPlan, own: Tensor, weights: Tensor, sums: tuple[Tensor, ...]) -> Tensor:
    """y [M, out].

    Args:
        own: [M, out], of no further use to the caller: it becomes y. weights: [R, in, out].
        sums: per relation [M_r, in]; where their gradients are wanted they are of no further use to the caller either.
    """
    out: Tensor = _AddMapped.apply(work, plan, own, weights, *sums)
    return out


def _chunks(rows: int) -> Iterator[slice]:
    for first in range(0, rows, _CHUNK_ROWS):
        yield slice(first, min(rows, first + _CHUNK_ROWS))
