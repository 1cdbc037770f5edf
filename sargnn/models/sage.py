"""GraphSage: its settings, the kernel operations that it needs, and its builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sargnn.config.fields import one_of
from sargnn.config.run import ONE_GRAPH
from sargnn.errors import ConfigError
from sargnn.models.settings import StackSettings

if TYPE_CHECKING:
    from sargnn.config.run import RunConfig
    from sargnn.models.inputs import GraphShape
    from sargnn.models.stack import Stack


_OPERATIONS = {"mean": "sum", "max": "max", "sum": "sum", "pool": "max", "lstm": "sum"}
WEIGHTED_AGGREGATORS = ("mean", "sum")
"""Aggregators that use edge weights."""


def lstm_refusal(mode: str) -> ConfigError:
    """Why a mode cannot run it on several workers."""
    return ConfigError(
        "An LSTM needs all neighbours of a node at one time, and this mode has those of one worker after the other.",
        given=f"model.aggregator=lstm, mode={mode}",
        allowed=", ".join(f"mode={name}" for name in ONE_GRAPH) + ", world=1",
        hint="model.aggregator=pool works in every mode",
    )


@dataclass(frozen=True)
class Sage(StackSettings):
    """GraphSage (Hamilton et al., 2017).

    Attributes:
        aggregator: how neighbours' rows are folded: ``mean``, ``max``, ``sum``; ``pool``: the maximum of mapped and activated
            rows; ``lstm``: an LSTM over them in an order that is drawn each epoch; or ``FILE.py:NAME`` of a reducer's class.
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
        if self.aggregator in ("max", "pool"):
            return f"A maximum over neighbours, model.aggregator={self.aggregator}, has no place for edge weights."
        if self.aggregator == "lstm":
            return "A sequence of neighbours, model.aggregator=lstm, has no place for edge weights."
        return f"What a reducer from outside the package does, model.aggregator={self.aggregator}, knows no edge weights."

    @property
    def divides_by_weights(self) -> bool:
        return self.aggregator == "mean"

    @property
    def draws_by_id(self) -> bool:
        return super().draws_by_id or self.aggregator == "lstm"

    def check(self, run: RunConfig) -> None:
        if self.aggregator == "lstm" and run.world > 1 and run.mode.target is None and run.mode.name not in ONE_GRAPH:
            raise lstm_refusal(run.mode.name)

    def build(self, shape: GraphShape) -> Stack:
        from sargnn.models.layers.sage import build

        return build(self, shape)
