"""Sums of rows changed by their edges' features on a CPU, in the library's ``gine.cpp``: nothing of size E x F is held.

Backward walks sources in lanes, each with gradients of the map of its own. Features are read from where they lie.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.block_arrays import edges_of
from sargnn.backends.cpu.edge_features import features_of, table_of
from sargnn.backends.operations import GineOperation, Maps
from sargnn.backends.walks import finds_edges
from sargnn.native import Entry

_INPUTS = "edges edges", "z xs S F", "features f N C", "places i? E", "map w C+1 F", "weight w? E"
_forward = Entry("gine_forward", *_INPUTS, "out w M F")
_backward = Entry("gine_backward", *_INPUTS, "order i E", "grad x M F", "out x? S F", "adds int", "totals d LC F")


class FusedGine(GineOperation):
    """Needs, for each lane, a table of [D + 1, F] backward."""

    def forward(self, block: EdgeBlock, z: Tensor, maps: Maps, out: Tensor) -> None:
        if block.num_edges:
            _forward(edges_of(block, "forward"), z, *features_of(block), table_of(*maps), block.weight, out)

    def backward(
        self, block: EdgeBlock, z: Tensor, maps: Maps, grad: Tensor, out: Tensor | None, d_maps: Maps, *, add: bool = False
    ) -> None:
        if not finds_edges(block, () if out is None else (out,), add=add):
            return
        edges, (weight, bias) = edges_of(block, "backward", by_lane=True), maps
        table = table_of(weight, bias)
        totals = torch.zeros(edges.chunks * len(table), len(weight), dtype=torch.float64)
        given = edges, z, *features_of(block), table, block.weight, block.t_edge
        _backward(*given, grad, out, add, totals)
        total = totals.view(edges.chunks, *table.shape).sum(0).to(bias.dtype)
        d_maps[0].add_(total[:-1].T)
        d_maps[1].add_(total[-1])
