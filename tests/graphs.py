"""Small graphs with everything that goes wrong: isolated nodes, parallel edges, self-loops, one-way edges."""

from __future__ import annotations

import numpy as np

from sargnn.config import PartitionerConfig
from sargnn.data.dataset import SPLITS, Dataset, by_destination
from sargnn.partition import PARTITIONERS
from sargnn.resolve import resolve

NUM_CLASSES, NUM_FEATURES = 5, 11


def nasty_graph(num_nodes: int = 300, seed: int = 0) -> Dataset:
    """A directed graph whose last tenth of nodes is isolated, with parallel edges and self-loops."""
    rng = np.random.default_rng(seed)
    connected = num_nodes * 9 // 10
    community = np.arange(connected) * 6 // connected
    source = rng.integers(connected, size=4 * connected)
    near = np.minimum(source + rng.integers(1, 20, size=len(source)), connected - 1)
    destination = np.where(rng.random(len(source)) < 0.8, near, rng.integers(connected, size=len(source)))
    twice = rng.integers(len(source), size=40)  # parallel edges
    loops = rng.integers(connected, size=15)
    source = np.concatenate([source, source[twice], loops])
    destination = np.concatenate([destination, destination[twice], loops])
    indptr, indices = by_destination(source, destination, num_nodes)
    labels = rng.integers(NUM_CLASSES, size=num_nodes)
    labels[:connected] = np.where(rng.random(connected) < 0.7, community % NUM_CLASSES, labels[:connected])
    split = rng.choice([0, *SPLITS.values()], p=[0.1, 0.5, 0.2, 0.2], size=num_nodes).astype(np.uint8)
    features = rng.standard_normal((num_nodes, NUM_FEATURES)).astype(np.float32)
    return Dataset("nasty", NUM_CLASSES, features, labels.astype(np.int64), split, indptr, indices)


def assign(dataset: Dataset, partitioner: str, world: int) -> np.ndarray:
    """An assignment by a real partitioner, or one of two forced ones.

    ``empty``: the last part owns nothing. ``apart``: the isolated nodes form the last part, so that it exchanges no row
    with any other, and the rest is random.
    """
    if partitioner == "empty":
        return (np.arange(dataset.num_nodes) % max(world - 1, 1)).astype(np.int32)
    if partitioner == "apart":
        assignment = np.random.default_rng(1).integers(max(world - 1, 1), size=dataset.num_nodes).astype(np.int32)
        assignment[dataset.num_nodes * 9 // 10 :] = world - 1
        return assignment
    config = PartitionerConfig(name=partitioner, seed=0, order="original")
    assignment = resolve("partitioner", PARTITIONERS, partitioner)(dataset, world, config)
    return np.asarray(assignment)
