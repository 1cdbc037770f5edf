"""Settings that every stack of graph layers has."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sargnn.config.fields import AT_LEAST_ONE, PROBABILITY, number
from sargnn.config.run import ModelSettings


@dataclass(frozen=True)
class StackSettings(ModelSettings, ABC):
    """What every stack of graph layers has.

    Attributes:
        hidden: width of the rows between layers. num_layers: L.
        norm, activation: between layers. residual: add a layer's input to its output, before the norm.
        dropout: between layers. input_dropout: of the first layer's input.
    """

    hidden: int = field(metadata=AT_LEAST_ONE)
    num_layers: int = field(metadata=number(low=1, high=256))
    norm: Literal["batch", "layer", "none"]
    activation: Literal["relu", "elu"]
    residual: bool
    dropout: float = field(metadata=PROBABILITY)
    input_dropout: float = field(metadata=PROBABILITY)

    @property
    def draws_by_id(self) -> bool:
        return bool(self.dropout or self.input_dropout)

    @property
    def has_embeddings(self) -> bool:
        return self.num_layers > 1

    @property
    def aggregations(self) -> int | None:
        return self.num_layers if self.target is None else None

    @property
    def norms_over_rows(self) -> bool:
        return self.norm == "batch"


class WeightedSums:
    """What models have in common that sum rows, times edge weights if there are any; it comes before their other base."""

    @property
    def operations(self) -> tuple[str, ...]:
        return ("sum",)

    @property
    def no_weights(self) -> str | None:
        return None


class SymmetricSums(WeightedSums):
    """Those that sum by ``D^-1/2 (A + I) D^-1/2`` (``models/layers/gcn.py``)."""

    adds_self_loops: ClassVar[bool] = True

    @property
    def divides_by_weights(self) -> bool:
        return True
