"""Nodes in turn."""

from __future__ import annotations

import numpy as np

from sargnn.config.partitioner import PartitionerConfig
from sargnn.graph.dataset import Dataset


def in_turn(dataset: Dataset, world: int, config: PartitionerConfig) -> np.ndarray:
    """Node i to part i mod world. Returns int32 [N]."""
    return (np.arange(dataset.num_nodes) % world).astype(np.int32)
