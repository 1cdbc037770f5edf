"""Takes rows that leave, and adds arriving ones to the own rows that they belong to, on a CPU."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.backends.base import Moves
from sargnn.bf16 import array_of, narrow, widen


class CpuMoves(Moves):
    """Compiled where PyTorch is slow."""

    def take(self, source: Tensor, rows: Tensor, out: Tensor) -> Tensor:
        if source.dtype == out.dtype:
            return torch.index_select(source, 0, rows, out=out)
        _take_rows(array_of(source), rows.numpy(), array_of(out))
        return out

    def add(self, target: Tensor, rows: Tensor, values: Tensor) -> None:
        if len(rows):
            _add_rows(array_of(target), rows.numpy(), array_of(values))


@numba.njit(parallel=True, cache=True, nogil=True)
def _take_rows(source: Any, rows: Any, out: Any) -> None:  # pragma: no cover - compiled
    for r in numba.prange(len(rows)):
        into, value = out[r], source[rows[r]]
        for f in range(len(into)):
            into[f] = narrow(widen(value[f]), out)


@numba.njit(parallel=True, cache=True, nogil=True)
def _add_rows(target: Any, rows: Any, values: Any) -> None:  # pragma: no cover - compiled
    for r in numba.prange(len(rows)):
        into, value = target[rows[r]], values[r]
        for f in range(len(into)):
            into[f] = narrow(widen(into[f]) + widen(value[f]), into)


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x, rows = array_of(torch.zeros(1, 1, dtype=dtype)), np.zeros(1, np.int32)
    if dtype != torch.float32:
        return [(_add_rows, (x, rows, x))]
    half = array_of(torch.zeros(1, 1, dtype=torch.bfloat16))  # on the wire
    return [(_add_rows, (x, rows, x)), (_add_rows, (x, rows, half)), (_take_rows, (x, rows, half))]
