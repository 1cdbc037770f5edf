"""The order of nodes inside a part. Neighbours with near row numbers share cache lines and pages.

Letters: N nodes, P parts.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

from sargnn.data.dataset import Dataset, group_by
from sargnn.partition.cut import edge_positions


def order_nodes(dataset: Dataset, assignment: np.ndarray, world: int, how: str) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of all parts, part by part.

    Args:
        assignment: int32 [N], the part of each node.
        how: ``original`` keeps the original order inside a part; ``locality`` is the reverse Cuthill-McKee order of the
            part's own subgraph, edges taken as undirected.

    Returns:
        offsets int64 [P + 1] and nodes int64 [N]: part p owns ``nodes[offsets[p]:offsets[p + 1]]`` in this order.
    """
    offsets, nodes = group_by(assignment, world)
    if how == "original":
        return offsets, nodes
    n = dataset.num_nodes
    local = np.empty(n, np.int32)
    for p in range(world):
        own = nodes[offsets[p] : offsets[p + 1]]
        local[own] = np.arange(len(own), dtype=np.int32)
    indptr = np.asarray(dataset.indptr)
    for p in range(world):
        own = nodes[offsets[p] : offsets[p + 1]]
        if not len(own):
            continue
        positions, row = edge_positions(indptr, own)
        source = dataset.indices[positions]
        inside = assignment[source] == p
        shape = (len(own), len(own))
        entries = np.ones(int(inside.sum()), np.int8)
        graph = sparse.csr_array((entries, (row[inside], local[source[inside]])), shape=shape)
        permutation = reverse_cuthill_mckee(sparse.csr_matrix(graph), symmetric_mode=False)
        nodes[offsets[p] : offsets[p + 1]] = own[permutation]
    return offsets, nodes
