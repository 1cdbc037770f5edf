"""SGC: its settings, the kernel operations that it needs, and its builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sargnn.config.fields import PROBABILITY, number
from sargnn.config.run import ModelSettings
from sargnn.models.settings import SymmetricSums

if TYPE_CHECKING:
    from sargnn.models.base import Model
    from sargnn.models.inputs import GraphShape


@dataclass(frozen=True)
class Sgc(SymmetricSums, ModelSettings):
    """SGC (Wu et al., 2019). Its embeddings are the rows that its linear map reads, S^K X.

    Attributes:
        steps: K, of propagation. input_dropout: of the features; above 0 these are propagated anew in every epoch.
    """

    steps: int = field(metadata=number(low=1, high=256))
    input_dropout: float = field(metadata=PROBABILITY)

    @property
    def draws_by_id(self) -> bool:
        return bool(self.input_dropout)

    @property
    def aggregations(self) -> int:
        return self.steps

    @property
    def has_embeddings(self) -> bool:
        return True

    def build(self, shape: GraphShape) -> Model:
        from sargnn.models.layers.sgc import build

        return build(self, shape)
