"""GCN: its settings, the kernel operations that it needs, and its builder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sargnn.models.settings import StackSettings

if TYPE_CHECKING:
    from sargnn.models.inputs import GraphShape
    from sargnn.models.stack import Stack


@dataclass(frozen=True)
class Gcn(StackSettings):
    """GCN (Kipf and Welling, 2017)."""

    adds_self_loops: ClassVar[bool] = True

    @property
    def no_weights(self) -> None:
        return None

    @property
    def divides_by_weights(self) -> bool:
        return True

    @property
    def operations(self) -> tuple[str, ...]:
        return ("sum",)

    def build(self, shape: GraphShape) -> Stack:
        from sargnn.models.layers.gcn import build

        return build(self, shape)
