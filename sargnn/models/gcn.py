"""GCN: its settings, the kernel operations that it needs, and its builder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sargnn.models.settings import StackSettings, SymmetricSums

if TYPE_CHECKING:
    from sargnn.models.inputs import GraphShape
    from sargnn.models.stack import Stack


@dataclass(frozen=True)
class Gcn(SymmetricSums, StackSettings):
    """GCN (Kipf and Welling, 2017)."""

    def build(self, shape: GraphShape) -> Stack:
        from sargnn.models.layers.gcn import build

        return build(self, shape)
