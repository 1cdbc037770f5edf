"""METIS through pymetis: k-way partitioning that minimises the edge cut at balanced node counts."""

from __future__ import annotations

import numpy as np
import pymetis
from scipy import sparse

from sargnn.config import PartitionerConfig
from sargnn.data.dataset import Dataset


def undirected(dataset: Dataset) -> sparse.csr_array:
    """A + A^T without self-loops as int32 [N, N]; a value counts the directed edges between two nodes."""
    n = dataset.num_nodes
    ones = np.ones(dataset.num_edges, np.int32)
    directed = sparse.csr_array((ones, np.asarray(dataset.indices), np.asarray(dataset.indptr)), shape=(n, n))
    both = sparse.csr_array(directed + directed.T)
    both.sum_duplicates()
    rows = np.repeat(np.arange(n), np.diff(both.indptr))
    off_diagonal = both.indices != rows
    if not off_diagonal.all():
        kept = np.concatenate([[0], np.cumsum(off_diagonal)])
        both = sparse.csr_array((both.data[off_diagonal], both.indices[off_diagonal], kept[both.indptr]), shape=(n, n))
    return both


def assign(dataset: Dataset, world: int, config: PartitionerConfig) -> np.ndarray:
    """METIS's assignment, int32 [N]; the same seed gives the same assignment."""
    if world == 1 or dataset.num_nodes <= world:
        return (np.arange(dataset.num_nodes) % world).astype(np.int32)
    graph = undirected(dataset)
    if graph.nnz == 0:
        return (np.arange(dataset.num_nodes, dtype=np.int64) * world // dataset.num_nodes).astype(np.int32)
    options = pymetis.Options(seed=config.seed, ufactor=max(1, round(config.imbalance * 1000)))
    index_type = pymetis.zero_copy_dtype()
    weights = graph.data.astype(index_type)
    _, parts = pymetis.part_graph(
        world,
        pymetis.CSRAdjacency(graph.indptr.astype(index_type), graph.indices.astype(index_type)),
        eweights=None if (weights == weights[0]).all() else weights,
        options=options,
        recursive=False,
    )
    return np.asarray(parts, dtype=np.int32)
