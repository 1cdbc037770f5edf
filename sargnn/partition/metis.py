"""METIS: k-way partitioning that minimises the edge cut at balanced node counts.

Through pymetis; where several node types must be balanced at once, through METIS's own interface.
"""

from __future__ import annotations

import numpy as np
import pymetis
from scipy import sparse

from sargnn.config import PartitionerConfig
from sargnn.data.dataset import Dataset
from sargnn.interop.metis import balanced_kway


def symmetric(directed: sparse.csr_array) -> sparse.csr_array:
    """A + A^T without self-loops as int32 [N, N]; a value counts the directed edges between two nodes."""
    n = directed.shape[0]
    both = sparse.csr_array(directed + directed.T)
    both.sum_duplicates()
    rows = np.repeat(np.arange(n), np.diff(both.indptr))
    off_diagonal = both.indices != rows
    if not off_diagonal.all():
        kept = np.concatenate([[0], np.cumsum(off_diagonal)])
        both = sparse.csr_array((both.data[off_diagonal], both.indices[off_diagonal], kept[both.indptr]), shape=(n, n))
    return both


def kway(graph: sparse.csr_array, parts: int, *, seed: int, imbalance: float) -> np.ndarray:
    """METIS's k-way assignment of a symmetric graph with at least one edge, int32 [N].

    Args:
        graph: from ``symmetric``; its values are edge weights.
        imbalance: how much larger than the mean a part may be.
    """
    options = pymetis.Options(seed=seed, ufactor=max(1, round(imbalance * 1000)))
    index_type = pymetis.zero_copy_dtype()
    weights = graph.data.astype(index_type)
    _, assignment = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(graph.indptr.astype(index_type), graph.indices.astype(index_type)),
        eweights=None if (weights == weights[0]).all() else weights,
        options=options,
        recursive=False,
    )
    return np.asarray(assignment, dtype=np.int32)


def assign(dataset: Dataset, world: int, config: PartitionerConfig) -> np.ndarray:
    """METIS's assignment, int32 [N]; the same seed gives the same assignment.

    A typed graph is cut as a homogeneous one, with every node type balanced.
    """
    n = dataset.num_nodes
    if world == 1 or n <= world:
        return (np.arange(n) % world).astype(np.int32)
    ones = np.ones(dataset.num_edges, np.int32)
    graph = symmetric(sparse.csr_array((ones, np.asarray(dataset.indices), np.asarray(dataset.indptr)), shape=(n, n)))
    if graph.nnz == 0:
        return (np.arange(n, dtype=np.int64) * world // n).astype(np.int32)
    if len(dataset.schema.node_types) > 1:
        of_type = dataset.schema.types_of(np.arange(n))[:, None] == np.arange(len(dataset.schema.node_types))
        weights = of_type[:, of_type.any(0)]
        return balanced_kway(
            graph.indptr, graph.indices, graph.data, weights, world, seed=config.seed, imbalance=config.imbalance
        )
    return kway(graph, world, seed=config.seed, imbalance=config.imbalance)
