"""Rows, folds and moves in plain PyTorch, on any device: each a few lines that are its equation. The oracle of other backends.

Letters: N rows, F features, M output rows, E edges of a run, W columns, K heads, D columns of a head, A arriving rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.backends.base import ACTIVATIONS, Activation, Backend, Folds, Moves, NormVectors, Rows
from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import RunningSoftmax
from sargnn.bf16 import wide
from sargnn.rng import Draw, dropout_mask, edge_mask

_LAST = torch.iinfo(torch.int64).max


class TorchRows(Rows):
    """Of bf16 tables it makes wide copies."""

    def moments(self, x: Tensor, counted: Tensor | None = None) -> Tensor:
        x = (x if counted is None else x[counted.bool()]).double()
        mean = x.sum(0) / max(len(x), 1)
        return torch.cat([mean.new_tensor([len(x)]), mean, (x - mean).square().sum(0)])

    def norm_act_drop(self, x: Tensor, slope: Tensor, shift: Tensor, after: Activation, out: Tensor) -> None:
        out.copy_(_dropped(_activated(slope * x + shift, after), after))

    def norm_act_drop_backward(
        self, grad: Tensor, x: Tensor, norm: NormVectors, after: Activation, d_x: Tensor
    ) -> tuple[Tensor, Tensor]:
        g = _through(grad.to(norm.slope.dtype), norm.slope * x + norm.shift, after)
        d_x.copy_(g)
        return g.double().sum(0), (g * ((x - norm.mean) * norm.inv_std)).double().sum(0)

    def norm_backward(
        self, d_x: Tensor, x: Tensor, norm: NormVectors, mean_grad: Tensor, mean_product: Tensor, counted: Tensor | None
    ) -> None:
        share = mean_grad + (x - norm.mean) * norm.inv_std * mean_product
        d_x.copy_(norm.slope * (d_x - (share if counted is None else share * counted[:, None])))

    def layer_norm_act_drop(self, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, after: Activation, out: Tensor) -> None:
        xhat, _ = _normal(x.to(gamma.dtype), eps)
        out.copy_(_dropped(_activated(gamma * xhat + beta, after), after))

    def layer_norm_act_drop_backward(
        self, grad: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, after: Activation, d_x: Tensor
    ) -> tuple[Tensor, Tensor]:
        xhat, inv = _normal(x.to(gamma.dtype), eps)
        g = _through(grad.to(gamma.dtype), gamma * xhat + beta, after)
        h = g * gamma
        d_x.copy_(inv * (h - h.mean(1, keepdim=True) - xhat * (h * xhat).mean(1, keepdim=True)))
        return g.double().sum(0), (g * xhat).double().sum(0)

    def dropout(self, x: Tensor, ids: Tensor, draw: Draw) -> Tensor:
        return x * dropout_mask(ids, x.shape[1], draw).to(x.dtype).mul_(draw.scale)

    def column_sums(self, x: Tensor) -> Tensor:
        return x.sum(0, dtype=wide(x.dtype))

    def scale(self, rows: Tensor, factors: Tensor) -> Tensor:
        return rows.copy_(rows * factors[:, None])

    def join_halves(self, upper: Tensor, lower: Tensor) -> None:
        bits = (upper.view(torch.int16).int() << 16) | (lower.int() & 0xFFFF)
        upper.copy_(bits.view(torch.float32))

    def product(self, x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
        total = x.to(out.dtype) @ w.to(x.dtype).to(out.dtype)
        return out.copy_(total if bias is None else total + bias)

    def add_product(self, total: Tensor, x: Tensor, w: Tensor) -> None:
        total += x.to(total.dtype) @ w.to(x.dtype).to(total.dtype)

    def transposed_product(self, x: Tensor, g: Tensor) -> Tensor:
        return x.T.to(wide(x.dtype)) @ g.to(wide(x.dtype))

    def add_transposed_product(self, total: Tensor, x: Tensor, g: Tensor) -> None:
        total += self.transposed_product(x, g)


class TorchFolds(Folds):
    def add_to_ends(self, values: Tensor, rows: Tensor, out: Tensor) -> None:
        out.index_add_(0, rows, values)

    def add_to_starts(self, values: Tensor, rows: Tensor, out: Tensor) -> None:
        out.index_add_(0, rows, values)

    def fold_max(self, values: Tensor, rows: Tensor, first: int, rank: Tensor, best: Tensor, winner: Tensor) -> None:
        to = rows.long()[:, None].expand_as(values)
        most = best.scatter_reduce(0, to, values, "amax")
        # Of equal values the first place wins; what was the largest before has its edge's place.
        before = torch.where((most == best) | best.isnan(), _place(winner, rank), _LAST)
        edges = torch.arange(first, first + len(values), device=values.device)
        wins = (values == most.gather(0, to)) | values.isnan()
        places = torch.where(wins, _place(edges, rank)[:, None], _LAST)
        place = before.scatter_reduce(0, to, places, "amin")
        winner.copy_(torch.where(place == _LAST, self.nobody, place & 0x7FFFFFFF))
        best.copy_(most)

    def fold_softmax(self, logits: Tensor, values: Tensor, rows: Tensor, largest: Tensor, total: Tensor, out: Tensor) -> None:
        rows = rows.long()
        most = largest.scatter_reduce(0, rows[:, None].expand_as(logits), logits, "amax")
        before = torch.where(total == 0, 0, torch.exp(largest - most))
        weight = torch.where(logits == -torch.inf, 0, torch.exp(logits - most[rows]))
        total.mul_(before).index_add_(0, rows, weight)
        by_head = logits.shape[1], values.shape[1] // logits.shape[1]
        out.view(len(out), *by_head).mul_(before[:, :, None])
        out.index_add_(0, rows, (weight[:, :, None] * values.view(len(values), *by_head)).flatten(1))
        largest.copy_(most)

    def merge_softmax(self, rows: Tensor, values: Tensor, log_sum: Tensor, running: RunningSoftmax) -> None:
        at = rows.long()
        top, sums = running.max_score[at], running.denominator[at]
        highest = torch.maximum(top, log_sum)
        old = torch.where(sums == 0, 0, sums * torch.exp(top - highest))
        new = torch.where(log_sum == -torch.inf, 0, torch.exp(log_sum - highest))
        shares = [(part / (old + new))[:, :, None] for part in (old, new)]
        held, mine = (t.view(len(at), log_sum.shape[1], -1) for t in (running.out[at], values))
        folded = torch.where(shares[0] == 0, 0, shares[0] * held) + torch.where(shares[1] == 0, 0, shares[1] * mine)
        kept = (old + new == 0)[:, :, None]  # nothing so far, and nothing new: what is there is undefined
        running.out[at] = torch.where(kept, held, folded).flatten(1)
        running.max_score[at], running.denominator[at] = highest, old + new

    def merge_maxima(self, rows: Tensor, values: Tensor, places: Tensor, ranks: Tensor, best: Tensor, winner: Tensor) -> None:
        at = rows.long()
        known = (places >= 0) & (places < len(ranks))
        rank = torch.full_like(places, self.no_rank)
        rank[known] = ranks[places[known].long()]
        held, who = best[at], winner[at]
        better = (known & ((values > held) | ((values == held) & (rank < who)))) | values.isnan()
        best[at], winner[at] = torch.where(better, values, held), torch.where(better, rank, who)

    def take_winners(self, winner: Tensor, rows: Tensor, ranks: Tensor, out: Tensor) -> None:
        wanted = winner[rows.long()]
        at = torch.searchsorted(ranks, wanted)
        there = at < len(ranks)
        there[there.clone()] = ranks[at[there]] == wanted[there]
        out.copy_(torch.where(there, at, self.no_rank))

    def drop_factors(self, block: EdgeBlock, draw: Draw, dtype: torch.dtype) -> Tensor:
        kept = edge_mask(block.src_ids[block.src.long()], block.dst_ids[block.dst_per_edge()], 1, draw)[:, 0]
        return kept.to(dtype) * draw.scale


class TorchMoves(Moves):
    def take(self, source: Tensor, rows: Tensor, out: Tensor) -> Tensor:
        return out.copy_(source.index_select(0, rows))

    def add(self, target: Tensor, rows: Tensor, values: Tensor) -> None:
        at = rows.long()
        target[at] = (target[at] + values).to(target.dtype)


class TorchBackend(Backend):
    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.rows, self.folds, self.moves = TorchRows(), TorchFolds(), TorchMoves()


def _activated(v: Tensor, after: Activation) -> Tensor:
    return ACTIVATIONS[after.name](v)


def _dropped(y: Tensor, after: Activation) -> Tensor:
    return y if after.draw is None else TorchRows().dropout(y, after.ids, after.draw)


def _through(grad: Tensor, v: Tensor, after: Activation) -> Tensor:
    """The gradient of v from that of ``drop(act(v))``."""
    through = _dropped(grad, after)
    if after.name == "none":
        return through
    return through * ((v > 0).to(v.dtype) if after.name == "relu" else torch.where(v > 0, 1, torch.exp(v)))


def _normal(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """xhat [N, F] and 1 / sqrt(var + eps) [N, 1], over each row's features."""
    shifted = x - x[:, :1]  # a row of equal entries is normalised to exact zeros
    centred = shifted - shifted.mean(1, keepdim=True)
    inv = (centred.square().mean(1, keepdim=True) + eps).rsqrt()
    return centred * inv, inv


def _place(edges: Tensor, rank: Tensor) -> Tensor:
    """int64, by rank, then by number of the edge; of nobody after all others."""
    edges = edges.long()
    of_rank = rank[edges.clamp(min=0)].long() if len(rank) else torch.zeros_like(edges)
    return torch.where(edges < 0, _LAST, (of_rank << 32) | edges)
