"""METIS on all edges of the worker's part, of which the targets' groups are taken."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sargnn.batches.targets import TargetRows
from sargnn.partition.metis import kway, symmetric


def group_by_whole(targets: TargetRows, count: int) -> np.ndarray:
    """Groups of own and halo rows that METIS finds at balanced row counts. Returns int32 [W], each target's group."""
    src, dst = targets.edges()
    size = targets.num_vertices
    graph = symmetric(sparse.csr_array((np.ones(len(src), np.int32), (dst, src)), shape=(size, size)))
    if not graph.nnz:
        return np.zeros(len(targets.rows), np.int32)
    groups: np.ndarray = kway(graph, count, seed=targets.seed, imbalance=0.03)[targets.rows]
    return groups
