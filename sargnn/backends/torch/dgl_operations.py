"""Sums, maxima and attention in DGL's operators (SpMM by libxsmm, SDDMM): the baseline's, and the paper's SAR without fused
kernels. ``..._autograd``: the same, differentiable.

Attention goes shard by shard: the maximum per destination, exp, sums; tensors of size edges x heads while a shard is at work.

Letters: S source rows, M destination rows, A listed destination rows, E edges, K heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.attention import destination_records
from sargnn.backends.cpu.folds import drop_weights
from sargnn.backends.operations import (
    Attention,
    AttentionInputs,
    DotOperation,
    GatOperation,
    GatV2Operation,
    MaxOperation,
    RunningSoftmax,
)
from sargnn.backends.torch.dgl_kernel import (
    AttentionGraphs,
    attention_graphs,
    backward_graph,
    forward_graph,
    ordered_graph,
    whole_attention_graph,
    whole_graph,
)
from sargnn.backends.walks import AttentionBackward, Direction, Factors, WalkedAttention, WalkedSum
from sargnn.interop.dgl import copy_u_max_with_rows, import_dgl


def sum_autograd(block: EdgeBlock, src: Tensor, weight: Tensor | None = None) -> Tensor:
    if not block.num_edges:  # what follows keeps the exchange in the graph
        return src.new_zeros(block.num_dst, src.shape[1]) + 0 * src.sum() + (0 if weight is None else 0 * weight.sum())
    # The weights' gradients are dot products of edges' ends (SDDMM), which read other formats than sums do.
    learned = weight is not None and weight.requires_grad
    return _sums(whole_attention_graph(block) if learned else whole_graph(block), src, weight)


class DglSum(WalkedSum):
    """Holds one temporary of the size of its result, because DGL's SpMM cannot add into an existing tensor; backward with
    weights other than the block's, one number an edge more."""

    autograd = staticmethod(sum_autograd)

    def sum_rows(
        self, block: EdgeBlock, direction: Direction, rows: Tensor, out: Tensor, factors: Factors, *, add: bool
    ) -> None:
        forward = direction == "forward"
        listed = block.dst_rows if forward else block.src_rows
        weight, places, near, far = factors
        with torch.no_grad():
            weight = weight if weight is None or places is None else weight.index_select(0, places)
            graph = forward_graph(block) if forward else backward_graph(block)
            total = _sums(graph, rows if far is None else rows * far[:, None], weight)
            if near is not None:
                total *= (near if listed is None else near[listed.long()])[:, None]
        if listed is not None:
            out.index_add_(0, listed, total)
        else:
            put(out, total, add=add)

    def weight_gradient(self, block: EdgeBlock, src: Tensor, grad: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        if not block.num_edges:
            return
        graphs = attention_graphs(block)
        with torch.no_grad():
            scaled = graphs.rows(grad) if scale is None else graphs.rows(grad) * graphs.rows(scale)[:, None]
            out.copy_(import_dgl().ops.u_dot_v(graphs.forward, src, scaled)[:, 0])


def _sums(graph: Any, rows: Tensor, weight: Tensor | None) -> Tensor:
    """Sums of rows, times a number for each edge if one is given."""
    operators = import_dgl().ops
    weight = None if weight is None else weight.to(rows.dtype)
    if weight is None:
        sums: Tensor = operators.copy_u_sum(graph, rows)
    elif rows.shape[1] == 1:  # in fp32 DGL's code for rows as wide as weights asks for edge numbers, which this graph has not
        sums = operators.u_mul_e_sum(graph, rows.expand(-1, 2), weight[:, None])[:, :1]
    else:
        sums = operators.u_mul_e_sum(graph, rows, weight[:, None])
    return sums


def max_autograd(block: EdgeBlock, src: Tensor) -> Tensor:
    if not block.num_edges:
        return src.new_zeros(block.num_dst, src.shape[1]) + 0 * src.sum()
    top: Tensor = import_dgl().ops.copy_u_max(whole_graph(block, ordered=src.dtype), src)
    if block.dst_rows is None:
        return top
    isolated = torch.ones(block.num_dst, 1, dtype=torch.bool).index_fill_(0, block.dst_rows.long(), False)
    return top.masked_fill(isolated, 0)  # DGL leaves -inf there


class DglMax(MaxOperation):
    """Holds three temporaries of the size of its result. DGL's own maximum hides rows that are not a number.

    Not for partial results: a row's gradient goes to the winner whether the block has the edge or not.
    """

    autograd = staticmethod(max_autograd)

    def forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        if not block.num_edges:
            return
        with torch.no_grad():
            top, rows = copy_u_max_with_rows(ordered_graph(block, src.dtype), src)
            ranks = block.src_id_rank[rows.long()]
            listed = slice(None) if block.dst_rows is None else block.dst_rows.long()
            known, holder = best[listed], winner[listed]
            better = (top > known) | ((top == known) & (ranks < holder))
            best[listed], winner[listed] = torch.where(better, top, known), torch.where(better, ranks, holder)

    def backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor, *, add: bool = False) -> None:
        # Scattered by winning row, as in DGL's own backward pass; those that no source row of this block won go to a spare row.
        if not block.num_src:
            return
        ranks, rows = block.src_id_rank.sort()
        places = torch.searchsorted(ranks, winner).clamp_(max=block.num_src - 1)
        target = torch.where(ranks[places] == winner, rows[places], block.num_src)
        total = grad.new_zeros(block.num_src + 1, grad.shape[1]).scatter_add_(0, target, grad)[:-1]
        put(out, total, add=add)


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
    block: EdgeBlock, attention: Attention, inputs: AttentionInputs, scores: Tensor, running: RunningSoftmax
) -> None:
    """Fold scores [E, K], used up, and the source rows that they weigh."""
    graphs = attention_graphs(block)
    if inputs.scores is not None:
        inputs.scores.copy_(scores)
    ops = import_dgl().ops
    before, sums_before = graphs.rows(running.max_score), graphs.rows(running.denominator)
    highest = torch.maximum(before, ops.copy_e_max(graphs.forward, scores))
    weights = ops.e_sub_v(graphs.forward, scores, highest).exp_()
    carried = torch.where(sums_before == 0, 0.0, sums_before * torch.exp(before - highest))
    sums = carried + ops.copy_e_sum(graphs.forward, weights)
    fresh = weigh(graphs.forward, attention, inputs.sources[0], _drop(block, attention, weights, inputs.weight))
    attention.by_head(fresh).div_(sums[:, :, None])
    if bool((sums_before != 0).any()):
        old = torch.where((sums_before != 0)[:, :, None], attention.by_head(graphs.rows(running.out)), 0.0)
        fresh += (old * (carried / sums)[:, :, None]).flatten(1)
    target: Any = slice(None) if graphs.listed is None else graphs.listed
    running.out[target], running.max_score[target], running.denominator[target] = fresh, highest, sums


def score_gradients(back: AttentionBackward, scores: Tensor, own: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The weights after dropout and the gradients of the scores, [E, K] each; ``own``, [A, 4 K], and ``grad``, [A, K D], are of
    listed destinations."""
    ops, graph, attention, inputs = import_dgl().ops, attention_graphs(back.block).forward, back.attention, back.inputs
    _, max_score, inverse, delta = (part.contiguous() for part in own.split(attention.heads, dim=1))
    weights = ops.e_mul_v(graph, ops.e_sub_v(graph, scores, max_score).exp_(), inverse)
    dots = ops.u_dot_v(graph, attention.by_head(inputs.sources[0]), attention.by_head(grad))[:, :, 0]
    dropped = _drop(back.block, attention, weights, inputs.weight)
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
    if add:
        target += values
    else:
        target.copy_(values)


class _DglAttention(WalkedAttention):
    destination_records = staticmethod(destination_records)
    keeps_scores = True


def gat_autograd(
    block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor, weight: Tensor | None = None
) -> Tensor:
    if not block.num_edges:
        return z.new_zeros(block.num_dst, z.shape[1]) + 0 * (z.sum() + el.sum() + er.sum())  # keeps the exchange in the graph
    raw = import_dgl().ops.u_add_v(whole_attention_graph(block), el.to(z.dtype), er.to(z.dtype))
    return attend(block, attention, z, leaky_relu(raw, attention.negative_slope), weight)


class DglGat(_DglAttention, GatOperation):
    """Holds tensors of size edges x heads while a block is at work."""

    autograd = staticmethod(gat_autograd)

    def fold(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        graphs = attention_graphs(block)
        with torch.no_grad():
            raw = import_dgl().ops.u_add_v(graphs.forward, inputs.sources[1], graphs.rows(inputs.destinations))
            scores = leaky_relu(raw, attention.negative_slope, inplace=True)
            fold_scores(block, attention, inputs, scores, running)

    def send_back(self, back: AttentionBackward) -> None:
        attention, inputs, into, add = back.attention, back.inputs, back.into, back.add
        graphs, ops, scores = attention_graphs(back.block), import_dgl().ops, inputs.scores
        with torch.no_grad():
            own, grad = graphs.rows(back.records), graphs.rows(back.grad)
            if scores is None:
                raw = ops.u_add_v(graphs.forward, inputs.sources[1], own[:, : attention.heads].contiguous())
                scores = leaky_relu(raw, attention.negative_slope, inplace=True)
            dropped, d_scores = score_gradients(back, scores, own, grad)
            d_scores = torch.where(scores > 0, d_scores, d_scores * attention.negative_slope)
            add_to_listed(into.destinations, graphs, ops.copy_e_sum(graphs.forward, d_scores))
            if into.sources is not None:
                d_z, d_el = into.sources
                put(d_el, ops.copy_e_sum(graphs.backward, d_scores), add=add)
                put(d_z, weigh(graphs.backward, attention, grad, dropped), add=add)


def gatv2_autograd(
    block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor, weight: Tensor | None = None
) -> Tensor:
    if not block.num_edges:
        return z.new_zeros(block.num_dst, z.shape[1]) + 0 * (z.sum() + x.sum() + att.sum())
    active = leaky_relu(import_dgl().ops.u_add_v(whole_attention_graph(block), z, x), attention.negative_slope)
    return attend(block, attention, z, attention.by_head(active * att).sum(2), weight)


class DglGatV2(_DglAttention, GatV2Operation):
    """Holds tensors of size edges x heads x head width while a block is at work."""

    autograd = staticmethod(gatv2_autograd)

    def fold(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        graphs = attention_graphs(block)
        with torch.no_grad():
            active = import_dgl().ops.u_add_v(graphs.forward, inputs.sources[0], graphs.rows(inputs.destinations))
            leaky_relu(active, attention.negative_slope, inplace=True)
            scores = attention.by_head(active.mul_(inputs.att)).sum(2)
            fold_scores(block, attention, inputs, scores, running)

    def send_back(self, back: AttentionBackward) -> None:
        attention, inputs, into, add = back.attention, back.inputs, back.into, back.add
        assert inputs.att is not None and into.att is not None
        graphs, ops, scores, att = attention_graphs(back.block), import_dgl().ops, inputs.scores, inputs.att
        with torch.no_grad():
            own, grad = graphs.rows(back.records), graphs.rows(back.grad)
            u = ops.u_add_v(graphs.forward, inputs.sources[0], graphs.rows(inputs.destinations))
            active = leaky_relu(u, attention.negative_slope)
            if scores is None:
                scores = attention.by_head(active * att).sum(2)
            dropped, d_scores = score_gradients(back, scores, own, grad)
            wide = d_scores.repeat_interleave(att.numel() // attention.heads, dim=1)
            into.att.add_(active.mul_(wide).sum(0))
            d_u = wide.mul_(att)
            d_u = torch.where(u > 0, d_u, d_u * attention.negative_slope)
            add_to_listed(into.destinations, graphs, ops.copy_e_sum(graphs.forward, d_u))
            if into.sources is not None:
                (d_z,) = into.sources
                put(d_z, weigh(graphs.backward, attention, grad, dropped), add=add)
                d_z += ops.copy_e_sum(graphs.backward, d_u)


def _products(graph: Any, attention: Attention, k: Tensor, q: Tensor) -> Tensor:
    """``factor <q_i, k_j>``, [E, K]."""
    products: Tensor = import_dgl().ops.u_dot_v(graph, attention.by_head(k), attention.by_head(q))
    return products[:, :, 0] * attention.factor


def dot_autograd(block: EdgeBlock, attention: Attention, v: Tensor, *keys: Tensor, weight: Tensor | None = None) -> Tensor:
    """``keys``: k and q, or q alone."""
    if not block.num_edges:
        return v.new_zeros(block.num_dst, v.shape[1]) + 0 * (v.sum() + sum(rows.sum() for rows in keys))
    *k, q = keys
    return attend(block, attention, v, _products(whole_attention_graph(block), attention, k[0] if k else v, q), weight)


class DglDot(_DglAttention, DotOperation):
    """Holds tensors of size edges x heads while a block is at work."""

    autograd = staticmethod(dot_autograd)

    def fold(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        graphs = attention_graphs(block)
        with torch.no_grad():
            scores = _products(graphs.forward, attention, inputs.sources[-1], graphs.rows(inputs.destinations))
            fold_scores(block, attention, inputs, scores, running)

    def send_back(self, back: AttentionBackward) -> None:
        attention, inputs, into, add = back.attention, back.inputs, back.into, back.add
        graphs, scores, k = attention_graphs(back.block), inputs.scores, inputs.sources[-1]
        with torch.no_grad():
            own, q, grad = (graphs.rows(tensor) for tensor in (back.records, inputs.destinations, back.grad))
            if scores is None:
                scores = _products(graphs.forward, attention, k, q)
            dropped, d_scores = score_gradients(back, scores, own, grad)
            d_scores *= attention.factor
            add_to_listed(into.destinations, graphs, weigh(graphs.forward, attention, k, d_scores))
            if into.sources is not None:
                put(into.sources[0], weigh(graphs.backward, attention, grad, dropped), add=add)
                put(into.sources[-1], weigh(graphs.backward, attention, q, d_scores), add=add or len(into.sources) == 1)
