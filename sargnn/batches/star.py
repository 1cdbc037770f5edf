"""METIS on the graph of the edges that end in targets.

Every source of a target's edges is a net of a hypergraph that joins the targets which read it; a net that is cut is computed in
each group that it touches. With a vertex for each net the edges themselves are the hypergraph's star expansion: as many entries
as the last layer has edges, where ``reg`` has the square of every source's targets.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sargnn.batches.targets import TargetRows
from sargnn.partition.metis import kway, symmetric


def group_by_star(targets: TargetRows, count: int) -> np.ndarray:
    """Groups that METIS finds, balanced by in-degree. Returns int32 [W], each target's group."""
    incidence = targets.incidence.tocoo()
    vertices = np.unique(np.concatenate([incidence.col, targets.rows]))
    rows, columns = (np.searchsorted(vertices, nodes) for nodes in (targets.rows[incidence.row], incidence.col))
    size = len(vertices)
    graph = symmetric(sparse.csr_array((np.ones(len(rows), np.int32), (rows, columns)), shape=(size, size)))
    places = np.searchsorted(vertices, targets.rows)
    weights = np.zeros(size, np.int64)
    weights[places] = targets.weights
    if not graph.nnz:
        return np.zeros(len(targets.rows), np.int32)
    groups: np.ndarray = kway(graph, count, seed=targets.seed, imbalance=0.03, vertex_weights=weights)[places]
    return groups
