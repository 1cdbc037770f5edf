"""Products on the CPU's tiles: rounded once, whatever the shape, the strides and the formats; the same on any block of rows."""

from __future__ import annotations

import numba
import pytest
import torch
from torch import Tensor

from sargnn.backends.cpu.rows import CpuRows
from sargnn.backends.cpu.tile_products import multiply, sum_of_products
from sargnn.cpu import has_tiles

pytestmark = pytest.mark.skipif(not has_tiles(), reason="this CPU, or its system, has no tiles for bf16 (AMX)")
BF16, FP32 = torch.bfloat16, torch.float32
SHAPES = [(1, 1, 1), (31, 40, 24), (32, 64, 32), (33, 100, 47), (100, 256, 256), (513, 349, 33), (1100, 31, 349), (5, 700, 3)]


def drawn(rows: int, columns: int, seed: int, dtype: torch.dtype = FP32) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rounded(x: Tensor) -> Tensor:
    return x.to(BF16).double()


def assert_rounded_once(found: Tensor, exact: Tensor, terms: int) -> None:
    """Within half a unit in the last place of bf16, or what fp32 sums of so many terms lose."""
    lost = 2**-22 * terms
    allowed = exact.abs() * 2**-8 + lost if found.dtype == BF16 else torch.full_like(exact, lost)
    assert bool(((found.double() - exact).abs() <= allowed).all())


@pytest.mark.parametrize("out", [BF16, FP32])
@pytest.mark.parametrize("rows", [BF16, FP32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_by_weights(shape: tuple[int, int, int], rows: torch.dtype, out: torch.dtype) -> None:
    n, k, o = shape
    x, weight, bias, start = drawn(n, k, 1, rows), drawn(o, k, 2), drawn(1, o, 3)[0], drawn(n, o, 4, out)
    exact = rounded(x) @ rounded(weight).T
    for w in (weight.T, weight.T.contiguous(), weight.T.to(BF16), torch.cat([weight.T, weight.T], 1)[:, :o]):
        found = torch.full((n, o), torch.nan, dtype=out)
        multiply(x, w, found, bias)
        assert_rounded_once(found, exact + bias.double(), 2 * k)
        found = start.clone()
        multiply(x, w, found, add=True)
        assert_rounded_once(found, start.double() + exact, 2 * k)


@pytest.mark.parametrize("rows", [BF16, FP32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_over_rows(shape: tuple[int, int, int], rows: torch.dtype) -> None:
    n, k, o = shape
    x, g = drawn(n, k, 1, rows), drawn(n, o, 2, rows)
    found = sum_of_products(x, g)
    assert found.dtype == FP32 and found.shape == (k, o)
    assert_rounded_once(found, rounded(x).T @ rounded(g), 4 * n)


def test_rows_of_other_tables() -> None:
    """Runs of rows and columns of a larger table are read and written in place, and nothing beside them."""
    table, target = drawn(90, 200, 1, BF16), torch.zeros(90, 100, dtype=BF16)
    w = drawn(64, 40, 2)
    multiply(table[3:80, 5:69], w, target[4:81, 7:47])
    assert_rounded_once(target[4:81, 7:47].clone(), rounded(table[3:80, 5:69]) @ rounded(w), 128)
    target[4:81, 7:47] = 0
    assert not target.any()
    found = sum_of_products(table[3:80, 5:69], table[3:80, 100:130])
    assert_rounded_once(found, rounded(table[3:80, 5:69]).T @ rounded(table[3:80, 100:130]), 320)
    assert_rounded_once(sum_of_products(table.T, table.T[:, :7]), rounded(table).double() @ rounded(table)[:7].T, 800)


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_nothing_there(dtype: torch.dtype) -> None:
    multiply(drawn(0, 8, 1, dtype), drawn(8, 4, 2), torch.empty(0, 4, dtype=dtype))
    assert torch.equal(sum_of_products(drawn(0, 8, 1, dtype), drawn(0, 4, 2, dtype)), torch.zeros(8, 4))


def test_not_a_number_stays_so() -> None:
    x = torch.ones(40, 40, dtype=BF16)
    x[3, 5], x[4, 6] = torch.nan, torch.inf
    out = torch.empty(40, 8, dtype=BF16)
    multiply(x, torch.ones(40, 8), out)
    assert out[3].isnan().all() and out[4].isinf().all() and out[[0, 1, 2, *range(5, 40)]].isfinite().all()


def test_threads_and_neighbours_change_nothing_of_a_row() -> None:
    x, w = drawn(3000, 70, 1, BF16), drawn(70, 50, 2)
    before = numba.get_num_threads()
    found = []
    try:
        for threads in sorted({1, min(2, numba.config.NUMBA_NUM_THREADS)}):
            numba.set_num_threads(threads)
            out = torch.empty(3000, 50, dtype=BF16)
            multiply(x, w, out)
            found.append(out)
            assert_rounded_once(sum_of_products(x, x), rounded(x).T @ rounded(x), 12000)
    finally:
        numba.set_num_threads(before)
    assert all(torch.equal(one, found[0]) for one in found)
    some = torch.empty(77, 50, dtype=BF16)
    multiply(x[100:177], w, some)
    assert torch.equal(some, found[0][100:177])


def test_what_is_multiplied_is_counted() -> None:
    rows = CpuRows()
    rows.product(drawn(10, 20, 1, BF16), drawn(20, 30, 2), torch.empty(10, 30))
    rows.add_product(torch.zeros(10, 30), drawn(10, 20, 1, BF16), drawn(20, 30, 2))
    rows.transposed_product(drawn(10, 20, 1, BF16), drawn(10, 30, 2, BF16))
    assert rows.uncounted_flops == 3 * 2 * 10 * 20 * 30
