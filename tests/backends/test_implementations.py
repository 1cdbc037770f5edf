"""Every operation of every backend beside plain PyTorch, which is written as the equations are."""

from __future__ import annotations

import pytest
import torch

from sargnn.backends import BACKENDS
from sargnn.backends.base import Backend
from sargnn.resolve import load_attribute
from tests.backends.rows_cases import DTYPES, SHAPES, folds_of, moves_of, rows_of, same

OTHERS = [name for name in BACKENDS if name not in ("torch", "cuda")]  # that one has tests of its own


def backend(name: str) -> Backend:
    made: Backend = load_attribute(BACKENDS[name])(torch.device("cpu"))
    return made


@pytest.mark.parametrize(("activation", "p"), [("relu", 0.0), ("elu", 0.4)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_rows(name: str, shape: tuple[int, int], dtype: torch.dtype, activation: str, p: float) -> None:
    wanted = rows_of(backend("torch").rows, shape, dtype, activation, p)
    results = rows_of(backend(name).rows, shape, dtype, activation, p)
    same(results, wanted, dtype)


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OTHERS)
def test_folds(name: str, dtype: torch.dtype, width: int) -> None:
    same(folds_of(backend(name).folds, dtype, width), folds_of(backend("torch").folds, dtype, width), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OTHERS)
def test_moves(name: str, dtype: torch.dtype) -> None:
    same(moves_of(backend(name).moves, dtype), moves_of(backend("torch").moves, dtype), dtype)
