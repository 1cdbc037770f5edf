"""Plans of a run: what its workers hold and send, on a partition store or on a cut made for the plan, with the micro-batches
and kept layers that it would choose for ``memory_budget``.

Letters: N nodes, P workers.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sargnn.backends.spill_file import SpillFile, whole_pages
from sargnn.config.run import RunConfig
from sargnn.engine.segments import KeepLayers, layer_runs
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.memory.budget import MOST_EVALUATION_GROUPS, Search
from sargnn.memory.plan_pairs import PlannedPairs
from sargnn.memory.plan_parts import OpenParts, PartSizes, Published, count_parts
from sargnn.memory.plan_traffic import CutEdges, Messages, layer_bytes, shape_of, traffic_by_layer, traffic_of
from sargnn.memory.plan_views import Views, has_views
from sargnn.memory.plan_worker import Account, Runtime, WorkerPlan
from sargnn.models.inputs import GraphShape
from sargnn.models.stack import Stack
from sargnn.partition import PARTITIONERS, stream
from sargnn.partition.prepare import partition_path, with_choice
from sargnn.partition.store import array_of
from sargnn.plan.layer_plan import RowCounts
from sargnn.resolve import resolve
from sargnn.steps import step
from sargnn.tracking.memory import human_bytes
from sargnn.training.build import label_columns
from sargnn.training.fit import configured_batches, draws_views, trains_in_batches

_PASSES = 4
"""Of streaming, for a plan."""
_QUICK = ("random", "range", "given")
"""Partitioners that need no more time than a plan has."""


@dataclass(frozen=True)
class Cut:
    """A graph in parts.

    Attributes:
        part: int32 [N], each node's owner.
        parts: of each worker.
        halo_rows: of all.
        edges: between parts; None: too many.
        exact: it is a partition that is there. Else it was made for the plan: streamed where the configured partitioner takes
            long, with a larger halo than METIS's or KaMinPar's.
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
        workers: each one's memory, or one's where all are alike.
        sent: bytes of an epoch, by all; None: not known.
        batches: micro-batches of a step; 1: none.
        keep_layers: whose inputs survive until backward.
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
        return max(self.workers, key=lambda worker: worker.total)

    @property
    def by_rank(self) -> list[WorkerPlan]:
        """Each worker's memory [P]."""
        return self.workers * (1 if len(self.workers) == self.world else self.world)

    @property
    def together(self) -> int:
        """Of all workers at their peaks."""
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
    """The configured partition where it is there; else a streamed one. ``name``: of the dataset store's folder."""
    chosen = with_choice(config, dataset, name)
    path, _ = partition_path(chosen, dataset, name)
    if path.exists():
        part = np.empty(dataset.num_nodes, np.int32)
        for rank in range(config.world):
            part[np.asarray(array_of(path, rank, "node_ids"))] = rank
        return cut_of(config, dataset, part, path)
    if chosen.partitioner.choice in _QUICK:
        assign = resolve("partitioner", PARTITIONERS, chosen.partitioner.choice)
        part = np.asarray(assign(dataset, config.world, chosen.partitioner), np.int32)
    else:
        step(f"a streamed cut into {config.world}, for the plan")
        settings = dataclasses.replace(
            chosen.partitioner, name="stream", passes=_PASSES, balance="both", target=None, file=None
        )
        part = stream.assign(dataset, config.world, settings)
    return cut_of(config, dataset, part)


def cut_of(config: RunConfig, dataset: Dataset, part: np.ndarray, store: Path | None = None) -> Cut:
    """Of an assignment: ``part``, int32 [N]. ``store``: the partition's folder, where it is there."""
    parts = count_parts(OpenParts(config, dataset, part, store, None, columns=(), verify=False))
    edges = CutEdges.of(dataset, part, config.world, int(config.add_self_loops))
    return Cut(part, parts, sum(sizes.halo for sizes in parts), edges, exact=store is not None, store=store)


def plan_run(config: RunConfig, dataset: Dataset, cut: Cut, runtime: Runtime) -> WorldPlan:
    """What the configuration's workers hold and send on a cut of its graph.

    Raises ``ConfigError``: the model cannot work on such a graph, or nothing fits ``memory_budget``.
    """
    if has_views(config):
        return plan_views(config, dataset, cut, runtime)
    traffic = traffic_of(config, dataset, cut.part, cut.halo_rows, cut.edges)
    account = Account(config, shape_of(dataset, config), dataset.num_nodes)
    pairs = PlannedPairs(config, dataset) if config.predicts_pairs else None
    of_pairs = (0, 0) if pairs is None else (pairs.step_bytes(1), pairs.evaluation_bytes())
    workers = []
    for rank, part in enumerate(cut.parts):
        received: list[int] | None = None
        results: tuple[int, ...] = ()
        if traffic is not None and all(layer.messages.received for layer in traffic):
            received = [layer.messages.received[rank] for layer in traffic]
            results = tuple(layer.messages.partials // config.world for layer in traffic)
        workers.append(account.worker(part, runtime, received, results, of_pairs))
    return WorldPlan(
        config.mode.name,
        config.world,
        workers,
        None if traffic is None else sum(t.sent for t in traffic),
        cut.exact,
        keep_layers=config.engine.keep_layers,
    )


def plan_views(config: RunConfig, dataset: Dataset, cut: Cut, runtime: Runtime) -> WorldPlan:
    """``plan_run`` where steps are views, with as many micro-batches as configured, or as the run would choose."""
    shape = shape_of(dataset, config)
    account = Account(config, shape, dataset.num_nodes)
    views = Views(config, dataset, cut.part, cut.store, shape, account.engine, account.model)
    count, keep, limit = 1, config.engine.keep_layers, config.budget_bytes
    if trains_in_batches(config):
        given = configured_batches(config)
        count = given if isinstance(given, int) else 1
        if limit is not None and given in (1, "auto"):
            planned = _PlannedBudget(account, views, runtime, limit)
            fit = planned.find(1 if given == 1 else views.most_batches, keep)
            if not fit.fits:
                needed = max(base + least for base, least in zip(planned.bases, fit.planned_bytes, strict=True))
                raise _refusal(config, "No number of micro-batches fits the memory budget.", needed)
            count, keep = fit.count, fit.keep_layers
    parts = [views.part_sizes(rank) for rank in range(config.world)]
    own = [views.worker(rank, count) for rank in range(config.world)]
    workers = [account.with_views(part, worker_views, runtime, keep) for part, worker_views in zip(parts, own, strict=True)]
    groups = 1
    while limit is not None and (needed := max(worker.while_evaluating for worker in workers)) > limit:
        groups *= 2
        if config.asks_queries:
            raise _refusal(config, "An evaluation needs more than the memory budget.", needed)
        if groups > MOST_EVALUATION_GROUPS or config.eval == "sampled":
            what = "An evaluation needs more than the memory budget, in any number of groups of rows."
            raise _refusal(config, what, needed)
        every = zip(parts, own, views.evaluation_in_groups(groups), strict=True)
        workers = [account.with_views(part, worker_views, runtime, keep, some) for part, worker_views, some in every]
    sent = _sent(config, account, views, count, keep)
    return WorldPlan(config.mode.name, config.world, workers, sent, cut.exact, count, keep)


def _refusal(config: RunConfig, what: str, needed: int) -> ConfigError:
    return ConfigError(
        what,
        given=f"memory_budget={config.memory_budget.size}; the least that a worker needs is {human_bytes(needed)}",
        hint=f"more workers, world={2 * config.world}, hold less each; so does a smaller model.hidden",
    )


class _PlannedBudget(Search):
    """Of a run that has not been started. ``bases``: by worker, bytes that are there before training."""

    def __init__(self, account: Account, views: Views, runtime: Runtime, limit: int) -> None:
        super().__init__(account.model.num_kept)
        self._account, self._views, self._limit, self._runtime = account, views, limit, runtime
        self._parts = [views.part_sizes(rank) for rank in range(views.parts.world)]
        every = [account.base(part, views.worker(rank, 1), runtime) for rank, part in enumerate(self._parts)]
        self.bases = [sum(base.values()) for base in every]

    def planned(self, count: int, keep: KeepLayers) -> tuple[int, ...]:
        return tuple(
            self._account.training(part, self._views.worker(rank, count), self._runtime, keep)[0]
            for rank, part in enumerate(self._parts)
        )

    def fits(self, planned: Sequence[int], what: str) -> bool:
        return max(base + own for base, own in zip(self.bases, planned, strict=True)) <= self._limit


def _sent(config: RunConfig, account: Account, views: Views, count: int, keep: KeepLayers) -> int | None:
    """Bytes of rows that all workers send in an epoch's steps; None: flows are drawn, or recomputed layers fetch rows anew."""
    model = account.model
    if (
        not isinstance(model, Stack)
        or draws_views(config)
        or not views.training(count)[0]
        or (config.may_preload and model.inputs.sharded())
    ):
        return None
    total, caches = 0, not trains_in_batches(config)
    again = [index for run in layer_runs(len(model.graph_layers), keep)[:-1] for index in run]
    for ranks in views.parts.servers:
        for view in views.training(count)[ranks.start]:
            every = zip(model.graph_layers, view.counts, view.messages, strict=True)
            for index, (layer, counts, messages) in enumerate(every):
                if not layer.uses_edges:
                    continue
                own = layer_bytes(account.engine, layer, counts, views.label_columns, messages, caches=caches)
                if own and index in again:
                    return None
                total += own
    return total


def plan_published(config: RunConfig, graph: Published, halo: float, runtime: Runtime) -> WorldPlan:
    """What workers would hold of a graph of which only sizes are known, in equal parts; bytes as if only rows travelled.

    ``halo``: rows of others for each own row. Raises ``ConfigError``: views are not planned, or the model cannot work there.
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


_WAYS = 5
"""Bytes moved in an epoch for a byte that has no room."""
_MOST_GROUPS = 8
_TRANSIENT = 2
"""Working sets of one worker, beside what all read or write to."""
_EDGE_BYTES = 8
"""Of what lies in a mapped file."""
_MEASURED = 256 << 20


@dataclass(frozen=True)
class SpillPlan:
    """One process with all workers, bytes.

    Attributes:
        in_memory: its whole resident memory without a disk.
        least: what must be in memory.
        on_disk: tables and mapped files.
        moved: written and read in an epoch, about.
        in_groups: layers are made in groups of columns.
    """

    in_memory: int
    least: int
    on_disk: int
    moved: int
    in_groups: bool


def plan_spill(plan: WorldPlan, num_edges: int, budget: int) -> SpillPlan:
    """Whether one process can train what would not fit in its memory, with tables on its disk (``spill``): an estimate.

    Where all workers' tables T would be in memory at one time, those that are not go to the disk and come back several times an
    epoch:

        moved = c (T - (budget - fixed))

    c is ``_WAYS``: 4 were measured for GraphSage in groups of columns and 2 without, 5 and 6 for GAT. Layers are made in groups
    where what all workers read or write to at one time, about half of their working sets, does not fit.
    """
    workers = [worker.terms for worker in plan.by_rank]
    edges = num_edges * _EDGE_BYTES
    held = max(terms["runtime"] for terms in workers) + sum(terms["parameters"] + terms["optimizer"] for terms in workers)
    held += max(0, sum(terms["graph"] for terms in workers) - edges)
    lasting = sum(worker.lasting for worker in plan.by_rank)
    held, mapped = held - lasting, edges + sum(terms["features"] for terms in workers) + lasting
    kept, working = (sum(terms[name] for terms in workers) for name in ("kept for backward", "working set"))
    transient = _TRANSIENT * max(terms["working set"] + terms["communication"] for terms in workers)
    shown, room = working // 2, budget - held - transient
    in_groups = shown > room
    lacking = max(0, kept + working - max(0, budget - held))
    return SpillPlan(
        in_memory=held + mapped + kept + working,
        least=held + transient + shown // _MOST_GROUPS,
        on_disk=mapped + lacking,
        moved=_WAYS * lacking,
        in_groups=in_groups,
    )


def disk_rate(folder: Path) -> float:
    """Bytes a second that a folder's disk writes and reads, past the page cache, measured with 256 MB."""
    file, table = SpillFile(folder), torch.ones(_MEASURED, dtype=torch.uint8)
    address, size = whole_pages(table.data_ptr(), table.nbytes)
    try:
        started = time.perf_counter()
        places = file.take(size)
        file.write(places, address).result()
        file.read(places, address).result()
        return 2 * size / (time.perf_counter() - started)
    finally:
        file.close()
