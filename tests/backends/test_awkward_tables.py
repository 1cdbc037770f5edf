"""Rows that begin anywhere in memory and lie apart, and several threads, change no bit of what is computed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from sargnn import native
from sargnn.backends.base import Activation, NormVectors
from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.folds import CpuFolds, CpuMoves
from sargnn.backends.cpu.rows import CpuRows
from sargnn.backends.cpu.sums import FusedMax
from sargnn.bf16 import wide
from sargnn.rng import Draw, Purpose, dropout_rows
from tests.backends.rows_cases import drawn

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
WIDTHS = [1, 3, 15, 16, 17, 63, 64, 65, 100, 257]
DRAW = Draw(3, 5, Purpose.DROPOUT, 1, 0.4)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = native.num_threads()
    yield
    native.set_threads(before)


def apart(x: Tensor) -> Tensor:
    """The same rows, five numbers apart, the first one in the middle of a vector; what is between is not a number."""
    rows, width = x.shape
    room = torch.full((3 + rows * (width + 5),), torch.nan, dtype=torch.float64).to(x.dtype)
    table = room.as_strided((rows, width), (width + 5, 1), 3)
    table.copy_(x)
    return table


def assert_between_untouched(table: Tensor) -> None:
    rows, width = table.shape
    room = torch.as_strided(table, (rows, 5), (width + 5, 1), table.storage_offset() + width)
    if table.is_floating_point():
        assert room.isnan().all()


@pytest.mark.parametrize("rows", [0, 1, 300])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows(dtype: torch.dtype, width: int, rows: int) -> None:
    by, held = CpuRows(), wide(dtype)
    x, grad = drawn(rows, width, dtype=dtype), drawn(rows, width, dtype=dtype, seed=1)
    vectors = NormVectors(*(drawn(width, dtype=held, seed=seed) for seed in range(2, 6)))
    ids, factors = torch.arange(rows) * 7, drawn(rows, dtype=held, seed=6)
    found = []
    for threads, lay in ((1, torch.clone), (3, apart)):
        native.set_threads(threads)
        tables = [lay(x) for _ in range(6)]
        out, d_x, layer, d_layer, scaled, dropped = tables
        sums: list[Tensor] = []
        for activation in ("relu", "elu", "none"):
            after = Activation(activation, ids, DRAW)
            by.norm_act_drop(lay(x), vectors.slope, vectors.shift, after, out)
            sums += by.norm_act_drop_backward(lay(grad), lay(x), vectors, after, d_x)
            by.layer_norm_act_drop(lay(x), vectors.slope, vectors.shift, 1e-5, after, layer)
            sums += by.layer_norm_act_drop_backward(lay(grad), lay(x), vectors.slope, vectors.shift, 1e-5, after, d_layer)
            sums += [table.clone() for table in tables]
        by.norm_backward(d_x, lay(x), vectors, vectors.slope, vectors.shift, None)
        by.scale(scaled, factors)
        dropout_rows(lay(x), ids, DRAW, out=dropped)
        sums.append(by.moments(lay(x)))
        found.append([*tables, *sums])
    for table in tables:
        assert_between_untouched(table)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("wire", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moves_of_many_tables(dtype: torch.dtype, wire: torch.dtype, width: int) -> None:
    """One call for all tables; one that comes twice, and one of which no row is moved."""
    tables = [drawn(20 + k, width, dtype=dtype, seed=k) for k in range(4)]
    places, runs = [0, 1, 2, 0, 3], [slice(0, 6), slice(6, 6), slice(6, 9), slice(9, 12), slice(12, 20)]
    rows = torch.cat([torch.arange(6), torch.tensor([21, 0, 7]), torch.arange(8, 11), torch.arange(8)]).to(torch.int32)
    for lay in (torch.clone, apart):
        held = [lay(table) for table in tables]
        given, message = [held[k] for k in places], lay(torch.zeros(20, width, dtype=wire))
        CpuMoves().take_runs(given, runs, rows, message)
        wanted = torch.cat([tables[k][rows[run].long()] for k, run in zip(places, runs, strict=True)])
        assert torch.equal(message, wanted.to(wire))
        CpuMoves().add_runs(given, runs, rows, message)
        for k, run in zip(places, runs, strict=True):
            chosen = rows[run].long()
            assert torch.equal(held[k][chosen], (tables[k][chosen].float() + message[run].float()).to(dtype))
    CpuMoves().take_runs([], [], rows[:0], message[:0])


def numbers_of_edges(count: int, rows: int, seed: int) -> Tensor:
    return torch.randint(rows, (count,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


@pytest.mark.parametrize("width", [1, 16, 65])
def test_folds_of_long_runs(width: int) -> None:
    """Destinations with more edges than a thread takes at a time, and some with none."""
    ends = numbers_of_edges(6000, 40, 0).clamp(max=5).sort().values
    values, rank = drawn(6000, width, dtype=torch.float32).round(decimals=1), numbers_of_edges(6000, 100, 1)
    logits, found = drawn(6000, 1, dtype=torch.float32, seed=2), []
    for threads, lay in ((1, torch.clone), (3, apart)):
        native.set_threads(threads)
        sums, starts, best, out = (lay(torch.zeros(41, width)) for _ in range(4))
        winner, largest, total = (
            torch.full((41, width), -1, dtype=torch.int32),
            torch.full((41, 1), -torch.inf),
            torch.zeros(41, 1),
        )
        by = CpuFolds()
        by.add_to_ends(values, ends, sums)
        by.add_to_starts(values, ends.flip(0), starts)
        by.fold_max(values, ends, 0, rank, best, winner)
        by.fold_softmax(logits, values, ends, largest, total, out)
        found.append([sums, starts, best, winner, largest, total, out])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    wanted = torch.zeros(41, width, dtype=torch.float64).index_add_(0, ends.long(), values.double())
    torch.testing.assert_close(found[0][0].double(), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("width", [*WIDTHS, 31, 32, 33, 48])
@pytest.mark.parametrize("dtype", DTYPES)
def test_maxima(dtype: torch.dtype, width: int) -> None:
    ends, starts = numbers_of_edges(900, 50, 0).clamp(max=30).sort().values, numbers_of_edges(900, 40, 1)
    block = EdgeBlock(starts, ends, 40, 50)
    src, grad = drawn(40, width, dtype=dtype).round(decimals=0), drawn(50, width, dtype=dtype, seed=1)
    src[7, width // 2] = torch.nan
    dense = torch.full((50, 40), -torch.inf)
    dense[ends.long(), starts.long()] = 0
    values = dense[:, :, None] + src.float().nan_to_num(99.0)
    for lay in (torch.clone, apart):
        best, winner = (
            lay(torch.full((50, width), -torch.inf, dtype=dtype)),
            torch.full((50, width), 2**31 - 1, dtype=torch.int32),
        )
        FusedMax().forward(block, lay(src), best, winner)
        assert torch.equal(best.float().nan_to_num(99.0, neginf=-torch.inf), values.amax(1))
        first = torch.where(values == values.amax(1, keepdim=True), torch.arange(40)[None, :, None], 40).amin(1)
        there = values.amax(1) > -torch.inf
        assert torch.equal(winner[there], block.src_id_rank[first[there]])
        out = lay(torch.ones(40, width, dtype=dtype))
        FusedMax().backward(block, lay(grad), winner, out, add=True)
        won = (torch.arange(40)[None, :, None] == first[:, None, :]) & there[:, None, :]
        wanted = 1 + (won * grad.double()[:, None, :]).sum(0)
        torch.testing.assert_close(out.double(), wanted, rtol=2**-8 if dtype == torch.bfloat16 else 1e-5, atol=1e-4)
