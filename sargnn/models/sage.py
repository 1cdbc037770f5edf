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
WEIGHTED_AGGREGATORS = ("mean", "sum")
"""Aggregators that use edge weights."""


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

    @property
    def no_weights(self) -> str | None:
        if self.aggregator in WEIGHTED_AGGREGATORS:
            return None
        if self.aggregator == "max":
            return "A maximum over neighbours, model.aggregator=max, has no place for edge weights."
        return f"What a reducer from outside the package does, model.aggregator={self.aggregator}, knows no edge weights."

    @property
    def divides_by_weights(self) -> bool:
        return self.aggregator == "mean"

    def build(self, shape: GraphShape) -> Stack:
        from sargnn.models.layers.sage import build

        return build(self, shape)
