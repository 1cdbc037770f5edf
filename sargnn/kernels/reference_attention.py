"""Attention in plain PyTorch operations: the oracle.

Letters: S source rows, M destination rows, E edges, K heads, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from sargnn.kernels.attention import Attention, RunningSoftmax
from sargnn.kernels.base import Kernel
from sargnn.kernels.block import EdgeBlock
from sargnn.rng import edge_mask


class ReferenceAttention(Kernel):
    """Gather, compute per edge, ``index_add_``; holds tensors of size E x K D while it runs."""

    def gat_forward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor, running: RunningSoftmax
    ) -> None:
        src, dst = _ends(block)
        _fold(block, attention, z, leaky_relu(el[src] + er[dst], attention.negative_slope), running)

    def attention_records(self, er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
        top, total = running.top, running.total
        delta = (grad * running.out).unflatten(1, (top.shape[1], -1)).sum(2)
        own = torch.zeros_like(top) if er is None else er
        isolated = total == 0
        return torch.cat([own, top, total.reciprocal().masked_fill(isolated, 0), delta.masked_fill(isolated, 0)], 1)

    def gat_backward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, records: Tensor, grad: Tensor,
        d_z: Tensor | None, d_el: Tensor | None, d_er: Tensor,
    ) -> None:  # fmt: skip
        src, dst = _ends(block)
        raw = el[src] + records[dst, : attention.heads]
        scores = leaky_relu(raw, attention.negative_slope)
        dropped, error = _score_errors(block, attention, z, scores, records, grad)
        error = torch.where(raw > 0, error, error * attention.negative_slope)
        d_er.index_add_(0, dst, error)
        if d_z is not None and d_el is not None:
            d_el.zero_().index_add_(0, src, error)
            d_z.zero_().index_add_(0, src, (dropped[:, :, None] * _heads(grad, attention)[dst]).flatten(1))

    def gat_autograd(self, block: EdgeBlock, attention: Attention, z: Tensor, el: Tensor, er: Tensor) -> Tensor:
        src, dst = _ends(block)
        return _attend(block, attention, z, leaky_relu(el[src] + er[dst], attention.negative_slope))

    def gatv2_forward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor, running: RunningSoftmax
    ) -> None:
        src, dst = _ends(block)
        active = leaky_relu(z[src] + x[dst], attention.negative_slope)
        _fold(block, attention, z, _heads(active * att, attention).sum(2), running)

    def gatv2_backward(
        self, block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor, records: Tensor, grad: Tensor,
        d_z: Tensor | None, d_x: Tensor, d_att: Tensor,
    ) -> None:  # fmt: skip
        src, dst = _ends(block)
        u = z[src] + x[dst]
        active = leaky_relu(u, attention.negative_slope)
        dropped, error = _score_errors(block, attention, z, _heads(active * att, attention).sum(2), records, grad)
        wide = error.repeat_interleave(att.numel() // attention.heads, dim=1)
        d_att += (wide * active).sum(0)
        d_u = wide * att
        d_u = torch.where(u > 0, d_u, d_u * attention.negative_slope)
        d_x.index_add_(0, dst, d_u)
        if d_z is not None:
            d_u += (dropped[:, :, None] * _heads(grad, attention)[dst]).flatten(1)
            d_z.zero_().index_add_(0, src, d_u)

    def gatv2_autograd(self, block: EdgeBlock, attention: Attention, z: Tensor, x: Tensor, att: Tensor) -> Tensor:
        src, dst = _ends(block)
        active = leaky_relu(z[src] + x[dst], attention.negative_slope)
        return _attend(block, attention, z, _heads(active * att, attention).sum(2))


def _ends(block: EdgeBlock) -> tuple[Tensor, Tensor]:
    return block.src.long(), block.dst_per_edge()


def _heads(rows: Tensor, attention: Attention) -> Tensor:
    """[N, K D] as [N, K, D]."""
    return rows.view(len(rows), attention.heads, rows.shape[1] // attention.heads)


def _drop(block: EdgeBlock, attention: Attention, weights: Tensor) -> Tensor:
    """Attention dropout of weights [E, K]."""
    if attention.draw is None:
        return weights
    src, dst = _ends(block)
    kept = edge_mask(block.src_ids[src], block.dst_ids[dst], attention.heads, attention.draw)
    return weights * kept * attention.scale


def _fold(block: EdgeBlock, attention: Attention, z: Tensor, scores: Tensor, running: RunningSoftmax) -> None:
    """Fold scores [E, K] and the source rows that they weigh."""
    src, dst = _ends(block)
    out, top, total = running.out, running.top, running.total
    highest = top.scatter_reduce(0, dst[:, None].expand_as(scores), scores, "amax")
    weights = torch.exp(scores - highest[dst])
    carried = torch.where(total == 0, 0.0, total * torch.exp(top - highest))
    sums = carried.index_add(0, dst, weights)
    fresh = torch.zeros_like(out).index_add_(
        0, dst, (_drop(block, attention, weights)[:, :, None] * _heads(z, attention)[src]).flatten(1)
    )
    touched = sums != 0
    before = torch.where((total != 0)[:, :, None], _heads(out, attention), 0.0)
    folded = (before * carried[:, :, None] + _heads(fresh, attention)) / sums[:, :, None]
    out.copy_(torch.where(touched[:, :, None], folded, before).flatten(1))
    top.copy_(highest)
    total.copy_(sums)


def _score_errors(
    block: EdgeBlock, attention: Attention, z: Tensor, scores: Tensor, records: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The weights after dropout and the errors of the scores, [E, K] each."""
    src, dst = _ends(block)
    _, top, inverse, delta = (part[dst] for part in records.split(attention.heads, dim=1))
    weights = torch.exp(scores - top) * inverse
    dropped = _drop(block, attention, weights)
    dots = (_heads(grad, attention)[dst] * _heads(z, attention)[src]).sum(2)
    return dropped, dropped * dots - weights * delta


def _attend(block: EdgeBlock, attention: Attention, z: Tensor, scores: Tensor) -> Tensor:
    """The whole softmax and the weighted sums, differentiable."""
    src, dst = _ends(block)
    with torch.no_grad():
        start = scores.new_full((block.num_dst, attention.heads), float("-inf"))
        highest = start.scatter_reduce(0, dst[:, None].expand_as(scores), scores, "amax")[dst]
    weights = torch.exp(scores - highest)
    sums = weights.new_zeros(block.num_dst, attention.heads).index_add(0, dst, weights)
    messages = _drop(block, attention, weights / sums[dst])[:, :, None] * _heads(z, attention)[src]
    return z.new_zeros(block.num_dst, z.shape[1]).index_add(0, dst, messages.flatten(1))
