"""Passes over bf16 rows with fp32 numbers beside them, for which PyTorch would make fp32 copies of the rows.

Sums that are gathered in several steps may stand in two tables, the upper and the lower 16 bits of each: the upper ones are
bf16 rows already, but for rounding. They take no more memory than the result and as much again.

Letters: N rows, F features.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sargnn.bf16 import array_of, narrow, narrow_bits, widen


def round_halves(upper: Tensor, lower: Tensor) -> None:
    """Sums become rows, in place: rounded to nearest, ties to even. upper: bf16 [N, F]. lower: int16 [N, F]."""
    _round(array_of(upper).reshape(-1), lower.view(-1).numpy())


def scale_rows(rows: Tensor, scale: Tensor) -> Tensor:
    """``rows[i] *= scale[i]``, in place. rows: bf16 [N, F]. scale: fp32 [N]."""
    _scale(array_of(rows), scale.numpy())
    return rows


def add_table(total: Tensor, rows: Tensor) -> None:
    """``total += rows``, both [N, F]: fp32 and bf16."""
    _add(total.numpy(), array_of(rows))


@numba.njit(parallel=True, cache=True, nogil=True)
def _round(upper: Any, lower: Any) -> None:  # pragma: no cover - compiled
    for i in numba.prange(len(upper)):
        upper[i] = narrow_bits((np.uint32(upper[i]) << np.uint32(16)) | np.uint32(np.uint16(lower[i])))


@numba.njit(parallel=True, cache=True, nogil=True)
def _scale(rows: Any, scale: Any) -> None:  # pragma: no cover - compiled
    for i in numba.prange(len(rows)):
        row, factor = rows[i], scale[i]
        for f in range(len(row)):
            row[f] = narrow(widen(row[f]) * factor, rows)


@numba.njit(parallel=True, cache=True, nogil=True)
def _add(total: Any, rows: Any) -> None:  # pragma: no cover - compiled
    for i in numba.prange(len(rows)):
        into, row = total[i], rows[i]
        for f in range(len(row)):
            into[f] += widen(row[f])


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    if dtype != torch.bfloat16:
        return []
    rows, numbers = np.zeros((1, 1), np.uint16), np.zeros((1, 1), np.float32)
    return [
        (_round, (rows[0], np.zeros(1, np.int16))),
        (_scale, (rows, numbers[0])),
        (_add, (numbers, rows)),
    ]
