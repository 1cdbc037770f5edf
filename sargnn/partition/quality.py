"""How good an assignment is, without cutting: counted in one pass over the edges.

Letters: N nodes, E directed edges, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from sargnn.graph.dataset import Dataset
from sargnn.partition.blocks import in_edge_blocks
from sargnn.partition.weights import node_weights

_BITS = 64


@dataclass(frozen=True)
class Quality:
    """Attributes: edge_cut: edges between parts / all. halo_rows: rows that parts need of others, all together. node_balance,
    edge_balance, work_balance: largest part / mean, in nodes, in-edges, and both as the work that they make."""

    edge_cut: float
    halo_rows: int
    node_balance: float
    edge_balance: float
    work_balance: float


def quality_of(dataset: Dataset, part: np.ndarray, world: int) -> Quality:
    """Args: part: int32 [N]. Takes N P / 8 bytes."""
    needed = np.zeros((dataset.num_nodes, -(-world // _BITS)), np.uint64)
    cut = 0
    for first, indptr, indices in in_edge_blocks(dataset, "counting cut edges"):
        cut += int(_mark(first, indptr, indices, part, needed))
    balances = []
    for weights in (None, np.diff(np.asarray(dataset.indptr)), node_weights(dataset, "both")):
        loads = np.bincount(part, weights=weights, minlength=world)
        balances.append(float(loads.max() / loads.mean()) if loads.any() else 1.0)
    return Quality(cut / max(1, dataset.num_edges), int(_count(needed)), *balances)


@numba.njit(cache=True)
def _mark(first: Any, indptr: Any, indices: Any, part: Any, needed: Any) -> Any:  # pragma: no cover - compiled
    """Which parts need which nodes' rows, one bit each; gives the number of cut edges."""
    cut = 0
    for k in range(len(indptr) - 1):
        own = part[first + k]
        for e in range(indptr[k], indptr[k + 1]):
            if part[indices[e]] != own:
                cut += 1
                needed[indices[e], own // 64] |= np.uint64(1) << np.uint64(own % 64)
    return cut


@numba.njit(cache=True)
def _count(needed: Any) -> Any:  # pragma: no cover - compiled
    """How many bits are set."""
    total = 0
    for k in range(needed.shape[0]):
        for j in range(needed.shape[1]):
            word = needed[k, j]
            while word != np.uint64(0):
                word &= word - np.uint64(1)
                total += 1
    return total
