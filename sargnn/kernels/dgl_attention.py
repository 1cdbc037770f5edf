"""Attention in DGL's operators: the paper's SAR without fused kernels, and the baseline's attention.

Shard by shard: ``u_add_v``, the maximum per destination, exp, sums; tensors of size edges x heads while a shard is at work.

Letters: S source rows, M destination rows, A listed destination rows, E edges, K heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from sargnn.interop.dgl import import_dgl
from sargnn.kernels.attention import Attention, RunningSoftmax
from sargnn.kernels.base import Kernel
from sargnn.kernels.block import EdgeBlock


@dataclass(frozen=True)
class _Graphs:
    """A block's graphs for SDDMM and SpMM, with all formats made.

    Attributes:
        forward: sources to listed destinations, ``backward`` the reverse; edges have the same numbers in both.
        listed: int64 [A], the destination rows; None for all.
    """

    forward: Any
    backward: Any
    listed: Tensor | None

    def rows(self, per_destination: Tensor) -> Tensor:
        """The listed rows of [M, ...]."""
        return per_destination if self.listed is None else per_destination[self.listed]


class DglAttention(Kernel):
    """Attention's part of ``DglKernel``."""

    def gat_forward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor, running: RunningSoftmax
    ) -> None:
        if not block.num_edges:
            return
        graphs = _graphs(block)
        with torch.no_grad():
            raw = import_dgl().ops.u_add_v(graphs.forward, el, graphs.rows(er))
            _fold(block, graphs, attention, z, leaky_relu(raw, attention.negative_slope, inplace=True), running)

    def gat_backward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, records: Tensor, grad: Tensor,
        d_z: Tensor | None, d_el: Tensor | None, d_er: Tensor,
    ) -> None:  # fmt: skip
        if not block.num_edges:
            _zero(d_z, d_el)
            return
        graphs, ops = _graphs(block), import_dgl().ops
        with torch.no_grad():
            own = graphs.rows(records)
            raw = ops.u_add_v(graphs.forward, el, own[:, : attention.heads].contiguous())
            scores = leaky_relu(raw, attention.negative_slope)
            dropped, error = _score_errors(block, graphs, attention, z, scores, own, graphs.rows(grad))
            error = torch.where(raw > 0, error, error * attention.negative_slope)
            _add(d_er, graphs, ops.copy_e_sum(graphs.forward, error))
            if d_z is not None and d_el is not None:
                d_el.copy_(ops.copy_e_sum(graphs.backward, error))
                d_z.copy_(_weigh(graphs.backward, attention, graphs.rows(grad), dropped))

    def gat_autograd(self, block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor) -> Tensor:
        if not block.num_edges:
            return z.new_zeros(block.num_dst, z.shape[1]) + 0 * (
                z.sum() + el.sum() + er.sum()
            )  # keeps the exchange in the graph
        raw = import_dgl().ops.u_add_v(whole_attention_graph(block), el, er)
        return _attend(block, attention, z, leaky_relu(raw, attention.negative_slope))

    def gatv2_forward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor, running: RunningSoftmax
    ) -> None:
        if not block.num_edges:
            return
        graphs = _graphs(block)
        with torch.no_grad():
            active = import_dgl().ops.u_add_v(graphs.forward, z, graphs.rows(x))
            leaky_relu(active, attention.negative_slope, inplace=True)
            _fold(block, graphs, attention, z, _heads(active.mul_(att), attention).sum(2), running)

    def gatv2_backward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor, records: Tensor, grad: Tensor,
        d_z: Tensor | None, d_x: Tensor, d_att: Tensor,
    ) -> None:  # fmt: skip
        if not block.num_edges:
            _zero(d_z)
            return
        graphs, ops = _graphs(block), import_dgl().ops
        with torch.no_grad():
            own = graphs.rows(records)
            u = ops.u_add_v(graphs.forward, z, graphs.rows(x))
            active = leaky_relu(u, attention.negative_slope)
            scores = _heads(active * att, attention).sum(2)
            dropped, error = _score_errors(block, graphs, attention, z, scores, own, graphs.rows(grad))
            wide = error.repeat_interleave(att.numel() // attention.heads, dim=1)
            d_att += active.mul_(wide).sum(0)
            d_u = wide.mul_(att)
            d_u = torch.where(u > 0, d_u, d_u * attention.negative_slope)
            _add(d_x, graphs, ops.copy_e_sum(graphs.forward, d_u))
            if d_z is not None:
                d_z.copy_(_weigh(graphs.backward, attention, graphs.rows(grad), dropped))
                d_z += ops.copy_e_sum(graphs.backward, d_u)

    def gatv2_autograd(self, block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor) -> Tensor:
        if not block.num_edges:
            return z.new_zeros(block.num_dst, z.shape[1]) + 0 * (z.sum() + x.sum() + att.sum())
        active = leaky_relu(import_dgl().ops.u_add_v(whole_attention_graph(block), z, x), attention.negative_slope)
        return _attend(block, attention, z, _heads(active * att, attention).sum(2))

    def attention_records(self, er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
        from sargnn.kernels.cpu_attention import records_of

        return records_of(er, running, grad)


def _bipartite(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> Any:
    """A graph whose edges are numbered as given, with the formats that SDDMM and SpMM read."""
    graph = import_dgl().heterograph(
        {("source", "to", "destination"): (src, dst)}, num_nodes_dict={"source": num_src, "destination": num_dst}
    )
    graph.create_formats_()
    return graph


def _graphs(block: EdgeBlock) -> _Graphs:
    if "dgl_attention" not in block.cache:
        counts = (block.indptr[1:] - block.indptr[:-1]).long()
        places = torch.repeat_interleave(torch.arange(block.num_listed, dtype=torch.int32), counts)
        block.cache["dgl_attention"] = _Graphs(
            _bipartite(block.src, places, block.num_src, block.num_listed),
            _bipartite(places, block.src, block.num_listed, block.num_src),
            None if block.dst_rows is None else block.dst_rows.long(),
        )
    graphs: _Graphs = block.cache["dgl_attention"]
    return graphs


def whole_attention_graph(block: EdgeBlock) -> Any:
    """Sources to all destination rows; edges in the block's order."""
    if "dgl_attention_whole" not in block.cache:
        dst = block.dst_per_edge().to(torch.int32)
        block.cache["dgl_attention_whole"] = _bipartite(block.src, dst, block.num_src, block.num_dst)
    return block.cache["dgl_attention_whole"]


def _heads(rows: Tensor, attention: Attention) -> Tensor:
    """[N, K D] as [N, K, D]."""
    return rows.view(len(rows), attention.heads, rows.shape[1] // attention.heads)


def _drop(block: EdgeBlock, attention: Attention, weights: Tensor) -> Tensor:
    """Attention dropout of weights [E, K], in the block's order."""
    if attention.draw is None:
        return weights
    from sargnn.kernels.cpu_attention import drop_weights

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


def _weigh(graph: Any, attention: Attention, rows: Tensor, weights: Tensor) -> Tensor:
    """Sums of rows [S, K D] times weights [E, K] over a graph's edges."""
    total: Tensor = import_dgl().ops.u_mul_e_sum(graph, _heads(rows, attention), weights[:, :, None])
    return total.flatten(1)


def _fold(block: EdgeBlock, graphs: _Graphs, attention: Attention, z: Tensor, scores: Tensor, running: RunningSoftmax) -> None:
    """Fold scores [E, K], used up, and the source rows that they weigh."""
    ops = import_dgl().ops
    before, total = graphs.rows(running.top), graphs.rows(running.total)
    highest = torch.maximum(before, ops.copy_e_max(graphs.forward, scores))
    weights = ops.e_sub_v(graphs.forward, scores, highest).exp_()
    carried = torch.where(total == 0, 0.0, total * torch.exp(before - highest))
    sums = carried + ops.copy_e_sum(graphs.forward, weights)
    fresh = _weigh(graphs.forward, attention, z, _drop(block, attention, weights))
    _heads(fresh, attention).div_(sums[:, :, None])
    if bool((total != 0).any()):
        old = torch.where((total != 0)[:, :, None], _heads(graphs.rows(running.out), attention), 0.0)
        fresh += (old * (carried / sums)[:, :, None]).flatten(1)
    target: Any = slice(None) if graphs.listed is None else graphs.listed
    running.out[target], running.top[target], running.total[target] = fresh, highest, sums


def _score_errors(
    block: EdgeBlock, graphs: _Graphs, attention: Attention, z: Tensor, scores: Tensor, own: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The weights after dropout and the errors of the scores, [E, K] each."""
    ops, graph = import_dgl().ops, graphs.forward
    _, top, inverse, delta = (part.contiguous() for part in own.split(attention.heads, dim=1))
    weights = ops.e_mul_v(graph, ops.e_sub_v(graph, scores, top).exp_(), inverse)
    dots = ops.u_dot_v(graph, _heads(z, attention), _heads(grad, attention))[:, :, 0]
    dropped = _drop(block, attention, weights)
    return dropped, dropped * dots - ops.e_mul_v(graph, weights, delta)


def _attend(block: EdgeBlock, attention: Attention, z: Tensor, scores: Tensor) -> Tensor:
    """The whole softmax and the weighted sums, differentiable."""
    graph = whole_attention_graph(block)
    weights = import_dgl().ops.edge_softmax(graph, scores)
    if attention.draw is not None:
        weights = _Dropped.apply(weights, block, attention)
    return _weigh(graph, attention, z, weights)


def _add(total: Tensor, graphs: _Graphs, part: Tensor) -> None:
    """Add rows of listed destinations to [M, ...]."""
    if graphs.listed is None:
        total += part
    else:
        total.index_add_(0, graphs.listed, part)


def _zero(*errors: Tensor | None) -> None:
    for error in errors:
        if error is not None:
            error.zero_()
