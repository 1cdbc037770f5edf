"""The graph that ``sargnn plan`` plans on: a dataset with its partitions or cuts made for the plan, or published sizes."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.errors import ConfigError
from sargnn.steps import step

if TYPE_CHECKING:
    from sargnn.config.run import RunConfig
    from sargnn.memory.plan_parts import Published
    from sargnn.memory.plan_run import WorldPlan
    from sargnn.memory.plan_time import EpochTime


@dataclasses.dataclass
class PlannedGraph(ABC):
    """What plans are made on.

    Attributes:
        name, num_nodes, num_edges: of the graph. paper: (mode, world) -> what a paper measured, for the table.
    """

    name: str
    num_nodes: int
    num_edges: int
    paper: dict[tuple[str, int], str]

    @property
    def title(self) -> str:
        """Its name and size."""
        return f"{self.name}, {self.num_nodes:,} nodes, {self.num_edges:,} edges"

    @abstractmethod
    def plan(self, config: RunConfig) -> WorldPlan:
        """Of a configuration. Raises ``ConfigError``."""

    @abstractmethod
    def epoch_time(self, config: RunConfig, plan: WorldPlan) -> EpochTime | None:
        """How long an epoch takes on this machine, by trials; None: not known."""

    @property
    @abstractmethod
    def remarks(self) -> list[str]:
        """What is to be said of the figures, for a person."""


class _Here(PlannedGraph):
    def __init__(self, config: RunConfig) -> None:
        from sargnn.graph.dataset import open_dataset
        from sargnn.memory.plan_stores import Plans
        from sargnn.sources.prepare import prepare_dataset

        path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
        dataset = open_dataset(path, verify=False)
        self._plans = Plans(dataset, path.name)
        super().__init__(config.dataset.title_of(dataset.name), dataset.num_nodes, dataset.num_edges, {})

    def plan(self, config: RunConfig) -> WorldPlan:
        self._plans.cut(config)
        step(f"planning {config.mode.name} with {config.world}")
        return self._plans.plan(config)

    def epoch_time(self, config: RunConfig, plan: WorldPlan) -> EpochTime | None:
        from sargnn.memory.trials import outline_of, predict

        return predict(config, outline_of(self._plans.dataset), self._plans.cut(config).parts, plan.sent)

    @property
    def remarks(self) -> list[str]:
        if self._plans.all_exact:
            return []
        return ["~: of a cut made for this plan, a streamed one for METIS's or KaMinPar's, which have fewer halo rows."]


class _Elsewhere(PlannedGraph):
    def __init__(self, config: RunConfig, halo: float | None) -> None:
        from sargnn.memory.plan_parts import PAPER_BARS, PUBLISHED

        name = config.dataset.name
        self._graph: Published = PUBLISHED[name].as_configured(config.dataset)
        self._given = halo
        self._halos: dict[int, float] = {}
        bars = PAPER_BARS.get(config.model.name, {}) if name == "ogbn-papers100M" else {}
        paper = {
            (mode, world): "no room" if value is None else f"{value} GB"
            for mode, of_mode in bars.items()
            for world, value in of_mode.items()
        }
        super().__init__(f"{name} by its published size", self._graph.num_nodes, self._graph.num_edges, paper)

    def plan(self, config: RunConfig) -> WorldPlan:
        from sargnn.memory.plan_parts import halo_of
        from sargnn.memory.plan_run import plan_published
        from sargnn.memory.trials import measured_runtime

        halo = self._given if self._given is not None else halo_of(self._graph, config.world)
        if halo is None:  # then no more than an edge each brings
            halo = min(config.world - 1.0, self.num_edges * (1 - 1 / config.world) / self.num_nodes)
        self._halos[config.world] = halo
        step(f"planning {config.mode.name} with {config.world}")
        return plan_published(config, self._graph, halo, measured_runtime(config, typed=self._graph.schema.typed))

    def epoch_time(self, config: RunConfig, plan: WorldPlan) -> EpochTime | None:
        return None

    @property
    def remarks(self) -> list[str]:
        each = ", ".join(f"{halo:.3g} with {world}" for world, halo in sorted(self._halos.items()))
        how = "as given" if self._given is not None else self._graph.source or "the most that there can be"
        return [
            "~: of published sizes, in equal parts; sends: at most.",
            f"halo: rows of others for each own row, {each} workers ({how}); halo=R sets it.",
        ]


def planned_graph(config: RunConfig, halo: float | None, *, times: bool) -> PlannedGraph:
    """The dataset, prepared if need be; published sizes where it would have to be fetched, or ``halo`` is given.

    Raises:
        ConfigError: ``halo`` of a graph that has no published sizes; ``times`` of one that is not here.
    """
    from sargnn.memory.plan_parts import PUBLISHED

    here = config.dataset.is_here(Path(config.store_dir) / "datasets")
    if halo is None and (here or config.dataset.name not in PUBLISHED):
        return _Here(config)
    if config.dataset.name not in PUBLISHED:
        raise ConfigError(
            "A dataset's cut says how many rows of others are read.", given=f"halo={halo}", allowed=list(PUBLISHED)
        )
    if times:
        raise ConfigError("How long an epoch takes is found by trials with the graph.", given="times=true", hint="times=false")
    return _Elsewhere(config, halo)
