"""Adds arriving rows to the own rows that they belong to. Compiled, because PyTorch's ``index_add_`` is slow.

Letters: N own rows, R arriving rows, F features.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor


def add_rows(target: Tensor, rows: Tensor, values: Tensor) -> None:
    """``target[rows[r]] += values[r]``.

    Args:
        target: [N, F]. rows: int32 [R], no row twice. values: [R, F].
    """
    if target.device.type != "cpu":
        target.index_add_(0, rows, values)
    elif len(rows):
        _add_rows(target.numpy(), rows.numpy(), values.numpy())


@numba.njit(parallel=True, cache=True, nogil=True)
def _add_rows(target: Any, rows: Any, values: Any) -> None:  # pragma: no cover - compiled
    for r in numba.prange(len(rows)):
        into, value = target[rows[r]], values[r]
        for f in range(len(into)):
            into[f] += value[f]


def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
    """The compiled functions with arguments of the types that they are called with."""
    x = torch.zeros(1, 1, dtype=dtype).numpy()
    return [(_add_rows, (x, np.zeros(1, np.int32), x))]
