"""GCNII: its settings, the kernel operations that it needs, and its builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sargnn.config.fields import FRACTION, POSITIVE, number
from sargnn.models.settings import StackSettings, SymmetricSums

if TYPE_CHECKING:
    from sargnn.models.inputs import GraphShape
    from sargnn.models.stack import Stack


@dataclass(frozen=True)
class Gcnii(SymmetricSums, StackSettings):
    """GCNII (Chen et al., 2020): ``num_layers`` convolutions of ``hidden`` features between two linear maps.

    Attributes:
        alpha: how much of the first rows each convolution takes. theta: lambda, beta_l = log(theta / l + 1).
    """

    num_layers: int = field(metadata=number(low=1, high=255))
    alpha: float = field(metadata=FRACTION)
    theta: float = field(metadata=POSITIVE)

    @property
    def has_embeddings(self) -> bool:
        return True

    def build(self, shape: GraphShape) -> Stack:
        from sargnn.models.layers.gcnii import build

        return build(self, shape)
