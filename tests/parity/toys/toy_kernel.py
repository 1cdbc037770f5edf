"""A backend that computes all by itself: with dense matrices [M, S], whose entry (i, j) stands for the edges j -> i."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from sargnn.backends.base import Kernel
from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import (
    Attention,
    AttentionGradients,
    AttentionInputs,
    GatOperation,
    GatV2Operation,
    MaxOperation,
    RunningSoftmax,
    SumOperation,
)
from sargnn.backends.torch.backend import TorchBackend
from sargnn.rng import edge_mask

NONE = 2**31 - 1


def counts(block: EdgeBlock, like: Tensor) -> Tensor:
    """[M, S]: how many edges j -> i there are."""
    matrix = like.new_zeros(block.num_dst, block.num_src)
    return matrix.index_put_((block.dst_per_edge(), block.src.long()), like.new_ones(()), accumulate=True)


def put(out: Tensor, value: Tensor, add: bool) -> None:
    out.copy_(out + value if add else value)


class DenseSum(SumOperation):
    """Holds M x S numbers while it runs."""

    lists_sources = True

    def forward(self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        sums = counts(block, src) @ src
        out.add_(sums if scale is None else sums * scale[:, None])

    def backward(self, block: EdgeBlock, grad: Tensor, out: Tensor, scale: Tensor | None = None, *, add: bool = False) -> None:
        put(out, counts(block, grad).T @ (grad if scale is None else grad * scale[:, None]), add)


class DenseMax(MaxOperation):
    """Holds M x S x F numbers."""

    lists_sources = True

    def forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        values = torch.where(counts(block, src)[:, :, None] > 0, src, -torch.inf)
        if values.numel():
            most, rank = torch.maximum(best, values.amax(1)), block.src_id_rank[:, None]
            mine = torch.where(values == most[:, None], rank, NONE).masked_fill_(values == -torch.inf, NONE).amin(1)
            winner.copy_(torch.where(most > best, mine, torch.minimum(mine, winner)))
            best.copy_(most)

    def backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor, *, add: bool = False) -> None:
        won = (winner[:, None] == block.src_id_rank[:, None]) & (counts(block, grad)[:, :, None] > 0)
        put(out, (won * grad[:, None]).sum(0), add)


class DenseAttention:
    """What both scorings share; scores e are [M, S, K]."""

    lists_sources = True

    def fold(self, block: EdgeBlock, attention: Attention, z: Tensor, e: Tensor, running: RunningSoftmax) -> None:
        edges = counts(block, z)[:, :, None]
        if not edges.numel():
            return
        highest = torch.maximum(running.max_score, e.masked_fill(edges == 0, -torch.inf).amax(1))
        weights = torch.where(edges > 0, edges * torch.exp(e - highest[:, None]), 0)
        carried = torch.where(running.denominator > 0, running.denominator * torch.exp(running.max_score - highest), 0)
        sums = carried + weights.sum(1)
        fresh = torch.einsum("ijk,jkd->ikd", weights * self.kept(block, attention, weights), attention.by_head(z))
        before = torch.where(carried[:, :, None] > 0, attention.by_head(running.out), 0) * carried[:, :, None]
        running.out.copy_(torch.where(sums[:, :, None] > 0, (before + fresh) / sums[:, :, None], 0).flatten(1))
        running.max_score.copy_(highest)
        running.denominator.copy_(sums)

    def kept(self, block: EdgeBlock, attention: Attention, like: Tensor) -> Any:
        if attention.draw is None:
            return 1.0
        ends = torch.cartesian_prod(block.dst_ids, block.src_ids)
        mask = edge_mask(ends[:, 1], ends[:, 0], attention.heads, attention.draw)
        return mask.view(block.num_dst, block.num_src, -1).to(like.dtype) * attention.scale

    def destination_records(self, er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
        m, s = running.max_score, running.denominator
        delta = (grad * running.out).view(len(s), s.shape[1], -1).sum(2)
        return torch.cat([torch.zeros_like(m) if er is None else er, m, torch.where(s > 0, 1 / s, 0), delta], 1)

    def gradients(
        self, block: EdgeBlock, attention: Attention, z: Tensor, e: Tensor, records: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The weights after dropout and the gradients of the scores, [M, S, K] each."""
        _, m, inverse, delta = (part[:, None] for part in records.split(attention.heads, 1))
        edges = counts(block, z)[:, :, None]
        weights = torch.where(edges > 0, edges * torch.exp(e - m) * inverse, 0)
        dropped = weights * self.kept(block, attention, weights)
        dots = torch.einsum("ikd,jkd->ijk", attention.by_head(grad), attention.by_head(z))
        return dropped, dropped * dots - weights * delta


class DenseGat(DenseAttention, GatOperation):
    """e = LeakyReLU(el_j + er_i)."""

    def forward(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        z, el = inputs.sources
        self.fold(block, attention, z, leaky_relu(el + inputs.destinations[:, None], attention.negative_slope), running)

    def backward(
        self,
        block: EdgeBlock,
        attention: Attention,
        inputs: AttentionInputs,
        records: Tensor,
        grad: Tensor,
        into: AttentionGradients,
        *,
        add: bool = False,
    ) -> None:
        z, el = inputs.sources
        raw = el + records[:, None, : attention.heads]
        e = leaky_relu(raw, attention.negative_slope)
        dropped, d_e = self.gradients(block, attention, z, e, records, grad)
        d_raw = torch.where(raw > 0, d_e, d_e * attention.negative_slope)
        into.destinations.add_(d_raw.sum(1))
        if into.sources is not None:
            d_z, d_el = into.sources
            put(d_el, d_raw.sum(0), add)
            put(d_z, torch.einsum("ijk,ikd->jkd", dropped, attention.by_head(grad)).flatten(1), add)


class DenseGatV2(DenseAttention, GatV2Operation):
    """e = <att, LeakyReLU(z_j + x_i)>."""

    def forward(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        (z,), x, att = inputs.sources, inputs.destinations, inputs.att
        assert att is not None
        active = leaky_relu(z + x[:, None], attention.negative_slope)
        self.fold(block, attention, z, (active * att).unflatten(2, (attention.heads, -1)).sum(3), running)

    def backward(
        self,
        block: EdgeBlock,
        attention: Attention,
        inputs: AttentionInputs,
        records: Tensor,
        grad: Tensor,
        into: AttentionGradients,
        *,
        add: bool = False,
    ) -> None:
        (z,), x, att = inputs.sources, inputs.destinations, inputs.att
        assert att is not None and into.att is not None
        u = z + x[:, None]
        active = leaky_relu(u, attention.negative_slope)
        e = (active * att).unflatten(2, (attention.heads, -1)).sum(3)
        dropped, d_e = self.gradients(block, attention, z, e, records, grad)
        wide = d_e.repeat_interleave(z.shape[1] // attention.heads, 2)
        into.att.add_((wide * active).sum((0, 1)))
        d_u = wide * att
        d_u = torch.where(u > 0, d_u, d_u * attention.negative_slope)
        into.destinations.add_(d_u.sum(1))
        if into.sources is not None:
            (d_z,) = into.sources
            through = torch.einsum("ijk,ikd->jkd", dropped, attention.by_head(grad)).flatten(1)
            put(d_z, d_u.sum(0) + through, add)


def sum_autograd(block: EdgeBlock, src: Tensor) -> Tensor:
    """The same for the baseline."""
    return counts(block, src) @ src


class Dense(Kernel):
    """Beside it, all that is no edge operation runs in plain PyTorch."""

    name = "dense"
    backend = TorchBackend
    operations = {"sum": DenseSum, "max": DenseMax, "gat": DenseGat, "gatv2": DenseGatV2}
    autograd_operations = {"sum": sum_autograd}

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        return []


class DenseSums(Dense):
    """It has one operation only."""

    operations = {"sum": DenseSum}
