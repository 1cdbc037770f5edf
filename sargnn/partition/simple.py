"""Partitioners that do not look at the edges. Letters: N nodes, P parts."""

from __future__ import annotations

import numpy as np

from sargnn.config.partitioner import PartitionerConfig
from sargnn.graph.dataset import Dataset
from sargnn.partition.room import Room


def assign_range(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """Contiguous runs of original ids, sizes differing by at most one. Returns int32 [N]."""
    return (np.arange(dataset.num_nodes, dtype=np.int64) * world // max(dataset.num_nodes, 1)).astype(np.int32)


def assign_random(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """A random balanced assignment from ``config.seed``: the worst case for communication. Returns int32 [N]."""
    order = np.random.default_rng(config.seed).permutation(dataset.num_nodes)
    assignment = np.empty(dataset.num_nodes, np.int32)
    assignment[order] = assign_range(dataset, world, config)
    return assignment
