"""APPNP: its settings, the kernel operations that it needs, and its builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sargnn.config.fields import FRACTION, PROBABILITY, number
from sargnn.models.settings import StackSettings, SymmetricSums

if TYPE_CHECKING:
    from sargnn.models.base import Model
    from sargnn.models.inputs import GraphShape


@dataclass(frozen=True)
class Appnp(SymmetricSums, StackSettings):
    """APPNP (Gasteiger et al., 2019): a perceptron, which the settings of a stack describe, and propagation of its outputs.

    Its embeddings are the rows that the perceptron's last layer reads, propagated.

    Attributes:
        steps: K, of propagation. alpha: the teleport probability, how much of a row's own prediction each step takes.
        edge_dropout: of the adjacency's entries, another draw in each step.
    """

    steps: int = field(metadata=number(low=1, high=256))
    alpha: float = field(metadata=FRACTION)
    edge_dropout: float = field(metadata=PROBABILITY)

    @property
    def draws_by_id(self) -> bool:
        return super().draws_by_id or bool(self.edge_dropout)

    @property
    def aggregations(self) -> int:
        return self.steps

    @property
    def has_embeddings(self) -> bool:
        return True

    def build(self, shape: GraphShape) -> Model:
        from sargnn.models.layers.appnp import build

        return build(self, shape)
