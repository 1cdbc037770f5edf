"""The oracle: every operation as gather and ``index_add_`` in plain PyTorch; ``..._autograd``: the same, differentiable. Any
device, slow; holds tensors of size edges x features while it runs.

Letters: S source rows, M destination rows, E edges, K heads, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from sargnn.backends.base import Kernel, operations_of
from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import (
    Attention,
    AttentionGradients,
    AttentionInputs,
    DotOperation,
    GatOperation,
    GatV2Operation,
    GineOperation,
    Maps,
    MaxOperation,
    RunningSoftmax,
    ScaledSumOperation,
    WeightedSumOperation,
)
from sargnn.backends.walks import AttentionBackward, WalkedAttention
from sargnn.graph.edge_columns import ATTR
from sargnn.rng import edge_mask


class ReferenceKernel(Kernel):
    name = "reference"
    operations = operations_of("reference")
    autograd_operations = operations_of("reference", ".autograd")

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        return []


def sum_autograd(block: EdgeBlock, src: Tensor, weight: Tensor | None = None) -> Tensor:
    zeros, messages = src.new_zeros(block.num_dst, src.shape[1]), src[block.src.long()]
    return zeros.index_add(0, block.dst_per_edge(), messages if weight is None else messages * weight[:, None])


class ReferenceSum(WeightedSumOperation):
    autograd = staticmethod(sum_autograd)

    lists_sources = True

    def forward(
        self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None, *, weight: Tensor | None = None
    ) -> None:
        dst, messages = block.dst_per_edge(), src[block.src.long()]
        if weight is not None:
            messages = messages * weight[:, None]
        out.index_add_(0, dst, messages if scale is None else messages * scale[dst, None])

    def backward(
        self,
        block: EdgeBlock,
        grad: Tensor,
        out: Tensor,
        scale: Tensor | None = None,
        *,
        add: bool = False,
        weight: Tensor | None = None,
    ) -> None:
        messages = (grad if scale is None else grad * scale[:, None])[block.dst_per_edge()]
        if not add:
            out.zero_()
        out.index_add_(0, block.src.long(), messages if weight is None else messages * weight[:, None])

    def weight_gradient(self, block: EdgeBlock, src: Tensor, grad: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        scaled = grad if scale is None else grad * scale[:, None]
        out.copy_((scaled[block.dst_per_edge()] * src[block.src.long()]).sum(1))


def max_autograd(block: EdgeBlock, src: Tensor) -> Tensor:
    if not block.num_edges:
        return src.new_zeros(block.num_dst, src.shape[1]) + 0 * src.sum()  # keeps the exchange in the graph
    with torch.no_grad():
        best = src.new_full((block.num_dst, src.shape[1]), -torch.inf)
        winner = torch.full_like(best, torch.iinfo(torch.int32).max, dtype=torch.int32)
        ReferenceMax().forward(block, src, best, winner)
        ranks, rows = block.src_id_rank.sort()
        winning = rows[torch.searchsorted(ranks, winner).clamp_(max=block.num_src - 1)]
        empty = torch.ones(block.num_dst, 1, dtype=torch.bool, device=src.device)
        empty[block.dst_per_edge()] = False
    most = src.gather(0, winning).masked_fill(empty, 0)
    return torch.where(best.isnan(), best, most)  # a row that is not a number has no winner


class ReferenceMax(MaxOperation):
    autograd = staticmethod(max_autograd)

    lists_sources = True

    def forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        if not block.num_edges:
            return
        dst = block.dst_per_edge()[:, None].expand(-1, src.shape[1])
        messages = src[block.src.long()]
        most = best.scatter_reduce(0, dst, messages, "amax")
        winner.masked_fill_(most > best, torch.iinfo(torch.int32).max)
        ranks = block.src_id_rank[block.src.long()][:, None].expand_as(messages)
        loses = messages != most.gather(0, dst)
        ranks = ranks.masked_fill(loses, torch.iinfo(torch.int32).max)
        winner.copy_(winner.scatter_reduce(0, dst, ranks, "amin"))
        best.copy_(most)

    def backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor, *, add: bool = False) -> None:
        pairs = torch.stack([block.src.long(), block.dst_per_edge()]).unique(dim=1)  # parallel edges count once
        won = winner[pairs[1]] == block.src_id_rank[pairs[0]][:, None]
        (out if add else out.zero_()).index_add_(0, pairs[0], grad[pairs[1]] * won)


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
    block: EdgeBlock, attention: Attention, inputs: AttentionInputs, scores: Tensor, running: RunningSoftmax
) -> None:
    """Fold scores [E, K] and the source rows that they weigh."""
    if inputs.scores is not None:
        inputs.scores.copy_(scores)
    z = inputs.sources[0]
    src, dst = ends_of(block)
    out, max_score, denominator = running.out, running.max_score, running.denominator
    highest = max_score.scatter_reduce(0, dst[:, None].expand_as(scores), scores, "amax")
    weights = torch.exp(scores - highest[dst])
    carried = torch.where(denominator == 0, 0.0, denominator * torch.exp(max_score - highest))
    sums = carried.index_add(0, dst, weights)
    dropped, touched = _drop(block, attention, weights, inputs.weight)[:, :, None], sums != 0

    def fold(messages: Tensor, out: Tensor) -> None:
        fresh = torch.zeros_like(out).index_add_(0, dst, (dropped * messages).flatten(1))
        before = torch.where((denominator != 0)[:, :, None], attention.by_head(out), 0.0)
        folded = (before * carried[:, :, None] + attention.by_head(fresh)) / sums[:, :, None]
        out.copy_(torch.where(touched[:, :, None], folded, before).flatten(1))

    fold(attention.by_head(z)[src], out)
    if running.edge_out is not None:
        fold(inputs.edges[0][:, None], running.edge_out)
    max_score.copy_(highest)
    denominator.copy_(sums)


def score_gradients(back: AttentionBackward, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The weights after dropout and the gradients of the scores, [E, K] each."""
    block, attention, inputs = back.block, back.attention, back.inputs
    src, dst = ends_of(block)
    _, max_score, inverse, delta = (part[dst] for part in back.records.split(attention.heads, dim=1))
    weights = torch.exp(scores - max_score) * inverse
    dropped = _drop(block, attention, weights, inputs.weight)
    dots = (attention.by_head(back.grad)[dst] * attention.by_head(inputs.sources[0])[src]).sum(2)
    if inputs.edges:
        dots += (attention.by_head(inputs.edges[2])[dst] * inputs.edges[0][:, None]).sum(2)
    return dropped, dropped * dots - weights * delta


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


class _ReferenceAttention(WalkedAttention):
    """Gather, compute per edge, ``index_add_``; holds tensors of size E x K D while it runs."""

    keeps_scores = True

    def destination_records(self, er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
        max_score, denominator = running.max_score, running.denominator
        delta = (grad * running.out).unflatten(1, (max_score.shape[1], -1)).sum(2)
        own = torch.zeros_like(max_score) if er is None else er
        isolated = denominator == 0
        return torch.cat([own, max_score, denominator.reciprocal().masked_fill(isolated, 0), delta.masked_fill(isolated, 0)], 1)


def gat_autograd(
    block: EdgeBlock,
    attention: Attention,
    z: Tensor,
    el: Tensor,
    er: Tensor,
    edge_map: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    src, dst = ends_of(block)
    sums = _plus_mapped(block, el[src] + er[dst], edge_map)
    return attend(block, attention, z, leaky_relu(sums, attention.negative_slope), weight)


class ReferenceGat(_ReferenceAttention, GatOperation):
    autograd = staticmethod(gat_autograd)

    def fold(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        (src, dst), el = ends_of(block), inputs.sources[1]
        sums = _plus_mapped(block, el[src] + inputs.destinations[dst], inputs.edge_map)
        scores = leaky_relu(sums, attention.negative_slope)
        fold_scores(block, attention, inputs, scores, running)

    def send_back(self, back: AttentionBackward) -> None:
        block, attention, inputs, into = back.block, back.attention, back.inputs, back.into
        (src, dst), scores, el = ends_of(block), inputs.scores, inputs.sources[1]
        if scores is None:
            sums = _plus_mapped(block, el[src] + back.records[dst, : attention.heads], inputs.edge_map)
            scores = leaky_relu(sums, attention.negative_slope)
        dropped, d_scores = score_gradients(back, scores)
        d_scores = torch.where(scores > 0, d_scores, d_scores * attention.negative_slope)
        into.destinations.index_add_(0, dst, d_scores)
        _add_of_map(block, into, d_scores)
        if into.sources is not None:
            d_z, d_el = into.sources
            (d_el if back.add else d_el.zero_()).index_add_(0, src, d_scores)
            (d_z if back.add else d_z.zero_()).index_add_(
                0, src, (dropped[:, :, None] * attention.by_head(back.grad)[dst]).flatten(1)
            )


def _plus_mapped(block: EdgeBlock, values: Tensor, edge_map: Tensor | None) -> Tensor:
    """Values [E, F] and what a map [F, C] makes of the edges' features."""
    return values if edge_map is None else values + block.columns.tensor(ATTR, edge_map) @ edge_map.T


def _add_of_map(block: EdgeBlock, into: AttentionGradients, gradients: Tensor) -> None:
    """The map's gradient, of those of what it gives [E, F]."""
    if into.edge_map is not None:
        into.edge_map.add_(gradients.T @ block.columns.tensor(ATTR, gradients))


def gatv2_autograd(
    block: EdgeBlock,
    attention: Attention,
    z: Tensor,
    x: Tensor,
    att: Tensor,
    edge_map: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    src, dst = ends_of(block)
    active = leaky_relu(_plus_mapped(block, z[src] + x[dst], edge_map), attention.negative_slope)
    return attend(block, attention, z, attention.by_head(active * att).sum(2), weight)


class ReferenceGatV2(_ReferenceAttention, GatV2Operation):
    autograd = staticmethod(gatv2_autograd)

    def fold(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        assert inputs.att is not None
        src, dst = ends_of(block)
        u = _plus_mapped(block, inputs.sources[0][src] + inputs.destinations[dst], inputs.edge_map)
        active = leaky_relu(u, attention.negative_slope)
        fold_scores(block, attention, inputs, attention.by_head(active * inputs.att).sum(2), running)

    def send_back(self, back: AttentionBackward) -> None:
        block, attention, inputs, into = back.block, back.attention, back.inputs, back.into
        assert inputs.att is not None and into.att is not None
        (src, dst), scores, att = ends_of(block), inputs.scores, inputs.att
        u = _plus_mapped(block, inputs.sources[0][src] + inputs.destinations[dst], inputs.edge_map)
        active = leaky_relu(u, attention.negative_slope)
        if scores is None:
            scores = attention.by_head(active * att).sum(2)
        dropped, d_scores = score_gradients(back, scores)
        wide = d_scores.repeat_interleave(att.numel() // attention.heads, dim=1)
        into.att.add_((wide * active).sum(0))
        d_u = wide * att
        d_u = torch.where(u > 0, d_u, d_u * attention.negative_slope)
        into.destinations.index_add_(0, dst, d_u)
        _add_of_map(block, into, d_u)
        if into.sources is not None:
            (d_z,) = into.sources
            d_u += (dropped[:, :, None] * attention.by_head(back.grad)[dst]).flatten(1)
            (d_z if back.add else d_z.zero_()).index_add_(0, src, d_u)


def _products(block: EdgeBlock, attention: Attention, k: Tensor, q: Tensor, edges: tuple[Tensor, ...] = ()) -> Tensor:
    """``factor (<q_i, k_j> + <p_i, f_ji>)``, [E, K]; ``edges``: f and p, or none."""
    src, dst = ends_of(block)
    products = (attention.by_head(k)[src] * attention.by_head(q)[dst]).sum(2)
    if edges:
        products = products + (attention.by_head(edges[1])[dst] * edges[0][:, None]).sum(2)
    return attention.factor * products


def dot_autograd(block: EdgeBlock, attention: Attention, v: Tensor, *keys: Tensor, weight: Tensor | None = None) -> Tensor:
    """``keys``: k and q, or q alone."""
    *k, q = keys
    return attend(block, attention, v, _products(block, attention, k[0] if k else v, q), weight)


class ReferenceDot(_ReferenceAttention, DotOperation):
    autograd = staticmethod(dot_autograd)

    takes_edge_rows = True

    def fold(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        scores = _products(block, attention, inputs.sources[-1], inputs.destinations, inputs.edges)
        fold_scores(block, attention, inputs, scores, running)

    def send_back(self, back: AttentionBackward) -> None:
        block, attention, inputs, into = back.block, back.attention, back.inputs, back.into
        (src, dst), scores, (k, q) = ends_of(block), inputs.scores, (inputs.sources[-1], inputs.destinations)
        if scores is None:
            scores = _products(block, attention, k, q, inputs.edges)
        dropped, d_scores = score_gradients(back, scores)
        d_products = attention.factor * d_scores[:, :, None]
        into.destinations.index_add_(0, dst, (d_products * attention.by_head(k)[src]).flatten(1))
        if inputs.edges:
            (f, p, d_sums), (d_p, *d_f) = inputs.edges, into.edges
            d_p.index_add_(0, dst, (d_products * f[:, None]).flatten(1))
            for gradient in d_f:
                through = dropped[:, :, None] * attention.by_head(d_sums)[dst] + d_products * attention.by_head(p)[dst]
                gradient.copy_(through.sum(1))
        if into.sources is not None:
            if not back.add:
                for gradient in into.sources:
                    gradient.zero_()
            into.sources[0].index_add_(0, src, (dropped[:, :, None] * attention.by_head(back.grad)[dst]).flatten(1))
            into.sources[-1].index_add_(0, src, (d_products * attention.by_head(q)[dst]).flatten(1))


def gine_autograd(block: EdgeBlock, z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    messages = _of_each_edge(block, _changed(block, z, weight, bias).relu())
    return messages.new_zeros(block.num_dst, z.shape[1]).index_add(0, block.dst_per_edge(), messages).to(z.dtype)


class ReferenceGine(GineOperation):
    autograd = staticmethod(gine_autograd)

    def forward(self, block: EdgeBlock, z: Tensor, maps: Maps, out: Tensor) -> None:
        out.index_add_(0, block.dst_per_edge(), _of_each_edge(block, _changed(block, z, *maps).relu()))

    def backward(
        self, block: EdgeBlock, z: Tensor, maps: Maps, grad: Tensor, out: Tensor | None, d_maps: Maps, *, add: bool = False
    ) -> None:
        gradients = grad[block.dst_per_edge()] * (_changed(block, z, *maps) > 0)
        gradients = _of_each_edge(block, gradients)
        if out is not None:
            (out if add else out.zero_()).index_add_(0, block.src.long(), gradients)
        d_maps[0].add_(gradients.T @ block.columns.tensor(ATTR, z))
        d_maps[1].add_(gradients.sum(0))


def scaled_sum_autograd(block: EdgeBlock, z: Tensor, w: Tensor, kinds: Tensor) -> Tensor:
    messages = _scaled(z[block.src.long()], w[kinds.long()])
    return messages.new_zeros(block.num_dst, z.shape[1]).index_add(0, block.dst_per_edge(), messages)


class ReferenceScaledSum(ScaledSumOperation):
    autograd = staticmethod(scaled_sum_autograd)

    def forward(self, block: EdgeBlock, z: Tensor, w: Tensor, kinds: Tensor, out: Tensor) -> None:
        out.index_add_(0, block.dst_per_edge(), _scaled(z[block.src.long()], w[kinds.long()]))

    def backward(
        self,
        block: EdgeBlock,
        z: Tensor,
        w: Tensor,
        kinds: Tensor,
        grad: Tensor,
        out: Tensor | None,
        d_w: Tensor,
        *,
        add: bool = False,
    ) -> None:
        gradients = grad[block.dst_per_edge()]
        if out is not None:
            (out if add else out.zero_()).index_add_(0, block.src.long(), _scaled(gradients, w[kinds.long()]))
        products = _blocks(z[block.src.long()] * gradients, w).sum(1)
        d_w.index_add_(0, kinds.long(), products.to(d_w.dtype))


def _scaled(rows: Tensor, w: Tensor) -> Tensor:
    """[E, B D], of rows like that and w [E, D]."""
    return (_blocks(rows, w) * w[:, None]).view(rows.shape)


def _blocks(rows: Tensor, w: Tensor) -> Tensor:
    return rows.view(len(rows), rows.shape[1] // w.shape[1], w.shape[1])


def _changed(block: EdgeBlock, z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """z_j + W f_e + b, [E, F]."""
    return z[block.src.long()] + block.columns.tensor(ATTR, weight) @ weight.T + bias


def _of_each_edge(block: EdgeBlock, values: Tensor) -> Tensor:
    """Values [E, F] times the edges' weights."""
    return values if block.weight is None else values * block.weight[:, None]
