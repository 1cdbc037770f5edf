"""What a norm between two layers is.

Letters: N own rows, F features, T node types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from sargnn.comm.group import Group
from sargnn.engine.workspace import Workspace
from sargnn.rng import Draw

Found = TypeVar("Found")


class Tape:
    """What norms found in one pass, for a second one over the same rows (``engine.segments``)."""

    def __init__(self) -> None:
        self._found: list[Any] = []
        self._at: int | None = None

    def rewind(self) -> None:
        """From now on what was found is given again."""
        self._at = 0

    def once(self, find: Callable[[], Found]) -> Found:
        """What ``find()`` gives; in the second pass what it gave in the first."""
        if self._at is None:
            self._found.append(find())
            return cast(Found, self._found[-1])
        self._at += 1
        return cast(Found, self._found[self._at - 1])


class RowNorm(nn.Module, ABC):
    """A norm of the rows between two layers, with a scale gamma and a shift beta.

    Args:
        num_features: F.
        num_types: T; with more than one, parameters are [T, F] instead of [F].

    Attributes:
        tape: where statistics over rows are kept while a pass runs that is run again; None: it is not.
    """

    tape: Tape | None = None

    def __init__(self, num_features: int, num_types: int = 1) -> None:
        super().__init__()
        shape = (num_features,) if num_types == 1 else (num_types, num_features)
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))

    @property
    def fuses(self) -> bool:
        """Whether ``fused`` can give what is wanted now, also in backward."""
        return True

    @abstractmethod
    def forward(self, x: Tensor, group: Group, bounds: tuple[int, ...] | None = None, counted: Tensor | None = None) -> Tensor:
        """Normalise ``x`` [N, F] in PyTorch's own operators; in training all workers must call it.

        Args:
            bounds: T + 1, the rows of each type; (0, N) if not given.
            counted: uint8 [N], 1 for rows that statistics over rows are taken of; None: of all.
        """

    @abstractmethod
    def fused(
        self,
        work: Workspace,
        x: Tensor,
        group: Group,
        activation: str,
        ids: Tensor,
        draw: Draw | None,
        bounds: tuple[int, ...] | None = None,
        counted: Tensor | None = None,
    ) -> Tensor:
        """Normalise, activate and drop ``x`` [N, F] in one pass; in training all workers must call it.

        Args:
            activation: ``relu`` or ``elu``. ids: int64 [N], original ids. draw: None drops nothing.
            bounds, counted: as for ``forward``.
        """


def type_runs(bounds: tuple[int, ...]) -> list[tuple[int, slice]]:
    """The types that have rows here, with their rows. ``bounds``: T + 1, the rows of each type."""
    return [(t, slice(a, b)) for t, (a, b) in enumerate(zip(bounds, bounds[1:], strict=False)) if a < b]
