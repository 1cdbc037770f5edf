"""GAT and GATv2: their settings, the kernel operations that they need, and their builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from sargnn.fields import AT_LEAST_ONE, FRACTION, PROBABILITY
from sargnn.models.settings import StackSettings

if TYPE_CHECKING:
    from sargnn.models.inputs import GraphShape
    from sargnn.models.stack import Stack


@dataclass(frozen=True)
class Gat(StackSettings):
    """GAT (Velickovic et al., 2018), or GATv2 (Brody et al., 2022). ``hidden`` is the width of a head.

    Attributes:
        heads: of all layers but the last, concatenated. out_heads: of the last, averaged.
        attn_dropout: of attention weights.
        negative_slope: of the scores' LeakyReLU.
        v2: score as GATv2 does.
    """

    heads: int = field(metadata=AT_LEAST_ONE)
    out_heads: int = field(metadata=AT_LEAST_ONE)
    attn_dropout: float = field(metadata=PROBABILITY)
    negative_slope: float = field(metadata=FRACTION)
    v2: bool

    adds_self_loops: ClassVar[bool] = True

    @property
    def no_weights(self) -> None:
        return None

    @property
    def operations(self) -> tuple[str, ...]:
        return ("gatv2" if self.v2 else "gat",)

    @property
    def draws_by_id(self) -> bool:
        return super().draws_by_id or bool(self.attn_dropout)

    def build(self, shape: GraphShape) -> Stack:
        from sargnn.models.layers.gat import build

        return build(self, shape)
