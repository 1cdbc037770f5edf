"""Linear maps: recorded in the profile, written into memory from the pool, keeping no input that can be rebuilt.

    y = x W^T + b        dx = g W        dW = g^T x        db = sum of g's rows

and the maps of R-GCN's sums per relation (``aggregate_first``), with c_r,i = 1 / |N_r(i)|, where |N_r(i)| of a graph with edge
weights is their sum (``LayerPlan.relation_scale``):

    y_i = own_i + sum over relations r of c_r,i s_r,i W_r        d own = g        d W_r = s_r^T (c_r g)
    d s_r = (c_r g) W_r^T

The products are those of ``torch.nn.functional.linear``, bit for bit. Of bf16 rows weights are rounded to bf16 for them, and
products are summed in fp32 and rounded once; the gradients of weights and biases are fp32.

Letters: N rows, M output rows, M_r those of relation r's destination type, R relations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.bf16 import wide
from sargnn.engine.rebuild import keep, kept
from sargnn.engine.relation_weights import RelationGradients, RelationWeights
from sargnn.engine.workspace import Workspace, empty_sums
from sargnn.plan.layer_plan import LayerPlan

_CHUNK_ROWS = 8192


def _map(work: Workspace, x: Tensor, weight: Tensor, bias: Tensor | None, *, scores: bool = False) -> Tensor:
    """x W^T + b; ``scores``: in what sums of such rows are held in."""
    size = len(x), len(weight), x
    return work.rows.product(x, weight.T, empty_sums(work.pool, *size) if scores else work.pool.empty(*size), bias)


def _product(work: Workspace, grad: Tensor, weight: Tensor) -> Tensor:
    return work.rows.product(grad, weight, work.pool.empty(len(grad), weight.shape[1], grad))


class _Linear(torch.autograd.Function):
    """Saves W, and x unless it can be rebuilt. With ``onto`` the product is added to that tensor, in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, onto: Tensor | None, work: Workspace) -> Tensor:
        keep(ctx, x, weight)
        ctx.has_bias, ctx.has_onto, ctx.work = bias is not None, onto is not None, work
        with work.linear():
            if onto is not None:
                ctx.mark_dirty(onto)
                work.rows.add_product(onto, x, weight.T)
                return onto
            return _map(work, x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = kept(ctx)
        with ctx.work.linear():
            d_weight = ctx.work.rows.transposed_product(grad, x)
            del x
            d_x = _product(ctx.work, grad, weight) if ctx.needs_input_grad[0] else None
            d_bias = ctx.work.rows.column_sums(grad) if ctx.has_bias else None
        return d_x, d_weight, d_bias, grad if ctx.has_onto else None, None


def linear_map(work: Workspace, x: Tensor, weight: Tensor, bias: Tensor | None, onto: Tensor | None = None) -> Tensor:
    """``x W^T + b``, [N, out].

    Args:
        x: [N, in].
        weight: [out, in].
        bias: [out].
        onto: [N, out], of no further use to the caller, to which the product is added; without bias.
    """
    return _Linear.apply(x, weight, bias, onto, work)


class Map(NamedTuple):
    """A linear map of the first ``rows`` rows: weight [out, in], bias [out] or None.

    ``scores``: its results are numbers to compute with, such as attention scores: fp32 where rows are bf16.
    """

    weight: Tensor
    bias: Tensor | None
    rows: int
    scores: bool = False


class _Linears(torch.autograd.Function):
    """``y_k = x[:n_k] W_k^T + b_k``. The gradients of x are added up in one table."""

    @staticmethod
    def forward(
        ctx: Any, work: Workspace, x: Tensor, kinds: tuple[tuple[int, bool], ...], *maps: Tensor | None
    ) -> tuple[Tensor, ...]:
        weights: Any = maps[::2]
        biases = maps[1::2]
        keep(ctx, x, *weights)
        ctx.counts, ctx.biased, ctx.work = [n for n, _ in kinds], [bias is not None for bias in biases], work
        with work.linear():
            return tuple(
                _map(work, x[:n], w, b, scores=scores) for (n, scores), w, b in zip(kinds, weights, biases, strict=True)
            )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = kept(ctx)
        work: Workspace = ctx.work
        rows, d_maps = len(x), []
        grads = tuple(grad.to(x.dtype) for grad in grads)  # of scores, too
        with work.linear():
            for n, grad, biased in zip(ctx.counts, grads, ctx.biased, strict=True):
                d_maps += [work.rows.transposed_product(grad, x[:n]), work.rows.column_sums(grad) if biased else None]
            del x
            d_x = None
            if ctx.needs_input_grad[1]:
                # The first map of all rows writes, the others add.
                order = sorted(range(len(grads)), key=lambda k: -ctx.counts[k])
                for k in order:
                    n, grad, weight = ctx.counts[k], grads[k], weights[k]
                    if d_x is None:
                        d_x = _product(work, grad, weight) if n == rows else work.pool.zeros(rows, weight.shape[1], grad)
                        if n == rows:
                            continue
                    work.rows.add_product(d_x[:n], grad, weight)
        return None, d_x, None, *d_maps


def linears(work: Workspace, x: Tensor, *maps: Map) -> tuple[Tensor, ...]:
    """Several maps of the first rows of ``x`` [N, in]: [rows, out] each."""
    kinds = tuple((map_.rows, map_.scores) for map_ in maps)
    return _Linears.apply(work, x, kinds, *(tensor for map_ in maps for tensor in map_[:2]))


def linear_blocks(
    work: Workspace, blocks: Sequence[Tensor], weight: Tensor, bias: Tensor | None, onto: Tensor | None = None
) -> Tensor:
    """``linear_map`` of rows given in blocks of columns, [N, in_k] each, without joining them."""
    if len(blocks) == 1:
        return linear_map(work, blocks[0], weight, bias, onto)
    at, out = 0, onto
    for block in blocks:
        columns = weight[:, at : at + block.shape[1]]
        out = linear_map(work, block, columns, bias if at == 0 else None, out)
        at += block.shape[1]
    assert out is not None
    return out


class AddMapped(torch.autograd.Function):
    """y [M, out] of R-GCN, in the memory of ``own`` [M, out], from tables of weights and sums [M_r, in] of each relation.

    Saves the tables and the sums; in backward the sums' gradients take the sums' memory where they are wanted.
    """

    @staticmethod
    def forward(ctx: Any, work: Workspace, plan: LayerPlan, own: Tensor, num_weights: int, *tensors: Tensor) -> Tensor:
        ctx.mark_dirty(own)
        ctx.plan, ctx.work, ctx.num = plan, work, num_weights
        ctx.save_for_backward(*tensors)
        held, weights = wide(own.dtype), RelationWeights(tensors[:num_weights])
        for r, table in enumerate(tensors[num_weights:]):
            weight, out, scale = weights[r], own[plan.out_of(r)], plan.relation_scale(r, held)
            with work.linear():
                for rows in _chunks(len(table)):
                    work.rows.add_product(out[rows], (table[rows] * scale[rows, None]).to(own.dtype), weight)
        return own

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan: LayerPlan = ctx.plan
        tensors, d_sums = ctx.saved_tensors, list[Tensor | None]()
        held, weights = wide(grad.dtype), RelationWeights(tensors[: ctx.num])
        gradients = RelationGradients(weights)
        for r, table in enumerate(tensors[ctx.num :]):
            wanted = ctx.needs_input_grad[4 + ctx.num + r]
            if wanted:
                ctx.work.pool.overwrite(table)
            d_out, scale = grad[plan.out_of(r)], plan.relation_scale(r, held)
            weight, d_weight = weights[r], gradients[r]
            with ctx.work.linear():
                for rows in _chunks(len(table)):
                    scaled = (d_out[rows] * scale[rows, None]).to(grad.dtype)
                    ctx.work.rows.add_transposed_product(d_weight, table[rows], scaled)
                    if wanted:
                        ctx.work.rows.product(scaled, weight.T, table[rows])
            d_sums.append(table if wanted else None)
        return None, None, grad, None, *gradients.finish(), *d_sums


def _chunks(rows: int) -> Iterator[slice]:
    for first in range(0, rows, _CHUNK_ROWS):
        yield slice(first, min(rows, first + _CHUNK_ROWS))
