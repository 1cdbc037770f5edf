"""GraphSage: its settings, the kernel operations that it needs, and its builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sargnn.fields import one_of
from sargnn.models.settings import StackSettings

if TYPE_CHECKING:
    from sargnn.models.inputs import GraphShape
    from sargnn.models.stack import Stack


_OPERATIONS = {"mean": "sum", "max": "max", "sum": "sum"}


@dataclass(frozen=True)
class Sage(StackSettings):
    """GraphSage (Hamilton et al., 2017).

    Attributes:
        aggregator: how neighbours' rows are folded: ``mean``, ``max``, ``sum``, or ``FILE.py:NAME`` of a reducer's class.
    """

    aggregator: str = field(metadata=one_of(tuple(_OPERATIONS)))

    @property
    def operations(self) -> tuple[str, ...]:
        if self.aggregator in _OPERATIONS:
            return (_OPERATIONS[self.aggregator],)
        from sargnn.engine.reducers import REDUCERS
        from sargnn.resolve import resolve

        return (str(resolve("aggregator", REDUCERS, self.aggregator).operation),)

    def build(self, shape: GraphShape) -> Stack:
        from sargnn.models.layers.sage import build

        return build(self, shape)
