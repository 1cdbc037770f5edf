"""R-GCN: its settings, the kernel operations that it needs, and its builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sargnn.config.decides import RUN, hashed_as
from sargnn.config.fields import AT_LEAST_ONE
from sargnn.models.settings import StackSettings

if TYPE_CHECKING:
    from sargnn.models.inputs import GraphShape
    from sargnn.models.stack import Stack


@dataclass(frozen=True)
class Rgcn(StackSettings):
    """R-GCN (Schlichtkrull et al., 2018).

    Attributes:
        bases: how many bases the relations' weights are composed of; null: a full weight for each relation.
        order: map rows before they are summed over a relation's edges, or after; auto: what keeps less for backward.
        embedding: width of the learnable rows of node types without features, and of the map of features of another width;
            null: that of the features, or ``hidden`` where none has features or their widths differ.
    """

    bases: int | None = field(metadata=AT_LEAST_ONE)
    order: Literal["auto", "transform_first", "aggregate_first"] = field(metadata=RUN | hashed_as("auto"))
    embedding: int | None = field(metadata=AT_LEAST_ONE)

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
        from sargnn.models.layers.rgcn import build

        return build(self, shape)
