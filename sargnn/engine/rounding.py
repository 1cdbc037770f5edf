"""Sums on their way: in fp32 where rows are bf16, and rounded once, when all has arrived. For other rows nothing is done."""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.backends.memory import Pool
from sargnn.bf16 import wide


def empty_sums(pool: Pool, rows: int, width: int, like: Tensor) -> Tensor:
    """[rows, width], not initialised, for sums of rows of the dtype of ``like``."""
    return pool.empty(rows, width, like.new_empty(0, dtype=wide(like.dtype)))


def zero_sums(pool: Pool, rows: int, width: int, like: Tensor) -> Tensor:
    """[rows, width], zeros, to which rows of the dtype of ``like`` can be added."""
    return empty_sums(pool, rows, width, like).zero_()


def widened(pool: Pool, rows: Tensor) -> Tensor:
    """Rows [N, F] to which others can be added: themselves, or a copy."""
    return rows if wide(rows.dtype) == rows.dtype else empty_sums(pool, len(rows), rows.shape[1], rows).copy_(rows)


def narrowed(pool: Pool, sums: Tensor, dtype: torch.dtype, into: Tensor | None = None) -> Tensor:
    """Sums [N, F] as rows of a dtype: themselves, or a copy, in ``into`` [N, F] where that is given."""
    if sums.dtype == dtype:
        return sums
    return (pool.empty(len(sums), sums.shape[1], sums.new_empty(0, dtype=dtype)) if into is None else into).copy_(sums)
