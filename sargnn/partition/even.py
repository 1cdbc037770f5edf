"""Parts made even in several weights at once, after a cut that balanced one.

Letters: N nodes, P parts, K weights.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from sargnn.graph.dataset import Dataset


def even_out(dataset: Dataset, part: np.ndarray, world: int, weights: np.ndarray, imbalance: float) -> None:
    """Move nodes out of parts that are too heavy, in place: first those that lose the fewest neighbours by it, each to where
    most of its neighbours are and room is left. The last weight is made even first, whatever becomes of the others, then each
    one before it, without making those behind it uneven again.

    Args:
        part: int32 [N]. weights: int64 [N, K]. imbalance: how much larger than the mean a part may be, in each.
    """
    loads = np.stack([np.bincount(part, weights=weights[:, k], minlength=world) for k in range(weights.shape[1])], 1)
    means = weights.sum(0) / world
    caps = np.ceil(means * (1 + imbalance))
    indptr, indices = np.asarray(dataset.indptr), np.asarray(dataset.indices)
    for k in reversed(range(weights.shape[1])):
        for p in np.flatnonzero(loads[:, k] > caps[k]):
            nodes = np.flatnonzero((part == p) & (weights[:, k] > 0))
            loss = np.empty(len(nodes), np.int64)
            _losses(indptr, indices, nodes, part, world, loss)
            _move(indptr, indices, nodes[np.argsort(loss, kind="stable")], part, weights, loads, caps, k)


@numba.njit(cache=True)
def _losses(indptr: Any, indices: Any, nodes: Any, part: Any, world: Any, loss: Any) -> None:  # pragma: no cover - compiled
    """How many more in-neighbours each node has in its own part than in the next best."""
    counts = np.zeros(world, np.int64)
    for k in range(len(nodes)):
        v = nodes[k]
        counts[:] = 0
        for e in range(indptr[v], indptr[v + 1]):
            counts[part[indices[e]]] += 1
        own = counts[part[v]]
        counts[part[v]] = 0
        loss[k] = own - counts.max()


@numba.njit(cache=True)
def _move(
    indptr: Any, indices: Any, nodes: Any, part: Any, weights: Any, loads: Any, caps: Any, kind: Any
) -> None:  # pragma: no cover - compiled
    world, kinds = loads.shape
    counts = np.zeros(world, np.int64)
    for k in range(len(nodes)):
        v = nodes[k]
        old = part[v]
        if loads[old, kind] <= caps[kind]:
            return
        counts[:] = 0
        for e in range(indptr[v], indptr[v + 1]):
            counts[part[indices[e]]] += 1
        best = -1
        for p in range(world):
            fits = p != old
            for c in range(kind, kinds):
                if weights[v, c] > 0 and loads[p, c] + weights[v, c] > caps[c]:
                    fits = False
            if fits and (best < 0 or counts[p] > counts[best]):
                best = p
        if best < 0:
            continue
        for c in range(kinds):
            loads[old, c] -= weights[v, c]
            loads[best, c] += weights[v, c]
        part[v] = best
