"""What a configuration's workers will hold, planned from the stores that are here.

Where the dataset has no store here, nothing heavy is loaded: a login node answers at once.

Letters: P workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, SargnnError

if TYPE_CHECKING:
    from sargnn.data.dataset import Dataset


@dataclass(frozen=True)
class PlannedMemory:
    """Bytes.

    Attributes:
        workers: of each rank its whole resident memory at its peak [P].
        preparing: what making the partition takes, before any worker starts; 0 where it is there.
    """

    workers: tuple[int, ...]
    preparing: int


@dataclass(frozen=True)
class NotPlanned:
    """Why there is no plan: a clause."""

    reason: str


def plan_memory(config: RunConfig) -> PlannedMemory | NotPlanned:
    """Plan a run. Nothing is made; what takes longer is told step by step (``sargnn.steps``).

    The partition is the configured one where it is there. Else a streamed cut is made for the plan, which reads all edges a few
    times. What the libraries take is measured once on a machine (``launch.runtime``).
    """
    try:
        path = _find_dataset(config)
        return NotPlanned("the dataset is not prepared here") if path is None else _plan(config, path)
    except SargnnError as error:
        return NotPlanned(str(error).splitlines()[0].rstrip("."))


def _find_dataset(config: RunConfig) -> Path | None:
    """The dataset's store; None where there is none, or where its name is known only once the dataset is read."""
    dataset, stores = config.dataset, Path(config.store_dir) / "datasets"
    if (store := dataset.find_store(stores)) is not None:
        return store
    if dataset.reads_target or dataset.fetches or not any(stores.glob(f"{dataset.name}-*")):
        return None
    from sargnn.data.prepare import dataset_path

    path = dataset_path(dataset, config.store_dir)
    return path if path.exists() else None


def _plan(config: RunConfig, path: Path) -> PlannedMemory:
    from sargnn.data.dataset import open_dataset
    from sargnn.launch.planned import stand_in
    from sargnn.launch.plans import Plans

    config, dataset = stand_in(config), open_dataset(path, verify=False)
    if config.dataset.task not in (None, dataset.task):
        raise ConfigError("The dataset's labels are of another task.", given=f"task={config.dataset.task}")
    plan = Plans(dataset, path.name).plan(config)
    preparing = 0 if plan.exact else preparing_bytes(config, dataset, path.name)
    return PlannedMemory(tuple(plan.every), preparing)


def preparing_bytes(config: RunConfig, dataset: Dataset, name: str) -> int:
    """About what making the partition takes: cutting, then ordering and writing parts, as many at once as fit the buffer.

    Args:
        name: of the dataset store's folder.
    """
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
