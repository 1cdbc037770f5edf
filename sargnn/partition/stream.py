"""Streaming: nodes in passes over the edges, in O(N) memory, for graphs that no other partitioner can hold.

Fennel (Tsourakakis et al., WSDM 2014), restreamed (Nishimura and Ugander, KDD 2013). A node goes to the part

    argmax over p of  n_p(v) - alpha gamma w(v) W_p^(gamma - 1),    gamma = 3/2,   alpha = sqrt(P) E / W^(3/2)

where n_p(v) counts its in-edges from part p, w is its weight, W_p the weight that p has so far, W the sum of all, and no part
may exceed (1 + imbalance) of the mean. From the second pass on every node has a part already: it is taken out, and placed by
what all the others chose last, with alpha grown from pass to pass, so that parts are first found and then balanced.

Only in-edges are read, as they lie in the store, from the first to the last. Where the graph has edges one way only, a node's
out-neighbours choose by it instead.

Letters: N nodes, E edges, P parts, K balanced weights.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from sargnn.config.partitioner import PartitionerConfig
from sargnn.graph.dataset import Dataset, in_edge_blocks
from sargnn.partition.balance import Room, trivial, weight_columns

_FIRST_SHARE, _GROWTH = 0.5, 1.3
"""Of alpha: in the first pass, and what it grows by from each to the next."""


def assign(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """The part of each node, int32 [N]; the same settings give the same."""
    if (uncut := trivial(dataset.num_nodes, world)) is not None:
        return uncut
    weights, part = weight_columns(dataset, config.balance), np.full(dataset.num_nodes, -1, np.int32)
    totals = weights.sum(0).astype(np.float64)
    caps = np.maximum(np.ceil(totals / world * (1 + config.imbalance)), np.ceil(totals / world) + weights.max(0))
    loads = np.zeros((world, weights.shape[1]))
    alpha = np.sqrt(world) * max(1, dataset.num_edges) / totals[0] ** 1.5
    for number in range(config.passes):
        share = _FIRST_SHARE * _GROWTH**number
        for first, indptr, indices in in_edge_blocks(dataset, f"streaming, pass {number + 1} of {config.passes}"):
            _place(first, indptr, indices, part, weights, loads, caps, alpha * share, config.seed % world)
    return part


@numba.njit(cache=True)
def _place(
    first: Any, indptr: Any, indices: Any, part: Any, weights: Any, loads: Any, caps: Any, alpha: Any, favourite: Any
) -> None:  # pragma: no cover - compiled
    world, kinds = loads.shape
    counts = np.zeros(world)
    touched = np.empty(world, np.int64)
    price = np.empty(world)
    for p in range(world):
        price[p] = 1.5 * alpha * np.sqrt(loads[p, 0])
    for k in range(len(indptr) - 1):
        v = first + k
        old = part[v]
        if old >= 0:
            for c in range(kinds):
                loads[old, c] -= weights[v, c]
            price[old] = 1.5 * alpha * np.sqrt(loads[old, 0])
        num_touched = 0
        for e in range(indptr[k], indptr[k + 1]):
            p = part[indices[e]]
            if p >= 0 and indices[e] != v:
                if counts[p] == 0:
                    touched[num_touched] = p
                    num_touched += 1
                counts[p] += 1
        best, score = -1, -np.inf
        for q in range(world):  # of parts that are alike the first one, from the favourite on
            p = q + favourite
            if p >= world:
                p -= world
            fits = True
            for c in range(kinds):
                if loads[p, c] + weights[v, c] > caps[c]:
                    fits = False
            if fits:
                value = counts[p] - price[p] * weights[v, 0]
                if value > score or (value == score and p == old):
                    best, score = p, value
        if best < 0:  # heavier than the room that any has: where the first weight is least
            best = int(np.argmin(loads[:, 0]))
        part[v] = best
        for c in range(kinds):
            loads[best, c] += weights[v, c]
        price[best] = 1.5 * alpha * np.sqrt(loads[best, 0])
        for j in range(num_touched):
            counts[touched[j]] = 0
