"""What an engine's operators share: what computes, memory for large tensors, and the record of where time goes.

Sums on their way are in fp32 where rows are bf16, and rounded once, when all has arrived. For other rows nothing is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sargnn.backends.base import Backend, Rows
from sargnn.backends.choose import make_backend
from sargnn.backends.memory import Pool
from sargnn.bf16 import products_in_bf16, wide
from sargnn.profile import LINEAR, Profile


@dataclass(frozen=True)
class Workspace:
    """One engine's means of computing. ``half_products``: of fp32 tables, of their entries rounded to bf16."""

    pool: Pool = field(default_factory=Pool)
    profile: Profile = field(default_factory=lambda: Profile(recording=False))
    half_products: bool = False
    backend: Backend = field(default_factory=lambda: make_backend("auto", torch.device("cpu")))

    @property
    def rows(self) -> Rows:
        return self.backend.rows

    def linear(self) -> AbstractContextManager[None]:
        return where_products_are(self.profile, self.half_products)


@contextmanager
def where_products_are(profile: Profile, half_products: bool) -> Iterator[None]:
    """A span of linear maps, whose products are taken of entries rounded to bf16 where ``half_products`` says so."""
    with profile.span(LINEAR), products_in_bf16() if half_products else nullcontext():
        yield


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
