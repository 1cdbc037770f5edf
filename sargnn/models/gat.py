"""GAT and GATv2: their settings, the kernel operations that they need, and their builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from sargnn.config.fields import AT_LEAST_ONE, FRACTION, PROBABILITY
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
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
        linear_residual: every layer, the last too, adds a linear map of its own input, per head.
        attn_dst: scores have a part of the destination.
        symmetric_norm: rows are divided by the root of their out-degree, outputs multiplied by that of their in-degree: with
            equal attention to all neighbours this is GCN's normalisation.
        edge_dropout: of edges, which then take no part in the softmax, another draw in each layer.
    """

    heads: int = field(metadata=AT_LEAST_ONE)
    out_heads: int = field(metadata=AT_LEAST_ONE)
    attn_dropout: float = field(metadata=PROBABILITY)
    negative_slope: float = field(metadata=FRACTION)
    v2: bool
    linear_residual: bool = False
    attn_dst: bool = True
    symmetric_norm: bool = False
    edge_dropout: float = field(default=0.0, metadata=PROBABILITY)

    adds_self_loops: ClassVar[bool] = True

    @property
    def no_weights(self) -> None:
        return None

    @property
    def operations(self) -> tuple[str, ...]:
        return ("gatv2" if self.v2 else "gat",)

    @property
    def draws_by_id(self) -> bool:
        return super().draws_by_id or bool(self.attn_dropout or self.edge_dropout)

    def check(self, run: RunConfig) -> None:
        for name in ("attn_dst", "symmetric_norm"):
            if self.v2 and getattr(self, name) != getattr(Gat, name):
                raise ConfigError(
                    f"'model.{name}' is defined for GAT's scores, not for GATv2's.",
                    given=f"model.v2=true model.{name}={str(getattr(self, name)).lower()}",
                    allowed="model.v2=false",
                )

    def build(self, shape: GraphShape) -> Stack:
        from sargnn.models.layers.gat import build

        return build(self, shape)
