"""What is balanced over the parts, and how well it came out.

Letters: N nodes, P parts.
"""

from __future__ import annotations

import numpy as np

from sargnn.config.partitioner import PartitionerConfig
from sargnn.graph.dataset import Dataset

ROW_EDGES = 32
"""What a row costs beside its edges, in edges: linear maps, norm and dropout of a layer of usual width."""


def node_weights(dataset: Dataset, balance: str) -> np.ndarray | None:
    """Each node's share of the work, int64 [N]; None: all are alike.

    Args:
        balance: ``nodes``; ``edges``: in-edges and one; ``both``: in-edges and ``ROW_EDGES``.
    """
    if balance == "nodes":
        return None
    return np.diff(np.asarray(dataset.indptr)) + (1 if balance == "edges" else ROW_EDGES)


def columns(dataset: Dataset, config: PartitionerConfig) -> np.ndarray:
    """What partitioners with few constraints balance: int64 [N, 1]; of a typed graph also the nodes of the labelled type."""
    weights = node_weights(dataset, config.balance)
    weight_columns = [np.ones(dataset.num_nodes, np.int64) if weights is None else weights]
    if dataset.schema.typed:
        labelled = np.asarray(dataset.split) > 0
        node_type = int(dataset.schema.types_of(np.argmax(labelled, keepdims=True))[0]) if labelled.any() else 0
        weight_columns.append((dataset.schema.types_of(np.arange(dataset.num_nodes)) == node_type).astype(np.int64))
    return np.stack(weight_columns, 1)
