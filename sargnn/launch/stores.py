"""The stores of a run: made if they are missing, reused if they match."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sargnn.config import RunConfig
from sargnn.launch.compile import warm_up
from sargnn.tracking.progress import Steps, graph_lines, partition_lines, say
from sargnn.verb_config import PartitionConfig


@dataclass(frozen=True)
class Stores:
    """What a run's workers open.

    Attributes:
        partition: the partition store's folder. stats: its quality. dataset_hash: of the dataset that it was cut from.
    """

    partition: Path
    stats: dict[str, Any]
    dataset_hash: str


def partition_of(config: RunConfig) -> PartitionConfig:
    """The partition that a run works on."""
    return PartitionConfig(config.dataset, config.partitioner, config.world, config.store_dir, config.prepare)


def prepare_stores(wanted: PartitionConfig, check_graph: Callable[[Path], None]) -> Stores:
    """Make the dataset store and the partition store if needed; also compiles the kernels once.

    Args:
        check_graph: called with the dataset store's folder before the graph is partitioned; raises what makes that useless.
    """
    from sargnn.data.prepare import prepare_dataset
    from sargnn.partition.prepare import prepare_partition

    say(f"dataset {wanted.dataset.title}")
    with Steps():
        dataset_path = prepare_dataset(wanted.dataset, wanted.store_dir, wanted.prepare.bytes)
        check_graph(dataset_path)
        info = prepare_partition(wanted, dataset_path)
    stats = dataclasses.asdict(info.stats)
    size = info.num_edges, info.schema, info.feature_widths, info.num_classes, info.task
    for line in graph_lines(*size, weighted=info.weights is not None):
        say(f"  {line}")
    if info.weights is not None and not wanted.dataset.edge_weights:
        say("  its edge weights are not used: dataset.edge_weights=false")
    say(f"partition by {wanted.partitioner.name} into {wanted.world}")
    for line in partition_lines(stats):
        say(line)
    if os.environ["NUMBA_THREADING_LAYER"] != "workqueue":  # else the fork server compiles them
        warm_up()
    return Stores(info.path.resolve(), stats, info.dataset_hash)
