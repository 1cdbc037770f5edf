"""Numbers of rows and edges that lead all workers the same way."""

from __future__ import annotations

import operator
from typing import Literal

from sargnn.modules.rows import Rows


class Count(int):
    """This worker's number of rows or edges. Whether it is zero is answered for all workers together, so that a layer that asks
    takes the same branch on each of them.

    Args:
        own: this worker's. total: of all workers. kind: of what. rows: which rows these are, where they are one table's.
    """

    total: int
    kind: Literal["nodes", "edges"]
    rows: Rows | None

    def __new__(cls, own: int, total: int, kind: Literal["nodes", "edges"], rows: Rows | None = None) -> Count:
        self = super().__new__(cls, own)
        self.total, self.kind, self.rows = total, kind, rows
        return self

    def _pair(self, other: float) -> tuple[int, float]:
        """The numbers to compare: with zero, that of all workers; with another count, both of this worker."""
        if isinstance(other, Count):
            return int(self), int(other)
        return (self.total if isinstance(other, int) and other == 0 else int(self)), other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (int, float)) and operator.eq(*self._pair(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: float) -> bool:
        return operator.lt(*self._pair(other))

    def __le__(self, other: float) -> bool:
        return operator.le(*self._pair(other))

    def __gt__(self, other: float) -> bool:
        return operator.gt(*self._pair(other))

    def __ge__(self, other: float) -> bool:
        return operator.ge(*self._pair(other))

    def __bool__(self) -> bool:
        return self.total > 0

    def __hash__(self) -> int:
        return int.__hash__(self)
