"""Folds and moves as Triton kernels, beside plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from sargnn.backends.block import EdgeBlock, EndIds
from sargnn.backends.cuda.folds import CudaFolds, CudaMoves
from sargnn.backends.torch.backend import TorchFolds, TorchMoves
from sargnn.rng import Draw, Purpose
from tests.backends.rows_cases import CLOSE, DTYPES, drawn, folds_of, moves_of, same


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_folds_are_pytorchs(dtype: torch.dtype, width: int) -> None:
    same(folds_of(CudaFolds(), dtype, width), folds_of(TorchFolds(), dtype, width), dtype)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("edges", "width"), [(1, 3), (128, 1), (129, 300), (1500, 3), (1500, 47)])
def test_sums_of_rows_with_many_edges(edges: int, width: int) -> None:
    """Rows that go on over several programs, end where one ends, or are skipped; the same bits in each run."""
    by, ends = CudaFolds(), torch.tensor([2] * 1000 + [3] * 24 + [4] * 200 + [6, 7, 9] * 92, dtype=torch.int32)
    ends, values = ends[:edges].sort().values, drawn(edges, width, dtype=torch.float32)
    starts = ends[drawn(edges, seed=1).argsort()]
    results = []
    for folds in (by, by, TorchFolds()):
        at_ends, at_starts = torch.ones(11, width), torch.ones(11, width)
        folds.add_to_ends(values, ends, at_ends)
        folds.add_to_starts(values, starts, at_starts)
        results.append((at_ends, at_starts))
    for first, second, plain in zip(*results, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("device")
def test_softmax_of_a_row_with_many_edges() -> None:
    results = []
    for by in (CudaFolds(), TorchFolds()):
        logits, values, ends = drawn(500, 2), drawn(500, 10, seed=1), (torch.arange(500) // 300).int()
        largest, total, out = torch.full((3, 2), -torch.inf).double(), torch.zeros(3, 2).double(), torch.zeros(3, 10).double()
        for run in (slice(0, 350), slice(350, 500)):
            by.fold_softmax(logits[run], values[run], ends[run], largest, total, out)
        results.append((largest, total, out))
    same(results[0], results[1], torch.float64)


@pytest.mark.usefixtures("device")
def test_softmax_without_values() -> None:
    """Where only the weights' sums are wanted."""
    largest, total = torch.full((2, 3), -torch.inf), torch.zeros(2, 3)
    CudaFolds().fold_softmax(torch.zeros(4, 3), torch.zeros(4, 0), torch.ones(4).int(), largest, total, torch.zeros(2, 0))
    assert total.tolist() == [[0, 0, 0], [4, 4, 4]]


@pytest.mark.usefixtures("device")
def test_no_ranks() -> None:
    """A peer that sends no row it won with."""
    by, rows = CudaFolds(), torch.tensor([1], dtype=torch.int32)
    winner, none = torch.zeros(2, 3, dtype=torch.int32), torch.empty(0, dtype=torch.int32)
    places = torch.full((1, 3), 5, dtype=torch.int32)
    by.take_winners(winner, rows, none, places)
    assert (places == by.no_rank).all()
    best = torch.zeros(2, 3)
    by.merge_maxima(rows, torch.ones(1, 3), places, none, best, winner)
    assert not best.any()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edges_are_dropped_as_plain_pytorch_drops_them(dtype: torch.dtype) -> None:
    """Also those of a row with more edges than a program takes, and where few destination rows are listed."""
    ends = torch.tensor([1] * 1100 + [4] * 3, dtype=torch.int32)
    ids = EndIds(torch.arange(7) * 1000 + 2**31, torch.arange(6) + 3)
    block = EdgeBlock((torch.arange(1103) % 7).int(), ends, 7, 6, ids)
    draw = Draw(2**32 - 5, 16, Purpose.EDGE_DROPOUT, 1, 0.4)
    assert torch.equal(CudaFolds().drop_factors(block, draw, dtype), TorchFolds().drop_factors(block, draw, dtype))
    assert len(CudaFolds().drop_factors(EdgeBlock(ends[:0], ends[:0], 7, 6), draw, dtype)) == 0


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_moves_are_pytorchs(dtype: torch.dtype) -> None:
    same(moves_of(CudaMoves(), dtype), moves_of(TorchMoves(), dtype), dtype)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_moves_of_several_tables(dtype: torch.dtype) -> None:
    """Of which a message has a run each; rounding is to nearest."""
    rows, runs = torch.tensor([4, 0, 2, 1, 3], dtype=torch.int32), [slice(0, 2), slice(2, 2), slice(2, 5)]
    results = []
    for by in (CudaMoves(), TorchMoves()):
        tables = [drawn(5, 300, dtype=torch.float64 if dtype == torch.float64 else torch.float32, seed=k) for k in range(3)]
        message = torch.empty(5, 300, dtype=dtype)
        by.take_runs(tables, runs, rows, message)
        by.add_runs(tables, runs, rows, message)
        results.append((*tables, message))
    for result, plain in zip(*results, strict=True):
        torch.testing.assert_close(result, plain, rtol=CLOSE[torch.float64], atol=0)
