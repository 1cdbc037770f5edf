"""Products of tables: fp32 and fp64 ones are PyTorch's bit for bit, bf16 ones are right at every number of rows; fp32 ones on
tiles, as sums of bf16 terms, are as near as they say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sargnn.backends.cpu.rows import CpuRows
from sargnn.bf16 import products_in_bf16
from sargnn.cpu import PRODUCT_TERMS, has_tiles
from tests.backends.emulated_tiles import emulate_tiles

ROWS = [0, 1, 127, 128, 129, 1023, 1024, 1025, 2200, 8192, 8200]
BF16 = torch.bfloat16
OPERATORS = CpuRows()
product, add_product = OPERATORS.product, OPERATORS.add_product
transposed_product, add_transposed_product = OPERATORS.transposed_product, OPERATORS.add_transposed_product


def drawn(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_others_are_pytorchs(dtype: torch.dtype) -> None:
    x, g, w, bias = (one.to(dtype) for one in (drawn(3000, 40, 1), drawn(3000, 24, 2), drawn(40, 24, 3), drawn(1, 24, 4)[0]))
    out = torch.empty(3000, 24, dtype=dtype)
    assert torch.equal(product(x, w, out), x @ w)
    assert torch.equal(product(x, w, out, bias), torch.addmm(bias, x, w))
    total = g.clone()
    add_product(total, x, w)
    assert torch.equal(total, g.clone().addmm_(x, w))
    assert torch.equal(transposed_product(x, g), x.T @ g)
    total = w.clone()
    add_transposed_product(total, x, g)
    assert torch.equal(total, w.clone().addmm_(x.T, g))


@pytest.mark.parametrize("rows", ROWS)
def test_of_bf16_rows(rows: int) -> None:
    """One rounding of the result; sums of products over rows are fp32."""
    x, g, start = (one.to(BF16) for one in (drawn(rows, 40, 1), drawn(rows, 24, 2), drawn(rows, 24, 5)))
    w, bias = drawn(40, 24, 3), drawn(1, 24, 4)[0]
    wanted = x.double() @ w.to(BF16).double()
    out = product(x, w, torch.empty(rows, 24, dtype=BF16))
    torch.testing.assert_close(out.double(), wanted, rtol=2**-8, atol=1e-5)
    out = product(x, w, torch.empty(rows, 24, dtype=BF16), bias)
    unit = 2**-8 * float(bias.abs().max())  # where there are no tiles the bias is rounded, too
    torch.testing.assert_close(out.double(), wanted + bias.double(), rtol=2**-8, atol=unit)
    scores = product(x, w, torch.empty(rows, 24))  # the weights keep what fp32 has, or bf16
    torch.testing.assert_close(scores.double(), x.double() @ w.double(), rtol=2**-6, atol=0.1)
    total = start.clone()
    add_product(total, x, w)
    torch.testing.assert_close(total.double(), start.double() + wanted, rtol=2**-7, atol=1e-2)
    sums = start.float()
    add_product(sums, x, w)
    torch.testing.assert_close(sums.double(), start.double() + wanted, rtol=2**-7, atol=2**-7 * 30)
    gradient = transposed_product(x, g)
    assert gradient.dtype == torch.float32
    want = x.double().T @ g.double()
    assert (gradient.double() - want).abs().max() <= 2**-8 * (1 + rows) ** 0.5 * 4


@pytest.mark.parametrize("rows", ROWS)
def test_of_fp32_rows_in_bf16(rows: int) -> None:
    x, g, w = drawn(rows, 64, 1), drawn(rows, 64, 2), drawn(64, 64, 3)
    with products_in_bf16():
        out, gradient = product(x, w, torch.empty(rows, 64)), transposed_product(x, g)
        total = g.clone()
        add_product(total, x, w)
    assert out.dtype == gradient.dtype == torch.float32
    size = 8 * 2**-8  # of a sum of 64 products, each rounded twice
    assert (out - x @ w).abs().max() <= 4 * size if rows else True
    assert (total - (g + x @ w)).abs().max() <= 4 * size if rows else True
    assert (gradient - x.T @ g).abs().max() <= 2**-8 * 4 * (1 + rows) ** 0.5
    assert torch.equal(x @ w, torch.mm(x, w))  # outside products are fp32 again


def test_the_same_whatever_comes_behind() -> None:
    """A row's product does not depend on the block that it stands in."""
    x, w = drawn(3000, 64, 1).to(BF16), drawn(64, 64, 2)
    whole = product(x, w, torch.empty(3000, 64, dtype=BF16))
    for rows in (1, 100, 1024, 2000):
        assert torch.equal(product(x[:rows], w, torch.empty(rows, 64, dtype=BF16)), whole[:rows])


LOST = {2: 1.0001 * 2**-15, 3: 1.001 * 2**-24}
"""What a product of two entries lacks at most, by the number of terms (``tile_products``)."""
UNIT = 2**-24
TERMS = pytest.mark.parametrize("terms", PRODUCT_TERMS.values())


def of_all_sizes(rows: int, columns: int, seed: int) -> Tensor:
    """Numbers from 2^-20 to 2^20 beside each other, zeros, and the last before the next power of two, which rounds up to it."""
    x = drawn(rows, columns, seed) * 2.0 ** torch.randint(
        -20, 21, (rows, columns), generator=torch.Generator().manual_seed(seed)
    )
    return x.masked_fill(drawn(rows, columns, seed + 1) > 1, 0).masked_fill(drawn(rows, columns, seed + 2) > 2, 2 - 2**-23)


def in_terms(terms: int) -> CpuRows:
    rows = CpuRows()
    rows.product_terms = terms
    return rows


def assert_within(out: Tensor, start: Tensor | float, x: Tensor, w: Tensor, terms: int, runs: int = 1) -> None:
    """The bound of ``tile_products`` holds against fp64, and the worst of six products is about PyTorch's."""
    products, count = {0: 0, 2: 3, 3: 6}[terms] * runs, x.shape[1]
    exact, size = start + x.double() @ w.double(), x.double().abs() @ w.double().abs()
    first = products * UNIT * torch.as_tensor(start).abs()
    error = (out.double() - exact).abs()
    assert bool((error <= (LOST.get(terms, 0) + 1.02 * UNIT * (count + products)) * size + first).all())
    if terms == 3 and isinstance(start, float) and len(x):
        stock = ((x @ w).double() - exact).abs()
        assert (error / size).nan_to_num().max() <= 2 * (stock / size).nan_to_num().max() + 2 * UNIT


@TERMS
@pytest.mark.parametrize("shape", [(0, 8, 8), (1, 1, 1), (37, 33, 24), (1025, 100, 47), (1024, 64, 32)], ids=str)
def test_as_sums_of_terms(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], terms: int) -> None:
    emulate_tiles(monkeypatch)
    (n, k, o), by = shape, in_terms(terms)
    x, weight, bias, start = of_all_sizes(n, k, 1), of_all_sizes(o, k + 3, 4), drawn(1, o, 7)[0], of_all_sizes(n, o, 8)
    for table, w in (
        (x, weight[:, 3:].T),
        (torch.cat([x, x], 1)[:, :k], weight.T[3:].contiguous()),
        (x.T.contiguous().T, weight.T[3:]),
    ):
        assert_within(by.product(table, w, torch.full((n, o), torch.nan)), 0.0, x, w, terms)
        out = by.product(table, w, torch.full((n, o), torch.nan), bias)
        assert_within(out, bias.double(), x, w, terms)
        total = start.clone()
        by.add_product(total, table, w)
        assert_within(total, start.double(), x, w, terms)
    g, runs = of_all_sizes(n, o, 10), n // 1024 + 1
    assert_within(by.transposed_product(x, g), 0.0, x.T, g, terms, runs)
    sums = weight[:, 3:].T.clone()
    by.add_transposed_product(sums, x, g)
    assert_within(sums, weight[:, 3:].T.double(), x.T, g, terms, runs)
    assert by.uncounted_flops == {2: 3, 3: 6}[terms] * 11 * 2 * n * k * o


@TERMS
def test_of_terms_what_is_not_finite(monkeypatch: pytest.MonkeyPatch, terms: int) -> None:
    """Rows with it are not a number; so are those of a number that bf16 has no finite one for. Others are what they were."""
    emulate_tiles(monkeypatch)
    x, w = drawn(40, 40, 1), drawn(40, 8, 2)
    x[3, 5], x[4, 6], x[5, 7], x[6, 8] = torch.nan, torch.inf, -torch.inf, 2.0**128 - 2.0**119
    out = in_terms(terms).product(x, w, torch.empty(40, 8))
    assert out[3:7].isnan().all() and torch.equal(out[7:], in_terms(terms).product(x[7:], w, torch.empty(33, 8)))
    x[6, 8] = 2.0**128 - 2.0**120
    assert in_terms(terms).product(x, w * 2.0**-40, torch.empty(40, 8))[6].isfinite().all()


def test_terms_are_fp32_s_without_tiles_and_of_other_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    x, g, w = drawn(300, 40, 1), drawn(300, 24, 2), drawn(40, 24, 3)
    by = in_terms(2)
    assert has_tiles() or torch.equal(by.product(x, w, torch.empty(300, 24)), x @ w)
    assert has_tiles() or torch.equal(by.transposed_product(x, g), x.T @ g)
    emulate_tiles(monkeypatch)
    assert torch.equal(by.product(x.double(), w.double(), torch.empty(300, 24, dtype=torch.float64)), x.double() @ w.double())
