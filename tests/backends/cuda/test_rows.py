"""Operators on rows as Triton kernels, beside plain PyTorch."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from sargnn.backends.base import Activation, NormVectors
from sargnn.backends.cuda import rows
from sargnn.backends.cuda.rows import CudaRows
from sargnn.backends.torch.backend import TorchRows
from sargnn.rng import Draw, Purpose
from tests.backends.rows_cases import DTYPES, SHAPES, drawn, rows_of, same
from tests.parity.covering import spread

DRAW = Draw(2**32 - 5, 7, Purpose.DROPOUT, 3, 0.4)
HOW = [("relu", 0.0), ("elu", 0.4)]
CASES = [(shape, *how) for shape in SHAPES[:-1] for how in HOW]
CASES += [(SHAPES[2], "relu", 0.4), (SHAPES[2], "elu", 0.0), (SHAPES[-1], "elu", 0.4)]


@pytest.mark.parametrize(("shape", "activation", "p", "dtype"), spread(CASES, DTYPES))
def test_operators_are_pytorchs(shape: tuple[int, int], activation: str, p: float, dtype: torch.dtype, device: str) -> None:
    with patch.object(rows, "_TILE_BYTES", rows._TILE_BYTES * (1 if device == "cuda" else 4)):  # fewer, for the interpreter
        results = rows_of(CudaRows(), shape, dtype, activation, p)
    same(results, rows_of(TorchRows(), shape, dtype, activation, p), dtype)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("width", [400, 1024])
def test_wide_tables(width: int) -> None:
    results, wanted = (rows_of(by, (20, width), torch.float32, "elu", 0.4) for by in (CudaRows(), TorchRows()))
    same(results, wanted, torch.float32)


@pytest.mark.usefixtures("device")
def test_two_runs_have_the_same_bits() -> None:
    runs = [rows_of(CudaRows(), (300, 47), torch.float32, "elu", 0.4) for _ in range(2)]
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


@pytest.mark.usefixtures("device")
def test_bf16_results_are_rounded_once() -> None:
    """They are those of fp32 tables with the same entries, rounded."""
    by, (x, grad) = CudaRows(), (drawn(90, 20, dtype=torch.bfloat16, seed=seed) for seed in (0, 1))
    slope, shift, factors = (drawn(size, dtype=torch.float32, seed=seed) for size, seed in ((20, 2), (20, 3), (90, 4)))
    after = Activation("elu", torch.arange(90), DRAW)
    results = []
    for table, gradient in ((x, grad), (x.float(), grad.float())):
        out, layer, d_x, d_layer = (torch.empty_like(table) for _ in range(4))
        by.norm_act_drop(table, slope, shift, after, out)
        by.layer_norm_act_drop(table, slope, shift, 1e-5, after, layer)
        by.norm_act_drop_backward(gradient, table, NormVectors(slope, shift, shift, slope), after, d_x)
        by.layer_norm_act_drop_backward(gradient, table, slope, shift, 1e-5, after, d_layer)
        results.append([out, layer, d_x, d_layer, by.dropout(table, after.ids, DRAW), by.scale(table.clone(), factors)])
    for rounded, exact in zip(*results, strict=True):
        assert torch.equal(rounded, exact.to(torch.bfloat16))


@pytest.mark.usefixtures("device")
def test_masks_have_the_bits_of_plain_pytorch() -> None:
    """For ids up to 2^32 and seeds whose highest bit is set."""
    ids = torch.tensor([0, 1, 2**31, 2**32 - 1])
    x = torch.ones(4, 11)
    assert torch.equal(CudaRows().dropout(x, ids, DRAW) == 0, TorchRows().dropout(x, ids, DRAW) == 0)


@pytest.mark.usefixtures("device")
def test_moments_of_large_numbers() -> None:
    """The variance of entries near 10^4 in fp32: a mean of squares would have no digit of it."""
    x = (drawn(600, 3) * 1e-2 + 1e4).float()
    _, mean, squares = CudaRows().moments(x).split([1, 3, 3])
    exact = x.double()
    torch.testing.assert_close(mean, exact.mean(0), rtol=1e-7, atol=0)
    torch.testing.assert_close(squares / 600, exact.var(0, correction=0), rtol=1e-3, atol=0)


@pytest.mark.usefixtures("device")
def test_not_a_number_stays() -> None:
    """A run that has diverged is not hidden."""
    x, ones = torch.full((2, 4), torch.nan), torch.ones(4)
    for activation in ("relu", "elu"):
        out = torch.empty_like(x)
        CudaRows().norm_act_drop(x, ones, ones, Activation(activation, torch.arange(2), None), out)
        assert out.isnan().all()
    assert CudaRows().moments(x)[1:].isnan().all()
