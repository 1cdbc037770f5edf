"""Attention in plain PyTorch: the softmax over edges, its gradient and edge dropout, for both scorings.

Letters: S source rows, M destination rows, E edges, K heads, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import Attention, GatOperation, GatV2Operation, RunningSoftmax
from sargnn.rng import edge_mask


def ends_of(block: EdgeBlock) -> tuple[Tensor, Tensor]:
    """int64 [E] each: the source and the destination row of every edge."""
    return block.src.long(), block.dst_per_edge()


def _drop(block: EdgeBlock, attention: Attention, weights: Tensor, of_edges: Tensor | None) -> Tensor:
    """Attention dropout of weights [E, K], and the edges' own weights [E]."""
    if of_edges is not None:
        weights = weights * of_edges[:, None]
    if attention.draw is None:
        return weights
    src, dst = ends_of(block)
    kept = edge_mask(block.src_ids[src], block.dst_ids[dst], attention.heads, attention.draw)
    return weights * kept * attention.scale


def fold_scores(
    block: EdgeBlock,
    attention: Attention,
    z: Tensor,
    scores: Tensor,
    running: RunningSoftmax,
    weight: Tensor | None,
    kept: Tensor | None,
) -> None:
    """Fold scores [E, K] and the source rows that they weigh. weight: [E], of the edges. kept: where they stay for backward."""
    if kept is not None:
        kept.copy_(scores)
    src, dst = ends_of(block)
    out, max_score, denominator = running.out, running.max_score, running.denominator
    highest = max_score.scatter_reduce(0, dst[:, None].expand_as(scores), scores, "amax")
    weights = torch.exp(scores - highest[dst])
    carried = torch.where(denominator == 0, 0.0, denominator * torch.exp(max_score - highest))
    sums = carried.index_add(0, dst, weights)
    fresh = torch.zeros_like(out).index_add_(
        0, dst, (_drop(block, attention, weights, weight)[:, :, None] * attention.by_head(z)[src]).flatten(1)
    )
    touched = sums != 0
    before = torch.where((denominator != 0)[:, :, None], attention.by_head(out), 0.0)
    folded = (before * carried[:, :, None] + attention.by_head(fresh)) / sums[:, :, None]
    out.copy_(torch.where(touched[:, :, None], folded, before).flatten(1))
    max_score.copy_(highest)
    denominator.copy_(sums)


def score_gradients(
    block: EdgeBlock, attention: Attention, z: Tensor, scores: Tensor, records: Tensor, grad: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The weights after dropout and the gradients of the scores, [E, K] each."""
    src, dst = ends_of(block)
    _, max_score, inverse, delta = (part[dst] for part in records.split(attention.heads, dim=1))
    weights = torch.exp(scores - max_score) * inverse
    dropped = _drop(block, attention, weights, weight)
    dots = (attention.by_head(grad)[dst] * attention.by_head(z)[src]).sum(2)
    return dropped, dropped * dots - weights * delta


def destination_records(er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
    """``AttentionOperation.destination_records``."""
    max_score, denominator = running.max_score, running.denominator
    delta = (grad * running.out).unflatten(1, (max_score.shape[1], -1)).sum(2)
    own = torch.zeros_like(max_score) if er is None else er
    isolated = denominator == 0
    return torch.cat([own, max_score, denominator.reciprocal().masked_fill(isolated, 0), delta.masked_fill(isolated, 0)], 1)


def attend(block: EdgeBlock, attention: Attention, z: Tensor, scores: Tensor, weight: Tensor | None) -> Tensor:
    """The whole softmax and the weighted sums, differentiable."""
    src, dst = ends_of(block)
    with torch.no_grad():
        start = scores.new_full((block.num_dst, attention.heads), float("-inf"))
        highest = start.scatter_reduce(0, dst[:, None].expand_as(scores), scores, "amax")[dst]
    weights = torch.exp(scores - highest)
    sums = weights.new_zeros(block.num_dst, attention.heads).index_add(0, dst, weights)
    messages = _drop(block, attention, weights / sums[dst], weight)[:, :, None] * attention.by_head(z)[src]
    return z.new_zeros(block.num_dst, z.shape[1]).index_add(0, dst, messages.flatten(1))


class ReferenceGat(GatOperation):
    """Gather, compute per edge, ``index_add_``; holds tensors of size E x K D while it runs."""

    lists_sources = True
    destination_records = staticmethod(destination_records)
    takes_weights = True
    keeps_scores = True

    def forward(
        self,
        block: EdgeBlock,
        attention: Attention,
        z: Tensor,
        el: Tensor,
        er: Tensor,
        running: RunningSoftmax,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> None:
        src, dst = ends_of(block)
        edge_scores = leaky_relu(el[src] + er[dst], attention.negative_slope)
        fold_scores(block, attention, z, edge_scores, running, weight, scores)

    def backward(
        self,
        block: EdgeBlock,
        attention: Attention,
        z: Tensor,
        el: Tensor,
        records: Tensor,
        grad: Tensor,
        d_z: Tensor | None,
        d_el: Tensor | None,
        d_er: Tensor,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
        add: bool = False,
    ) -> None:
        src, dst = ends_of(block)
        if scores is None:
            scores = leaky_relu(el[src] + records[dst, : attention.heads], attention.negative_slope)
        dropped, d_scores = score_gradients(block, attention, z, scores, records, grad, weight)
        d_scores = torch.where(scores > 0, d_scores, d_scores * attention.negative_slope)
        d_er.index_add_(0, dst, d_scores)
        if d_z is not None and d_el is not None:
            (d_el if add else d_el.zero_()).index_add_(0, src, d_scores)
            (d_z if add else d_z.zero_()).index_add_(0, src, (dropped[:, :, None] * attention.by_head(grad)[dst]).flatten(1))


def gat_autograd(
    block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The operation in plain PyTorch, differentiable; see ``GatOperation``."""
    src, dst = ends_of(block)
    return attend(block, attention, z, leaky_relu(el[src] + er[dst], attention.negative_slope), weight)


class ReferenceGatV2(GatV2Operation):
    """Gather, compute per edge, ``index_add_``; holds tensors of size E x K D while it runs."""

    lists_sources = True
    destination_records = staticmethod(destination_records)
    takes_weights = True
    keeps_scores = True

    def forward(
        self,
        block: EdgeBlock,
        attention: Attention,
        z: Tensor,
        x: Tensor,
        att: Tensor,
        running: RunningSoftmax,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> None:
        src, dst = ends_of(block)
        active = leaky_relu(z[src] + x[dst], attention.negative_slope)
        edge_scores = attention.by_head(active * att).sum(2)
        fold_scores(block, attention, z, edge_scores, running, weight, scores)

    def backward(
        self,
        block: EdgeBlock,
        attention: Attention,
        z: Tensor,
        x: Tensor,
        att: Tensor,
        records: Tensor,
        grad: Tensor,
        d_z: Tensor | None,
        d_x: Tensor,
        d_att: Tensor,
        *,
        weight: Tensor | None = None,
        scores: Tensor | None = None,
        add: bool = False,
    ) -> None:
        src, dst = ends_of(block)
        u = z[src] + x[dst]
        active = leaky_relu(u, attention.negative_slope)
        if scores is None:
            scores = attention.by_head(active * att).sum(2)
        dropped, d_scores = score_gradients(block, attention, z, scores, records, grad, weight)
        wide = d_scores.repeat_interleave(att.numel() // attention.heads, dim=1)
        d_att += (wide * active).sum(0)
        d_u = wide * att
        d_u = torch.where(u > 0, d_u, d_u * attention.negative_slope)
        d_x.index_add_(0, dst, d_u)
        if d_z is not None:
            d_u += (dropped[:, :, None] * attention.by_head(grad)[dst]).flatten(1)
            (d_z if add else d_z.zero_()).index_add_(0, src, d_u)


def gatv2_autograd(
    block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The operation in plain PyTorch, differentiable; see ``GatV2Operation``."""
    src, dst = ends_of(block)
    active = leaky_relu(z[src] + x[dst], attention.negative_slope)
    return attend(block, attention, z, attention.by_head(active * att).sum(2), weight)
