"""What attention in DGL's operators shares between both scorings: the softmax over edges, its gradient, and edge dropout.

Shard by shard: the maximum per destination, exp, sums; tensors of size edges x heads while a shard is at work.

Letters: S source rows, M destination rows, A listed destination rows, E edges, K heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.interop.dgl import import_dgl
from sargnn.kernels.attention import Attention, RunningSoftmax
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.dgl.graphs import AttentionGraphs, whole_attention_graph
from sargnn.kernels.fused.edge_dropout import drop_weights


def _drop(block: EdgeBlock, attention: Attention, weights: Tensor, of_edges: Tensor | None = None) -> Tensor:
    """Attention dropout of weights [E, K], and the edges' own weights [E], in the block's order."""
    if of_edges is not None:
        weights = weights * of_edges[:, None]
    if attention.draw is None:
        return weights
    if "dgl_attention_dst" not in block.cache:
        block.cache["dgl_attention_dst"] = block.dst_per_edge().to(torch.int32)
    return drop_weights(weights, block.src_ids, block.src, block.dst_ids, block.cache["dgl_attention_dst"], attention.draw)


class _Dropped(torch.autograd.Function):
    """Attention dropout under autograd; the mask is drawn again in backward."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, block: EdgeBlock, attention: Attention) -> Tensor:
        ctx.block, ctx.attention = block, attention
        return _drop(block, attention, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _drop(ctx.block, ctx.attention, grad.contiguous()), None, None


def weigh(graph: Any, attention: Attention, rows: Tensor, weights: Tensor) -> Tensor:
    """Sums of rows [S, K D] times weights [E, K] over a graph's edges."""
    total: Tensor = import_dgl().ops.u_mul_e_sum(graph, attention.by_head(rows), weights[:, :, None])
    return total.flatten(1)


def fold_scores(
    block: EdgeBlock,
    graphs: AttentionGraphs,
    attention: Attention,
    z: Tensor,
    scores: Tensor,
    running: RunningSoftmax,
    weight: Tensor | None,
    kept: Tensor | None,
) -> None:
    """Fold scores [E, K], used up, and the source rows that they weigh. weight: [E], of the edges. kept: they stay there."""
    if kept is not None:
        kept.copy_(scores)
    ops = import_dgl().ops
    before, sums_before = graphs.rows(running.max_score), graphs.rows(running.denominator)
    highest = torch.maximum(before, ops.copy_e_max(graphs.forward, scores))
    weights = ops.e_sub_v(graphs.forward, scores, highest).exp_()
    carried = torch.where(sums_before == 0, 0.0, sums_before * torch.exp(before - highest))
    sums = carried + ops.copy_e_sum(graphs.forward, weights)
    fresh = weigh(graphs.forward, attention, z, _drop(block, attention, weights, weight))
    attention.by_head(fresh).div_(sums[:, :, None])
    if bool((sums_before != 0).any()):
        old = torch.where((sums_before != 0)[:, :, None], attention.by_head(graphs.rows(running.out)), 0.0)
        fresh += (old * (carried / sums)[:, :, None]).flatten(1)
    target: Any = slice(None) if graphs.listed is None else graphs.listed
    running.out[target], running.max_score[target], running.denominator[target] = fresh, highest, sums


def score_gradients(
    block: EdgeBlock,
    graphs: AttentionGraphs,
    attention: Attention,
    z: Tensor,
    scores: Tensor,
    own: Tensor,
    grad: Tensor,
    weight: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The weights after dropout and the gradients of the scores, [E, K] each."""
    ops, graph = import_dgl().ops, graphs.forward
    _, max_score, inverse, delta = (part.contiguous() for part in own.split(attention.heads, dim=1))
    weights = ops.e_mul_v(graph, ops.e_sub_v(graph, scores, max_score).exp_(), inverse)
    dots = ops.u_dot_v(graph, attention.by_head(z), attention.by_head(grad))[:, :, 0]
    dropped = _drop(block, attention, weights, weight)
    return dropped, dropped * dots - ops.e_mul_v(graph, weights, delta)


def attend(block: EdgeBlock, attention: Attention, z: Tensor, scores: Tensor, weight: Tensor | None) -> Tensor:
    """The whole softmax and the weighted sums, differentiable."""
    graph = whole_attention_graph(block)
    weights = import_dgl().ops.edge_softmax(graph, scores)
    if attention.draw is not None:
        weights = _Dropped.apply(weights, block, attention)
    if weight is not None:
        weights = weights * weight[:, None]
    return weigh(graph, attention, z, weights.to(z.dtype))


def add_to_listed(total: Tensor, graphs: AttentionGraphs, part: Tensor) -> None:
    """Add rows of listed destinations to [M, ...]."""
    if graphs.listed is None:
        total += part
    else:
        total.index_add_(0, graphs.listed, part)


def put(target: Tensor, values: Tensor, *, add: bool) -> None:
    """Overwrite a gradient, or add to it."""
    if add:
        target += values
    else:
        target.copy_(values)


def zero(*gradients: Tensor | None) -> None:
    """Fill those that are wanted with zeros."""
    for gradient in gradients:
        if gradient is not None:
            gradient.zero_()
