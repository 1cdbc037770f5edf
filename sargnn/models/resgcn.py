"""ResGCN+: its settings, the kernel operations that it needs, and its builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sargnn.config.fields import number
from sargnn.errors import ConfigError
from sargnn.models.settings import StackSettings, WeightedSums

if TYPE_CHECKING:
    from sargnn.config.run import RunConfig
    from sargnn.models.inputs import GraphShape
    from sargnn.models.stack import Stack


@dataclass(frozen=True)
class ResGcn(WeightedSums, StackSettings):
    """ResGCN+ (Li et al., 2020): ``num_layers`` pre-activation blocks of ``hidden`` features between two linear maps.

    Attributes:
        conv: the graph layer of a block.
    """

    num_layers: int = field(metadata=number(low=1, high=253))
    conv: Literal["gcn", "sage"]

    @property
    def adds_self_loops(self) -> bool:  # type: ignore[override]
        return self.conv == "gcn"

    @property
    def divides_by_weights(self) -> bool:
        return True

    @property
    def has_embeddings(self) -> bool:
        return True

    def check(self, run: RunConfig) -> None:
        if self.residual:
            raise ConfigError(
                "Blocks of ResGCN+ are added to their input already.",
                given="model.residual=true",
                allowed="model.residual=false",
            )

    def build(self, shape: GraphShape) -> Stack:
        from sargnn.models.layers.resgcn import build

        return build(self, shape)
