"""The order of nodes inside a part. Neighbours with near row numbers share caches and pages.

Letters: N nodes, P parts.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sargnn.data.dataset import Dataset, group_by
from sargnn.partition.cut import edge_positions
from sargnn.partition.metis import kway, symmetric

VERSION = 2
"""Of the orders; part of a partition store's key."""
_CLUSTER_ROWS = 1000


def order_nodes(dataset: Dataset, assignment: np.ndarray, world: int, how: str) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of all parts, part by part.

    Args:
        assignment: int32 [N], the part of each node.
        how: ``original`` keeps the original order inside a part; ``locality`` cuts the part's own subgraph into clusters of
            about a thousand nodes with METIS, whose rows fit a core's second-level cache, and goes cluster by cluster.
            Of a typed graph type by type either way.

    Returns:
        offsets int64 [P + 1] and nodes int64 [N]: part p owns ``nodes[offsets[p]:offsets[p + 1]]`` in this order.
    """
    offsets, nodes = group_by(assignment, world)
    if how == "original":
        return offsets, nodes
    local = np.empty(dataset.num_nodes, np.int32)
    indptr = np.asarray(dataset.indptr)
    for p in range(world):
        own = nodes[offsets[p] : offsets[p + 1]]
        clusters = -(-len(own) // _CLUSTER_ROWS)
        if clusters < 2:
            continue
        local[own] = np.arange(len(own), dtype=np.int32)
        positions, row = edge_positions(indptr, own)
        source = dataset.indices[positions]
        inside = assignment[source] == p
        entries = (np.ones(int(inside.sum()), np.int32), (row[inside], local[source[inside]]))
        graph = symmetric(sparse.csr_array(entries, shape=(len(own), len(own))))
        if graph.nnz:
            cluster = kway(graph, clusters, seed=0, imbalance=0.1)
            own = own[np.argsort(cluster, kind="stable")]
            nodes[offsets[p] : offsets[p + 1]] = own[np.argsort(dataset.schema.types_of(own), kind="stable")]
    return offsets, nodes
