"""A fold over the edges into each node that nobody has computed yet: ``lazy.Folded`` stands for its rows.

Letters: M output rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sargnn.modules.expressions import Node
from sargnn.modules.tag import tagged

if TYPE_CHECKING:
    from sargnn.modules.folds import Edges
    from sargnn.modules.lazy import UpTo


class Fold:
    """A fold over the edges into each node, computed when somebody asks for its rows.

    Args:
        edges: which edges.
        kind: ``sum``, ``mean``, ``max``, ``min`` or ``mul``; ``count``: the number of edges.
        node: what is folded; None of a count.
        dtype: of the rows.
        origin: the expression that ``node`` is of the reversed edges; ``node`` itself if not given.
    """

    def __init__(self, edges: Edges, kind: str, node: Node | None, dtype: torch.dtype, origin: Node | None = None) -> None:
        self.edges, self.kind, self.node, self.dtype = edges, kind, node, dtype
        self.origin = node if origin is None else origin
        self.at_least, self.plus = 0, 0.0
        self.up_to: UpTo | None = None
        self.shape: tuple[int, ...] = () if node is None else node.shape
        self._rows: Tensor | None = None
        self._version = 0
        self._tracked = torch.is_grad_enabled()

    @property
    def writes(self) -> int:
        return 0 if self._rows is None else self._rows._version - self._version

    @property
    def is_tracked_as_now(self) -> bool:
        """Whether its rows have a gradient where what is computed now has one."""
        return self._tracked == torch.is_grad_enabled()

    @property
    def is_computed(self) -> bool:
        return self._rows is not None

    def check(self) -> None:
        """Raise ``ConfigError`` where it has fewer rows in one process: up to the last node that has edges. Who reads it at the
        edges' ends needs not ask. All workers must ask together."""
        if self.up_to is not None:
            self.up_to.check()

    def rows(self) -> Tensor:
        """[M, ...]; all workers must ask together."""
        if self._rows is not None:
            return self._rows
        if self.kind == "count":
            degrees = self.edges.plan.in_degrees.clamp(min=self.at_least).to(self.dtype)
            rows = tagged(degrees.view(-1, *[1] * len(self.shape)).expand(-1, *self.shape), self.edges.destinations)
        else:
            assert self.node is not None
            with torch.set_grad_enabled(self._tracked):
                rows = self.edges.folded(self.kind, self.node, f"{self.kind} over edges")
                if self.plus:
                    rows = tagged(rows + self.plus, self.edges.destinations)
        self._rows, self._version = rows, rows._version
        return rows

    def with_shape(self, shape: tuple[int, ...], at_least: int | None = None) -> Fold:
        """A count with further dimensions, or clamped."""
        other = Fold(self.edges, self.kind, self.node, self.dtype)
        other.shape, other.at_least = shape, self.at_least if at_least is None else at_least
        other.up_to = self.up_to
        return other

    def with_added(self, number: float) -> Fold:
        """A sum with a small number added, which its quotients that are a softmax leave out."""
        other = Fold(self.edges, self.kind, self.node, self.dtype, self.origin)
        other.plus, other._tracked, other.up_to = self.plus + number, self._tracked, self.up_to
        return other
