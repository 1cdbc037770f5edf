"""A generated graph whose edges have random features besides, to measure what these cost:

    sargnn bench table 'models=[gat]' dataset=python dataset.target=scripts/edge_features.py:graph \\
        dataset.args.dataset=products_like dataset.args.scale=0.008
"""

from __future__ import annotations

from typing import Any

import numpy as np
from composed import config_of

from sargnn.graph.dataset import open_dataset
from sargnn.graph.schema import SPLITS
from sargnn.sources.prepare import prepare_dataset


def graph(dataset: str = "products_like", width: int = 8, **settings: Any) -> dict[str, Any]:
    """Its arrays, as ``dataset=python`` takes them.

    Args:
        dataset: which, of one type of nodes.
        width: features of an edge, float32 [E, width], uniform in [0, 1); those of an edge and its inverse differ.
        settings: of the dataset.
    """
    config = config_of([f"dataset={dataset}", *(f"dataset.{key}={value}" for key, value in settings.items())])
    found = open_dataset(prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes), verify=False)
    split = np.asarray(found.split)
    return {
        "edge_index": (np.asarray(found.indices), np.repeat(np.arange(found.num_nodes), np.diff(found.indptr))),
        "edge_attr": np.random.default_rng(0).random((found.num_edges, width), np.float32),
        "x": np.asarray(found.features[0]),
        "y": np.asarray(found.labels),
        **{f"{name}_mask": split == SPLITS[part] for name, part in (("train", "train"), ("val", "valid"), ("test", "test"))},
    }
