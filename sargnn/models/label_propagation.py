"""Label propagation: its settings, the kernel operations that it needs, and its builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from sargnn.config.fields import FRACTION, NOT_NEGATIVE
from sargnn.config.groups import Adjacency
from sargnn.config.run import ModelSettings, RunConfig
from sargnn.errors import ConfigError

if TYPE_CHECKING:
    from sargnn.models.inputs import GraphShape
    from sargnn.models.stack import Stack


@dataclass(frozen=True)
class LabelPropagation(ModelSettings):
    """Label propagation: nothing is trained (``engine/propagate.py`` has the equation).

    Attributes:
        adjacency: how edges are weighted. alpha: how much comes from the neighbours in each of ``steps`` steps.
    """

    adjacency: Adjacency
    alpha: float = field(metadata=FRACTION)
    steps: int = field(metadata=NOT_NEGATIVE)

    trains: ClassVar[bool] = False

    @property
    def no_weights(self) -> None:
        return None

    @property
    def divides_by_weights(self) -> bool:
        return True

    @property
    def operations(self) -> tuple[str, ...]:
        return ("sum",)

    @property
    def no_preload(self) -> str | None:
        return "Label propagation reads rows as many hops away as it takes steps, in one layer."

    def check(self, run: RunConfig) -> None:
        if run.mfg:
            raise ConfigError("Label propagation reads all nodes in every step.", given="mfg=true", allowed="mfg=false")
        for key in ("count", "steps"):
            if (given := getattr(run.batches, key)) != 1:
                raise ConfigError(
                    "Label propagation reads all nodes in every step.",
                    given=f"batches.{key}={given}",
                    allowed=f"batches.{key}=1",
                )
        if run.samples:
            raise ConfigError(
                "Label propagation reads all edges in every step.",
                given=f"sample.fanouts={run.sample.fanouts}",
                allowed="sample.fanouts=null",
            )
        if run.reads_labels:
            raise ConfigError(
                "Label propagation reads labels by itself.", given=f"labels={run.labels.name}", allowed="labels=none"
            )

    def build(self, shape: GraphShape) -> Stack:
        from sargnn.models.layers.label_propagation import build

        return build(self, shape)
