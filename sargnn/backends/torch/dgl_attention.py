"""Attention in DGL's operators: the paper's SAR without fused kernels, and the baseline's attention.

Shard by shard: the maximum per destination, exp, sums; tensors of size edges x heads while a shard is at work.

Letters: S source rows, M destination rows, A listed destination rows, E edges, K heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.destination_records import destination_records
from sargnn.backends.cpu.edge_dropout import drop_weights
from sargnn.backends.operations import Attention, GatOperation, GatV2Operation, RunningSoftmax
from sargnn.backends.torch.dgl_graphs import AttentionGraphs, attention_graphs, whole_attention_graph
from sargnn.interop.dgl import import_dgl


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


class DglGat(GatOperation):
    """Holds tensors of size edges x heads while a block is at work."""

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
        if not block.num_edges:
            return
        graphs = attention_graphs(block)
        with torch.no_grad():
            raw = import_dgl().ops.u_add_v(graphs.forward, el, graphs.rows(er))
            edge_scores = leaky_relu(raw, attention.negative_slope, inplace=True)
            fold_scores(block, graphs, attention, z, edge_scores, running, weight, scores)

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
        if not block.num_edges:
            zero(*() if add else (d_z, d_el))
            return
        graphs, ops = attention_graphs(block), import_dgl().ops
        with torch.no_grad():
            own = graphs.rows(records)
            if scores is None:
                raw = ops.u_add_v(graphs.forward, el, own[:, : attention.heads].contiguous())
                scores = leaky_relu(raw, attention.negative_slope, inplace=True)
            dropped, d_scores = score_gradients(block, graphs, attention, z, scores, own, graphs.rows(grad), weight)
            d_scores = torch.where(scores > 0, d_scores, d_scores * attention.negative_slope)
            add_to_listed(d_er, graphs, ops.copy_e_sum(graphs.forward, d_scores))
            if d_z is not None and d_el is not None:
                put(d_el, ops.copy_e_sum(graphs.backward, d_scores), add=add)
                put(d_z, weigh(graphs.backward, attention, graphs.rows(grad), dropped), add=add)


def gat_autograd(
    block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The operation in DGL's operators, differentiable; see ``GatOperation``."""
    if not block.num_edges:
        return z.new_zeros(block.num_dst, z.shape[1]) + 0 * (z.sum() + el.sum() + er.sum())  # keeps the exchange in the graph
    raw = import_dgl().ops.u_add_v(whole_attention_graph(block), el.to(z.dtype), er.to(z.dtype))
    return attend(block, attention, z, leaky_relu(raw, attention.negative_slope), weight)


class DglGatV2(GatV2Operation):
    """Holds tensors of size edges x heads x head width while a block is at work."""

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
        if not block.num_edges:
            return
        graphs = attention_graphs(block)
        with torch.no_grad():
            active = import_dgl().ops.u_add_v(graphs.forward, z, graphs.rows(x))
            leaky_relu(active, attention.negative_slope, inplace=True)
            edge_scores = attention.by_head(active.mul_(att)).sum(2)
            fold_scores(block, graphs, attention, z, edge_scores, running, weight, scores)

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
        if not block.num_edges:
            zero(None if add else d_z)
            return
        graphs, ops = attention_graphs(block), import_dgl().ops
        with torch.no_grad():
            own = graphs.rows(records)
            u = ops.u_add_v(graphs.forward, z, graphs.rows(x))
            active = leaky_relu(u, attention.negative_slope)
            if scores is None:
                scores = attention.by_head(active * att).sum(2)
            dropped, d_scores = score_gradients(block, graphs, attention, z, scores, own, graphs.rows(grad), weight)
            wide = d_scores.repeat_interleave(att.numel() // attention.heads, dim=1)
            d_att += active.mul_(wide).sum(0)
            d_u = wide.mul_(att)
            d_u = torch.where(u > 0, d_u, d_u * attention.negative_slope)
            add_to_listed(d_x, graphs, ops.copy_e_sum(graphs.forward, d_u))
            if d_z is not None:
                put(d_z, weigh(graphs.backward, attention, graphs.rows(grad), dropped), add=add)
                d_z += ops.copy_e_sum(graphs.backward, d_u)


def gatv2_autograd(
    block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The operation in DGL's operators, differentiable; see ``GatV2Operation``."""
    if not block.num_edges:
        return z.new_zeros(block.num_dst, z.shape[1]) + 0 * (z.sum() + x.sum() + att.sum())
    active = leaky_relu(import_dgl().ops.u_add_v(whole_attention_graph(block), z, x), attention.negative_slope)
    return attend(block, attention, z, attention.by_head(active * att).sum(2), weight)
