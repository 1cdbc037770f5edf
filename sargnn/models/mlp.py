"""Baselines that read no edges: their settings, the kernel operations that they need, and their builder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sargnn.models.settings import StackSettings

if TYPE_CHECKING:
    from sargnn.models.inputs import GraphShape
    from sargnn.models.stack import Stack


@dataclass(frozen=True)
class Mlp(StackSettings):
    """A multi-layer perceptron, or with one layer a linear classifier."""

    @property
    def no_weights(self) -> None:
        return None

    @property
    def aggregations(self) -> int:
        return 0

    @property
    def operations(self) -> tuple[str, ...]:
        return ()

    def build(self, shape: GraphShape) -> Stack:
        from sargnn.models.layers.mlp import build

        return build(self, shape)
