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

import numpy as np

from sargnn.config.partitioner import PartitionerConfig
from sargnn.graph.dataset import Dataset, in_edge_blocks
from sargnn.native import Entry
from sargnn.partition.balance import Room, trivial, weight_columns

_FIRST_SHARE, _GROWTH = 0.5, 1.3
"""Of alpha: in the first pass, and what it grows by from each to the next."""
_place = Entry(
    "stream_nodes",
    "first int, indptr l, indices *, part i N, weights l N K, loads d P K, caps d K, alpha float, favourite int",
)


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
