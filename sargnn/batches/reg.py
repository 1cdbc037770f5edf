"""The redundancy-embedded graph (REG) of Betty, and METIS on it.

    C = A^T W A without its diagonal        A [sources, targets]: 1 where a target reads a source

C_ij is what splitting the targets i and j costs: the number of sources that both read, each source weighted by w. Betty has
w = 1, so that a hub, which every group computes anyway, decides everything. Here a source that d targets read counts

    w = 1 / (d - 1)        d >= 2

the clique expansion's usual weight: cutting one target off from the d - 1 others costs 1, for hubs as for other sources. METIS
takes whole numbers, so entries are multiplied by a common factor and rounded, at least 1.

C has at most sum of d (d - 1) entries, and METIS takes about ``_ENTRY_BYTES`` for each. Sources with the largest d are left out
until that fits the buffer; C is made in runs of rows within the same buffer.

Letters: W targets, S sources.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sargnn.batches.targets import TargetRows
from sargnn.partition.metis import kway

_ENTRY_BYTES = 100
_LARGEST, _UNIT = 2**30, 1000


def redundancy_graph(targets: TargetRows) -> sparse.csr_array:
    """C, int32 [W, W], symmetric, without a diagonal."""
    reads = targets.incidence
    degrees = np.bincount(reads.indices, minlength=reads.shape[1]).astype(np.int64)
    pairs = degrees * (degrees - 1)
    order = np.argsort(degrees, kind="stable")
    room = max(targets.buffer_bytes // _ENTRY_BYTES, 1)
    shared = np.zeros(len(degrees), bool)
    shared[order[np.cumsum(pairs[order]) <= room]] = True
    shared &= degrees > 1
    reads = sparse.csr_array(reads[:, np.flatnonzero(shared)].astype(np.float32))
    degrees = degrees[shared]
    scale = min(_UNIT, _LARGEST / max(int(degrees.sum()), 1))
    read_by = sparse.csr_array((reads * (scale / np.maximum(degrees - 1, 1)).astype(np.float32)[None, :]).T)
    # What each row of C can have at most, and so where runs of rows end.
    most = np.asarray(reads @ (degrees - 1).astype(np.float64)).astype(np.int64)
    runs = np.cumsum(most) // max(room // 8, 1)
    blocks = []
    for run in np.unique(runs):
        first, last = np.searchsorted(runs, (run, run + 1))
        block = sparse.csr_array(reads[first:last] @ read_by).tocoo()
        other = block.row + first != block.col
        data = np.maximum(np.rint(block.data[other]), 1).astype(np.int32)
        blocks.append(sparse.csr_array((data, (block.row[other], block.col[other])), shape=(last - first, len(runs))))
    return sparse.csr_array(sparse.vstack(blocks)) if blocks else sparse.csr_array((0, 0), dtype=np.int32)


def group_by_reg(targets: TargetRows, count: int) -> np.ndarray:
    """Groups that METIS finds on C, balanced by in-degree. Returns int32 [W], each target's group."""
    graph = redundancy_graph(targets)
    if not graph.nnz:
        return (np.arange(len(targets.rows)) % count).astype(np.int32)
    return kway(graph, count, seed=targets.seed, imbalance=0.03, vertex_weights=targets.weights)
