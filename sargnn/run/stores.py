"""The stores of a run: made if they are missing, reused if they match."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.config.run import RunConfig
from sargnn.config.verbs import PartitionConfig
from sargnn.run.compile import warm_up
from sargnn.tracking.progress import Steps, graph_lines, partition_lines, say

if TYPE_CHECKING:
    from sargnn.partition.preload import Bounds
    from sargnn.partition.store import PartitionInfo
    from sargnn.run.check import Built


@dataclass(frozen=True)
class Stores:
    """What a run's workers open.

    Attributes:
        dataset, partition: the stores' folders. stats: the partition's quality.
        dataset_hash: of the dataset that it was cut from.
        built: what is known of the model.
        preloaded: the store of parts that hold what their servers preload; None: nothing is preloaded.
    """

    dataset: Path
    partition: Path
    stats: dict[str, Any]
    dataset_hash: str
    built: Built
    preloaded: Path | None = None


def partition_of(config: RunConfig) -> PartitionConfig:
    """The partition that a run works on."""
    return PartitionConfig(config.dataset, config.partitioner, config.world, config.store_dir, config.prepare, config.servers)


def prepare_stores(config: RunConfig, check_graph: Callable[[Path], Built]) -> Stores:
    """Make the dataset store, the partition store and what servers preload, if needed; also compiles the kernels once.

    Args:
        check_graph: called with the dataset store's folder before the graph is partitioned; raises what makes a partition
            useless.
    """
    from sargnn.partition.prepare import prepare_partition, prepare_preloaded
    from sargnn.sources.prepare import prepare_dataset

    wanted = partition_of(config)
    say(f"dataset {wanted.dataset.title}")
    with Steps():
        dataset_path = prepare_dataset(wanted.dataset, wanted.store_dir, wanted.prepare.bytes)
        built = check_graph(dataset_path)
        info = prepare_partition(wanted, dataset_path)
        preloaded = None
        if config.may_preload:
            preloaded = prepare_preloaded(wanted, dataset_path, info, bounds_of(config, built.aggregations))
    stats = dataclasses.asdict(info.stats)
    size = info.num_edges, info.schema, info.feature_widths, info.num_classes, info.task
    for line in graph_lines(*size, weighted=info.weights is not None):
        say(f"  {line}")
    if info.weights is not None and not wanted.dataset.edge_weights:
        say("  its edge weights are not used: dataset.edge_weights=false")
    into = f"{wanted.num_servers} servers of {wanted.world // wanted.num_servers}" if wanted.num_servers > 1 else wanted.world
    say(f"partition by {info.partitioner} into {into}")
    for line in partition_lines(stats):
        say(line)
    if preloaded is not None:
        for line in preload_lines(preloaded):
            say(line)
    if os.environ["NUMBA_THREADING_LAYER"] != "workqueue":  # else the fork server compiles them
        warm_up()
    return Stores(
        dataset_path.resolve(),
        info.path.resolve(),
        stats,
        info.dataset_hash,
        built,
        None if preloaded is None else preloaded.path.resolve(),
    )


def bounds_of(config: RunConfig, hops: int) -> Bounds:
    """What a run's servers preload. ``hops``: layers of the model that aggregate."""
    from sargnn.partition.preload import Bounds

    return Bounds(hops, config.preload.max_hop, config.preload.fanout, config.seed)


def preload_lines(info: PartitionInfo) -> list[str]:
    """What servers hold, in a few lines."""
    assert info.preload is not None
    lines = []
    for server, held in enumerate(info.preload["servers"]):
        inner, *copies = held["nodes"]
        hops = [hop for hop, count in enumerate(copies, start=1) if count]
        by_hop = ", ".join(f"{copies[hop - 1]} at {hop} hop{'s' * (hop > 1)}" for hop in hops) or "none"
        lines.append(f"  server {server}: {inner} nodes and copies of {sum(copies)} ({by_hop})")
    return lines
