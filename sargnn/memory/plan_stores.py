"""Plans from the stores that are here; and what a node of a SLURM job needs, as ``--mem`` has it:

    node = max(workers + workers / 10 + 0.4 GB, preparing)

Workers: the whole resident memory of those of one node. A tenth more is for what no plan knows: SLURM ends a job that takes a
page more than it asked for. 0.4 GB are for the job's own processes beside them. Preparing: ``run.job begin`` makes missing
stores on the first node before the workers start, within ``prepare.buffer`` and what the partitioner takes.

Where the dataset has no store here, nothing heavy is loaded: a login node answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, SargnnError

if TYPE_CHECKING:
    from sargnn.graph.dataset import Dataset
    from sargnn.memory.plan_run import Cut, WorldPlan

SPARE = 0.1
JOB_BYTES = 400_000_000
"""Of the job's script, ``srun`` and ``sargnn track --follow``, of which the last, with MLflow, was measured at 0.28 GB."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
"""SLURM counts in powers of two."""


def cut_key(config: RunConfig) -> str:
    """What tells cuts of one dataset apart."""
    return repr((config.partitioner, config.world, config.num_servers, config.add_self_loops))


class Plans:
    """Plans of the configurations of one dataset, whose store's folder is ``name``. Each cut is found once."""

    def __init__(self, dataset: Dataset, name: str) -> None:
        self.dataset, self._name = dataset, name
        self._cuts: dict[str, Cut] = {}

    def cut(self, config: RunConfig) -> Cut:
        key = cut_key(config)
        if key not in self._cuts:
            from sargnn.memory.plan_run import find_cut

            self._cuts[key] = find_cut(config, self.dataset, self._name)
        return self._cuts[key]

    def plan(self, config: RunConfig) -> WorldPlan:
        """Raises ``SargnnError``: it cannot be planned, or what is measured first failed."""
        from sargnn.memory.plan_run import plan_run
        from sargnn.memory.runtime import measured_runtime

        cut = self.cut(config)
        return plan_run(config, self.dataset, cut, measured_runtime(config, typed=self.dataset.schema.typed))

    @property
    def all_exact(self) -> bool:
        """Whether all cuts so far are partitions that are there."""
        return all(cut.exact for cut in self._cuts.values())


def plan_alone(config: RunConfig, store: Path, partition: Path) -> int | None:
    """What training is to hold in the largest worker of a run whose parts are joined, if each had a process of its own: bytes.

    None where it cannot be planned: a user's own layers may do anything.
    """
    if config.model.name == "custom" or config.model.target is not None:
        return None
    import numpy as np

    from sargnn.graph.dataset import open_dataset
    from sargnn.memory.plan_run import cut_of, plan_run
    from sargnn.memory.plan_worker import Runtime
    from sargnn.partition.store import ASSIGNMENT

    dataset, part = open_dataset(store, verify=False), np.load(partition / f"{ASSIGNMENT}.npy", mmap_mode="r")
    cut = cut_of(config, dataset, part)
    try:
        return max(plan_run(replace(config, processes=None), dataset, cut, Runtime(0, 0)).training)
    except SargnnError:
        return None


@dataclass(frozen=True)
class PlannedMemory:
    """Bytes of each rank at its peak, and of making the partition before any worker starts: 0 where it is there."""

    workers: tuple[int, ...]
    preparing: int


@dataclass(frozen=True)
class NotPlanned:
    """``reason``: a clause."""

    reason: str


def plan_memory(config: RunConfig) -> PlannedMemory | NotPlanned:
    """Plan a run. Nothing is made; what takes longer is told step by step (``sargnn.steps``).

    The partition is the configured one where it is there. Else a streamed cut is made for the plan, which reads all edges a few
    times. What the libraries take is measured once on a machine (``memory.runtime``).
    """
    if config.spills and config.memory_budget.bytes is not None:  # which its tables on disk let it keep to
        return PlannedMemory((config.memory_budget.bytes,) * config.world, 0)
    try:
        path = _find_dataset(config)
        if path is None:
            return NotPlanned("the dataset is not prepared here")
        from sargnn.graph.dataset import open_dataset

        config, dataset = config.stand_in, open_dataset(path, verify=False)
        if config.dataset.task not in (None, dataset.task) and not config.predicts_edges:
            raise ConfigError("The dataset's labels are of another task.", given=f"task={config.dataset.task}")
        plan = Plans(dataset, path.name).plan(config)
        preparing = 0 if plan.exact else preparing_bytes(config, dataset, path.name)
        return PlannedMemory(tuple(plan.every), preparing)
    except SargnnError as error:
        return NotPlanned(str(error).splitlines()[0].rstrip("."))


def _find_dataset(config: RunConfig) -> Path | None:
    """The dataset's store; None where there is none, or where its name is known only once the dataset is read."""
    dataset, stores = config.dataset, Path(config.store_dir) / "datasets"
    if (store := dataset.find_store(stores)) is not None:
        return store
    if dataset.reads_target or dataset.fetches or not any(stores.glob(f"{dataset.name}-*")):
        return None
    from sargnn.sources.prepare import dataset_path

    path = dataset_path(dataset, config.store_dir)
    return path if path.exists() else None


def preparing_bytes(config: RunConfig, dataset: Dataset, name: str) -> int:
    """About what making the partition takes: cutting, then ordering and writing parts, as many at once as fit the buffer."""
    from sargnn.partition.crew import Crew
    from sargnn.partition.memory import cutting_bytes, ordering_bytes, writing_bytes
    from sargnn.partition.prepare import with_choice

    world, settings = config.world, with_choice(config, dataset, name).partitioner
    edges, nodes = -(-dataset.num_edges // world), -(-dataset.num_nodes // world)
    cutting = cutting_bytes(dataset, settings.choice, settings.coarsen, world) if world > 1 else 0.0
    part_bytes = writing_bytes(dataset, edges, world)
    if settings.order == "locality":
        part_bytes = max(part_bytes, ordering_bytes(dataset, edges, nodes, settings.choice in ("kaminpar", "stream")))
    processes = Crew(world, config.prepare.bytes).size(world, dataset.num_edges, part_bytes, config.prepare.bytes)
    return int(max(cutting, processes * part_bytes))


def node_bytes(planned: PlannedMemory, per_node: int) -> int:
    """Bytes of the node that needs most.

    Ranks fill nodes one after the other, ``per_node`` at most. Not each need be full: any so many in a row may share one.
    """
    workers = planned.workers
    most = max(sum(workers[first : first + per_node]) for first in range(max(1, len(workers) - per_node + 1)))
    return max(int(most * (1 + SPARE)) + JOB_BYTES, planned.preparing)


def slurm_text(count: int) -> str:
    """Bytes as SLURM's ``--mem``, rounded up: ``1234M``."""
    return f"{-(-count // _UNITS['M'])}M"


def slurm_bytes(text: str) -> int | None:
    """What a ``--mem`` allows, bytes; None for 0, which is all that a node has. Without a unit it counts in M."""
    number, unit = (text, "M") if text.isdecimal() else (text[:-1], text[-1])
    return int(number) * _UNITS[unit] or None
