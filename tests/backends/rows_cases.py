"""What all operators on rows, folds and moves give for some tables, on PyTorch's default device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.backends.base import Activation, Folds, Moves, NormVectors, Rows
from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import RunningSoftmax
from sargnn.bf16 import wide
from sargnn.rng import Draw, Purpose

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SHAPES = [(0, 5), (1, 1), (7, 3), (300, 47), (600, 129)]
CLOSE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    numbers = torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float64, device="cpu")
    return numbers.to(torch.get_default_device(), dtype)


def same(results: Any, wanted: Any, dtype: torch.dtype) -> None:
    for result, want in zip(results, wanted, strict=True):
        assert result.dtype == want.dtype and result.shape == want.shape
        torch.testing.assert_close(result, want, rtol=CLOSE[dtype], atol=CLOSE[dtype], equal_nan=True)


def rows_of(by: Rows, shape: tuple[int, int], dtype: torch.dtype, activation: str, p: float) -> list[Tensor]:
    """What all operators on rows give, one after the other; sums over rows are divided by their number."""
    held, (n, f) = wide(dtype), shape
    x, grad = drawn(n, f, dtype=dtype), drawn(n, f, dtype=dtype, seed=1)
    slope, shift, mean, other = (drawn(f, dtype=held, seed=seed) for seed in (2, 3, 4, 5))
    inv_std, counted = drawn(f, dtype=held, seed=6).abs(), (drawn(n, seed=7) > 0).to(torch.uint8)
    draw = Draw(3, 5, Purpose.DROPOUT, 1, p) if p else None
    after = Activation(activation, torch.arange(n) * 3, draw)
    out, layer, d_x, d_layer = (torch.empty_like(x) for _ in range(4))
    by.norm_act_drop(x, slope, shift, after, out)
    norm = NormVectors(slope, shift, mean, inv_std)
    of_norm = by.norm_act_drop_backward(grad, x, norm, after, d_x)
    all_rows, some_rows = d_x.clone(), d_x.clone()
    by.norm_backward(all_rows, x, norm, shift, other, None)
    by.norm_backward(some_rows, x, norm, shift, other, counted)
    by.layer_norm_act_drop(x, slope, shift, 1e-5, after, layer)
    of_layer = by.layer_norm_act_drop_backward(grad, x, slope, shift, 1e-5, after, d_layer)
    w, g = drawn(f, 6, dtype=held, seed=8), drawn(n, 6, dtype=dtype, seed=9)
    total, of_weights = g.clone(), w.clone()
    by.add_product(total, x, w)
    by.add_transposed_product(of_weights, x, g)
    halves = x.float().view(torch.int32)
    upper, lower = (halves >> 16).to(torch.int16).view(torch.bfloat16), halves.to(torch.int16)
    by.join_halves(upper, lower)
    moments = [part for mask in (None, counted) for part in by.moments(x, mask).split([1 + f, f])]
    sums = [*moments[1::2], *of_norm, *of_layer, by.column_sums(x), by.transposed_product(x, g), of_weights]
    return [
        *(*moments[::2], out, d_x, all_rows, some_rows, layer, d_layer, total, upper),
        *(by.scale(x.clone(), drawn(n, dtype=held, seed=10)), *([] if draw is None else [by.dropout(x, after.ids, draw)])),
        *(by.product(x, w, torch.empty_like(g)), by.product(x, w, torch.empty_like(g), w[0])),
        *(by.product(x, w.to(dtype).to(held), torch.empty_like(g, dtype=held), bias) for bias in (None, w[0])),
        *(numbers / max(n, 1) for numbers in sums),  # as large as the rows are many
    ]


def folds_of(by: Folds, dtype: torch.dtype, width: int) -> list[Tensor]:
    """Messages of 90 edges into 12 rows in two runs, and partial results for some of them."""
    held, heads = wide(dtype), 3
    ends = (drawn(90).abs() * 4).long().clamp(max=11).sort().values.to(torch.int32)
    starts, rank = ends[drawn(90, seed=1).argsort()], (torch.arange(90) * 7 % 13).int()
    values, logits = drawn(90, width * heads, dtype=held).round(decimals=0), drawn(90, heads, dtype=held, seed=2)
    logits[3:5] = -torch.inf
    values[17, 0] = torch.nan
    at_ends, at_starts, sums = (torch.zeros(12, width * heads, dtype=held) for _ in range(3))
    best, winner = torch.full_like(sums, -torch.inf), torch.full(sums.shape, by.nobody, dtype=torch.int32)
    largest, total = torch.full((12, heads), -torch.inf, dtype=held), torch.zeros(12, heads, dtype=held)
    for run in (slice(0, 40), slice(40, 90), slice(90, 90)):
        by.add_to_ends(values[run].nan_to_num(), ends[run], at_ends)
        by.add_to_starts(values[run].nan_to_num(), starts[run], at_starts)
        by.fold_max(values[run], ends[run], run.start, rank, best, winner)
        by.fold_softmax(logits[run], values[run].nan_to_num(), ends[run], largest, total, sums)
    winner[best.isnan()] = 0  # whichever
    rows = torch.tensor([0, 3, 11], dtype=torch.int32)
    running = RunningSoftmax(sums / total.clamp(min=1e-3).repeat_interleave(width, 1), largest.clone(), total.clone())
    log_sum = torch.tensor([[0.5, -torch.inf, 2]] * 3, dtype=held)
    by.merge_softmax(rows, drawn(3, width * heads, dtype=dtype, seed=3), log_sum, running)
    ranks, known = torch.tensor([2, 4, 9], dtype=torch.int32), drawn(3, width * heads, dtype=dtype, seed=4)
    places = (drawn(3, width * heads, seed=5).abs() * 2).int()
    places[0] = by.no_rank
    most, who = drawn(12, width * heads, dtype=dtype, seed=6), torch.full((12, width * heads), 4, dtype=torch.int32)
    by.merge_maxima(rows, known, places, ranks, most, who)
    taken = torch.empty_like(places)
    by.take_winners(who, rows, ranks, taken)
    block = EdgeBlock(starts.remainder(9).int(), ends, 9, 12)
    factors = by.drop_factors(block, Draw(3, 5, Purpose.EDGE_DROPOUT, 1, 0.5), held)
    live = running.denominator.repeat_interleave(width, 1) > 0
    kept = [running.out.masked_fill(~live, 0), running.max_score, running.denominator]
    return [at_ends, at_starts, best, winner, largest, total, sums, *kept, most, who, taken, factors]


def moves_of(by: Moves, dtype: torch.dtype) -> list[Tensor]:
    """Rows that are taken, added the other way round, and added again and again."""
    table, rows = drawn(30, 7, dtype=dtype), torch.tensor([29, 0, 4], dtype=torch.int32)
    message = by.take(table, rows, torch.empty(3, 7, dtype=torch.bfloat16 if dtype == torch.float32 else dtype))
    by.add(table, rows.flip(0), message)
    held = wide(dtype)
    total, again = torch.ones(30, 7, dtype=held), torch.tensor([4, 4, 0, 29, 4, 0, 4], dtype=torch.int32)
    by.add_each(total, again, drawn(7, 7, dtype=held, seed=1))
    by.add_scaled(total, again.flip(0), drawn(14, dtype=held, seed=2)[::2], table, again)
    return [table, message, total]
