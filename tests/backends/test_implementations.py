"""Every operation of every backend beside plain PyTorch, which is written as the equations are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sargnn.backends import BACKENDS
from sargnn.backends.base import Activation, Backend, NormVectors
from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import RunningSoftmax
from sargnn.bf16 import wide
from sargnn.resolve import load_attribute
from sargnn.rng import Draw, Purpose

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SHAPES = [(0, 5), (1, 1), (7, 3), (300, 47), (600, 129)]
OTHERS = [name for name in BACKENDS if name != "torch"]
CLOSE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def backend(name: str) -> Backend:
    made: Backend = load_attribute(BACKENDS[name])(torch.device("cpu"))
    return made


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def same(results: Any, wanted: Any, dtype: torch.dtype) -> None:
    for result, want in zip(results, wanted, strict=True):
        assert result.dtype == want.dtype and result.shape == want.shape
        torch.testing.assert_close(result, want, rtol=CLOSE[dtype], atol=CLOSE[dtype], equal_nan=True)


def rows_of(name: str, shape: tuple[int, int], dtype: torch.dtype, activation: str, p: float) -> list[Tensor]:
    """What all operators on rows give, one after the other."""
    by, held, (n, f) = backend(name).rows, wide(dtype), shape
    x, grad = drawn(n, f, dtype=dtype), drawn(n, f, dtype=dtype, seed=1)
    slope, shift, mean, other = (drawn(f, dtype=held, seed=seed) for seed in (2, 3, 4, 5))
    inv_std, counted = drawn(f, dtype=held, seed=6).abs(), (drawn(n, seed=7) > 0).to(torch.uint8)
    draw = Draw(3, 5, Purpose.DROPOUT, 1, p) if p else None
    after = Activation(activation, torch.arange(n) * 3, draw)
    out, layer, d_x, d_layer = (torch.empty_like(x) for _ in range(4))
    by.norm_act_drop(x, slope, shift, after, out)
    norm = NormVectors(slope, shift, mean, inv_std)
    sums = by.norm_act_drop_backward(grad, x, norm, after, d_x)
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
    return [
        *(by.moments(x), by.moments(x, counted), out, d_x, *sums, all_rows, some_rows, layer, d_layer, *of_layer),
        *(by.column_sums(x), by.scale(x.clone(), drawn(n, dtype=held, seed=10)), upper),
        *(by.product(x, w, torch.empty_like(g)), by.product(x, w, torch.empty_like(g), w[0]), total),
        *(by.transposed_product(x, g), of_weights, *([] if draw is None else [by.dropout(x, after.ids, draw)])),
    ]


@pytest.mark.parametrize(("activation", "p"), [("relu", 0.0), ("elu", 0.4)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_rows(name: str, shape: tuple[int, int], dtype: torch.dtype, activation: str, p: float) -> None:
    wanted = rows_of("torch", shape, dtype, activation, p)
    results = rows_of(name, shape, dtype, activation, p)
    # Sums over rows are as large as the rows are many.
    scale = max(1.0, shape[0]) if dtype != torch.float64 else 1.0
    same([r / scale for r in results], [w / scale for w in wanted], dtype)


def folds_of(name: str, dtype: torch.dtype, width: int) -> list[Tensor]:
    """Messages of 90 edges into 12 rows in two runs, and partial results for some of them."""
    by, held, heads = backend(name).folds, wide(dtype), 3
    ends = (drawn(90).abs() * 4).long().clamp(max=11).sort().values.to(torch.int32)
    starts, rank = ends[torch.randperm(90, generator=torch.Generator().manual_seed(1))], (torch.arange(90) * 7 % 13).int()
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


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OTHERS)
def test_folds(name: str, dtype: torch.dtype, width: int) -> None:
    same(folds_of(name, dtype, width), folds_of("torch", dtype, width), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OTHERS)
def test_moves(name: str, dtype: torch.dtype) -> None:
    moved = []
    for by in (backend(name).moves, backend("torch").moves):
        table, rows = drawn(30, 7, dtype=dtype), torch.tensor([29, 0, 4], dtype=torch.int32)
        message = by.take(table, rows, torch.empty(3, 7, dtype=torch.bfloat16 if dtype == torch.float32 else dtype))
        by.add(table, rows.flip(0), message)
        moved.append((table, message))
    same(moved[0], moved[1], dtype)
