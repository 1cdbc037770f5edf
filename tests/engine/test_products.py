"""Products of tables: fp32 and fp64 ones are PyTorch's bit for bit, bf16 ones are right at every number of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sargnn.backends.cpu.rows import CpuRows
from sargnn.bf16 import products_in_bf16

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
    unit = 2**-8 * float(bias.abs().max())  # which is rounded, too
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
