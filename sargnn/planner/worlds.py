"""Plans of a run for several modes and numbers of workers, from a partition store or from a cut made for the plan.

Letters: N nodes, P parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sargnn.config.run import RunConfig
from sargnn.data.dataset import Dataset
from sargnn.engine.segments import KeepLayers
from sargnn.models.inputs import GraphShape
from sargnn.partition import PARTITIONERS, stream
from sargnn.partition.prepare import partition_path, with_choice
from sargnn.partition.quality import quality_of
from sargnn.partition.store import PartitionInfo, array_of, partition_info
from sargnn.planner.account import Account, Runtime, WorkerPlan
from sargnn.planner.cut_edges import CutEdges, Messages
from sargnn.planner.fitted import plan_views
from sargnn.planner.parts import PartSizes, parts_of_assignment, parts_of_store
from sargnn.planner.published import Published
from sargnn.planner.views import has_views
from sargnn.planner.wire import shape_of, traffic_by_layer, traffic_of
from sargnn.resolve import resolve
from sargnn.shards.plan import RowCounts
from sargnn.steps import step
from sargnn.training.build import label_columns

_PASSES = 4
"""Of streaming, for a plan."""
_QUICK = ("random", "range", "given")
"""Partitioners that need no more time than a plan has."""


@dataclass(frozen=True)
class Cut:
    """A graph in parts.

    Attributes:
        part: int32 [N]. parts: of each worker. halo_rows: of all. edges: between parts; None: too many.
        exact: it is a partition that is there; else one made for the plan, whose halo rows are shared out by edges: a streamed
            one, whose halo is larger than METIS's or KaMinPar's, where the configured partitioner takes long.
        store: the partition's folder, where it is there.
    """

    part: np.ndarray
    parts: list[PartSizes]
    halo_rows: int
    edges: CutEdges | None
    exact: bool
    store: Path | None = None


@dataclass(frozen=True)
class WorldPlan:
    """What a configuration's workers hold and send.

    Attributes:
        mode, world. workers: each one's memory, or one's where all are alike. sent: bytes of an epoch, by all; None: not known.
        exact: see ``Cut``. batches: micro-batches of a step; 1: none. keep_layers: whose inputs survive until backward.
    """

    mode: str
    world: int
    workers: list[WorkerPlan]
    sent: int | None
    exact: bool
    batches: int = 1
    keep_layers: KeepLayers = "all"

    @property
    def largest(self) -> WorkerPlan:
        """The worker that holds most."""
        return max(self.workers, key=lambda worker: worker.total)

    @property
    def by_rank(self) -> list[WorkerPlan]:
        """Each worker's memory [P]."""
        return self.workers * (1 if len(self.workers) == self.world else self.world)

    @property
    def together(self) -> int:
        """All workers' whole resident memory at their peaks."""
        return sum(self.every)

    @property
    def every(self) -> list[int]:
        """Each worker's whole resident memory at its peak [P]."""
        return [worker.total for worker in self.by_rank]

    @property
    def training(self) -> tuple[int, ...]:
        """What each worker's training holds above what was there when it started [P]."""
        return tuple(worker.training for worker in self.by_rank)


def find_cut(config: RunConfig, dataset: Dataset, name: str) -> Cut:
    """The configured partition where it is there; else a streamed one.

    Args:
        name: of the dataset store's folder.
    """
    loops, world = int(config.add_self_loops), config.world
    chosen = with_choice(config, dataset, name)
    path, _ = partition_path(chosen, dataset, name)
    if path.exists():
        info = partition_info(path)
        part, halo = _assignment(info), sum(info.stats.halo_rows)
        return Cut(part, parts_of_store(info), halo, CutEdges.of(dataset, part, world, loops), exact=True, store=path)
    if chosen.partitioner.choice in _QUICK:
        assign = resolve("partitioner", PARTITIONERS, chosen.partitioner.choice)
        part = np.asarray(assign(dataset, world, chosen.partitioner), np.int32)
    else:
        step(f"a streamed cut into {world}, for the plan")
        settings = dataclasses.replace(
            chosen.partitioner, name="stream", passes=_PASSES, balance="both", target=None, file=None
        )
        part = stream.assign(dataset, world, settings)
    halo = quality_of(dataset, part, world).halo_rows
    parts = parts_of_assignment(dataset, part, world, Messages(halo))
    return Cut(part, parts, halo, CutEdges.of(dataset, part, world, loops), exact=False)


def plan_run(config: RunConfig, dataset: Dataset, cut: Cut, runtime: Runtime) -> WorldPlan:
    """What the configuration's workers hold and send on a cut of its graph.

    Raises:
        ConfigError: the model cannot work on such a graph, or nothing fits ``memory_budget``.
    """
    if has_views(config):
        plan = plan_views(config, dataset, cut.part, cut.store, runtime)
        return WorldPlan(config.mode.name, config.world, plan.workers, plan.sent, cut.exact, plan.batches, plan.keep_layers)
    traffic = traffic_of(config, dataset, cut.part, cut.halo_rows, cut.edges)
    account = Account(config, shape_of(dataset, config), dataset.num_nodes)
    workers = []
    for rank, part in enumerate(cut.parts):
        received: list[int] | None = None
        results: tuple[int, ...] = ()
        if traffic is not None and all(layer.messages.received for layer in traffic):
            received = [layer.messages.received[rank] for layer in traffic]
            results = tuple(layer.messages.partials // config.world for layer in traffic)
        workers.append(account.worker(part, runtime, received, results))
    return WorldPlan(
        config.mode.name,
        config.world,
        workers,
        None if traffic is None else sum(t.sent for t in traffic),
        cut.exact,
        keep_layers=config.engine.keep_layers,
    )


def plan_published(config: RunConfig, graph: Published, halo: float, runtime: Runtime) -> WorldPlan:
    """What workers would hold of a graph of which only sizes are known, in equal parts; bytes as if only rows travelled.

    Args:
        graph: as the dataset's settings have it. halo: rows of others for each own row.

    Raises:
        ConfigError: its views are not planned, or the model cannot work on such a graph.
    """
    columns = label_columns(config, graph.classes)
    shape = GraphShape(graph.schema, tuple(width for *_, width in graph.nodes), graph.classes, columns)
    part = graph.part(config.world, halo)
    rows = config.world * part.halo
    traffic = traffic_by_layer(
        config, shape, RowCounts(graph.num_nodes, graph.num_nodes, rows), lambda share, labelled: Messages(rows)
    )
    worker = Account(config, shape, graph.num_nodes).worker(part, runtime)
    return WorldPlan(config.mode.name, config.world, [worker], None if traffic is None else sum(t.sent for t in traffic), False)


def smallest_world(plans: Sequence[WorldPlan], mode: str, limit: int) -> int | None:
    """The fewest workers of a mode of which each fits ``limit`` bytes."""
    fits = [plan.world for plan in plans if plan.mode == mode and plan.largest.total <= limit]
    return min(fits, default=None)


def _assignment(info: PartitionInfo) -> np.ndarray:
    part = np.empty(info.num_nodes, np.int32)
    for rank in range(info.world):
        part[np.asarray(array_of(info.path, rank, "node_ids"))] = rank
    return part
