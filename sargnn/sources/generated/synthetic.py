"""The embedded graph: a degree-corrected stochastic block model (Karrer and Newman, 2011).

Every class consists of several blocks. A node has a propensity drawn from a power law. An undirected edge picks its
first end by propensity; with probability ``homophily`` its second end comes from the same block, else from the whole
graph, again by propensity. Parallel edges and self-loops are dropped. Features are the class's direction, weakly, under
Gaussian noise of unit variance per feature; a fraction of the labels is replaced by random ones. So features alone do
clearly worse than features and graph together, and nothing reaches accuracy 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sargnn.graph.dataset import Dataset, InMemoryReader, by_destination
from sargnn.graph.schema import SPLITS
from sargnn.sources.settings import SyntheticConfig

_VERSION = 1


class Synthetic(InMemoryReader):
    def __init__(self, config: SyntheticConfig) -> None:
        self.config = config

    def identity(self) -> dict[str, Any]:
        c = self.config
        fields = {k: v for k, v in vars(c).items() if k not in ("add_self_loops", "loop_features", "edge_weights")}
        return {"generator": "synthetic", "version": _VERSION, **fields}

    def read(self) -> Dataset:
        c = self.config
        rng = np.random.default_rng(c.seed)
        num_blocks = c.num_classes * c.blocks_per_class
        block = rng.integers(num_blocks, size=c.num_nodes)
        classes = block // c.blocks_per_class

        propensity = np.minimum(rng.random(c.num_nodes) ** (-1.0 / (c.power - 1.0)), np.sqrt(c.num_nodes))
        by_block = np.argsort(block, kind="stable")
        cumulative = np.concatenate([[0.0], np.cumsum(propensity[by_block])])
        starts = np.searchsorted(block[by_block], np.arange(num_blocks + 1))
        low, high = cumulative[starts[:-1]], cumulative[starts[1:]]

        num_edges = int(round(c.num_nodes * c.mean_degree / 2))
        first = by_block[_pick(cumulative, rng.random(num_edges) * cumulative[-1])]
        inside = rng.random(num_edges) < c.homophily
        position = rng.random(num_edges)
        from_block = low[block[first]] + position * (high - low)[block[first]]
        second = by_block[_pick(cumulative, np.where(inside, from_block, position * cumulative[-1]))]

        pairs = np.unique(np.minimum(first, second) * np.int64(c.num_nodes) + np.maximum(first, second))
        a, b = pairs // c.num_nodes, pairs % c.num_nodes
        a, b = a[a != b], b[a != b]
        indptr, indices = by_destination(np.concatenate([a, b]), np.concatenate([b, a]), c.num_nodes)

        directions = rng.standard_normal((c.num_classes, c.num_features)) / np.sqrt(c.num_features)
        features = rng.standard_normal((c.num_nodes, c.num_features), dtype=np.float32)
        features += (c.feature_signal * directions[classes]).astype(np.float32)
        if c.normalize_features:
            features /= np.maximum(np.abs(features).sum(1, keepdims=True), 1e-12)
        noisy = rng.random(c.num_nodes) < c.label_noise
        labels = np.where(noisy, rng.integers(c.num_classes, size=c.num_nodes), classes).astype(np.int64)

        draw = rng.permutation(c.num_nodes)
        num_train = max(1, int(round(c.train_fraction * c.num_nodes)))
        num_val = int(round(c.val_fraction * c.num_nodes))
        split = np.full(c.num_nodes, SPLITS["test"], np.uint8)
        split[draw[:num_train]] = SPLITS["train"]
        split[draw[num_train : num_train + num_val]] = SPLITS["valid"]
        return Dataset.homogeneous("synthetic", c.num_classes, features, labels, split, indptr, indices)


def _pick(cumulative: np.ndarray, position: np.ndarray) -> np.ndarray:
    """The interval of ``cumulative`` that each position falls into."""
    return np.clip(np.searchsorted(cumulative, position, side="right") - 1, 0, len(cumulative) - 2)
