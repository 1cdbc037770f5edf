"""GIN: its settings, the kernel operations that it needs, and its builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sargnn.config.fields import number
from sargnn.models.settings import StackSettings, WeightedSums

if TYPE_CHECKING:
    from sargnn.models.inputs import GraphShape
    from sargnn.models.stack import Stack


@dataclass(frozen=True)
class Gin(WeightedSums, StackSettings):
    """GIN (Xu et al., 2019).

    Attributes:
        eps: a node's own row counts 1 + eps times; where it is learned, each layer starts with it.
        learn_eps: learn one eps per layer.
        mlp_layers: linear maps of a layer's perceptron, ``hidden`` wide inside, with the stack's norm and activation between.
    """

    eps: float
    learn_eps: bool
    mlp_layers: int = field(metadata=number(low=1, high=256))

    def build(self, shape: GraphShape) -> Stack:
        from sargnn.models.layers.gin import build

        return build(self, shape)
