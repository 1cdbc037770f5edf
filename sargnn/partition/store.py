"""The partition store: everything a worker opens at start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sargnn.data.store import Store
from sargnn.partition.cut import PART_ARRAYS, Part
from sargnn.partition.stats import PartitionStats

FORMAT_VERSION = 1


@dataclass(frozen=True)
class PartitionInfo:
    """What all workers share about a partition store.

    Attributes:
        path: the store's folder.
        world: number of parts.
        num_nodes, num_edges, num_features, num_classes: of the whole graph.
        dataset_name, dataset_hash, partition_hash: provenance.
        partition_time_s: seconds that making the store took.
        stats: quality of the partition.
    """

    path: Path
    world: int
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    dataset_name: str
    dataset_hash: str
    partition_hash: str
    partition_time_s: float
    stats: PartitionStats


def partition_info(path: Path) -> PartitionInfo:
    """Open a partition store's manifest."""
    store = _open(path)
    meta: dict[str, Any] = {k: v for k, v in store.meta.items() if k not in ("stats", "made_by")}
    return PartitionInfo(path=path, partition_hash=store.content_hash, stats=PartitionStats(**store.meta["stats"]), **meta)


def open_part(path: Path, rank: int) -> Part:
    """One worker's part, checksums verified, arrays memory-mapped."""
    store = _open(path)
    names = {array: f"part_{rank:03d}/{array}" for array in PART_ARRAYS}
    store.verify(names.values())
    return Part(**{array: store.array(name) for array, name in names.items()})


def _open(path: Path) -> Store:
    return Store(path, "partition", FORMAT_VERSION)
