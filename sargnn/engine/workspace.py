"""What an engine's operators share: what computes, memory for large tensors, and the record of where time goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch

from sargnn.backends.base import Backend, Rows
from sargnn.backends.choose import make_backend
from sargnn.backends.memory import Pool
from sargnn.bf16 import products_in_bf16
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
