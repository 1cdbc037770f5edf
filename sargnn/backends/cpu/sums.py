"""Sums and maxima over edges on a CPU: they accumulate straight into the destination rows, in the library's ``sums.cpp``,
``maxima.cpp``, ``gine.cpp`` and ``scaled.cpp``.

Rows may be bf16; what multiplies them, and sums on their way, are fp32 then.

Letters: S source rows, M destination rows, E edges, F features, D features of an edge.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.block_arrays import edges_of, features_of, table_of
from sargnn.backends.operations import GineOperation, Maps, MaxOperation, ScaledSumOperation
from sargnn.backends.walks import Direction, Factors, WalkedSum, finds_edges
from sargnn.native import Entry

_FACTORS = "scale w? M, of_row w? S, of_edge w? E, places i? E"
_sums = Entry("sums", "edges edges, src xs S F", _FACTORS, "out y M F, lower h? M F, adds int")
_edge_dots = Entry("edge_dots", "edges edges, src xs S F, grad x M F, scale w? M, out w E")
_max_rows = Entry("max_rows", "edges edges", "src xs S F", "ranks i S", "best x M F", "winner i M F")
_max_gradients = Entry("max_gradients", "edges edges", "grad x M F", "winner i M F", "ranks i S", "out x S F", "adds int")
_GINE = "edges edges", "z xs S F", "features f N C", "places i? E", "map w C+1 F", "weight w? E"
_gine = Entry("gine_forward", *_GINE, "out w M F")
_gine_gradients = Entry("gine_backward", *_GINE, "order i E", "grad x M F", "out x? S F", "adds int", "totals d LC F")

_SCALED = "edges edges", "z x S F", "kinds i E", "w w K D"
_scaled = Entry("scaled_forward", *_SCALED, "out w M F")
_scaled_gradients = Entry("scaled_backward", *_SCALED, "order i E", "grad x M F", "out x? S F", "adds int", "totals d LK D")


class FusedSum(WalkedSum):
    """Needs no temporary."""

    splits_sums = True
    writes_sums = True

    def sum_rows(
        self,
        block: EdgeBlock,
        direction: Direction,
        rows: Tensor,
        out: Tensor,
        factors: Factors,
        *,
        add: bool,
        lower: Tensor | None = None,
    ) -> None:
        """``lower``: int16 [M, F], the lower halves of fp32 sums whose upper halves ``out`` holds, which is bf16."""
        assert add or direction == "backward" or (factors.near is None and block.visits is None)
        weight, places, near, far = factors
        _sums(edges_of(block, direction), rows, near, far, weight, places, out, lower, add)

    def weight_gradient(self, block: EdgeBlock, src: Tensor, grad: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        if block.num_edges:
            _edge_dots(edges_of(block, "forward"), src, grad, scale, out)


class FusedMax(MaxOperation):
    """Needs no temporary. A row that is not a number wins over all."""

    lists_sources = True

    def forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        if block.num_edges:
            _max_rows(edges_of(block, "forward"), src, block.src_id_rank, best, winner)

    def backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor, *, add: bool = False) -> None:
        if finds_edges(block, (out,), add=add):
            _max_gradients(edges_of(block, "backward"), grad, winner, block.src_id_rank, out, add)


class FusedGine(GineOperation):
    """Sums of rows changed by their edges' features, which are read from where they lie: nothing of size E x F is held.

    Backward walks sources in lanes, each with gradients of the map of its own: a table of [D + 1, F].
    """

    def forward(self, block: EdgeBlock, z: Tensor, maps: Maps, out: Tensor) -> None:
        if block.num_edges:
            _gine(edges_of(block, "forward"), z, *features_of(block), table_of(*maps), block.weight, out)

    def backward(
        self, block: EdgeBlock, z: Tensor, maps: Maps, grad: Tensor, out: Tensor | None, d_maps: Maps, *, add: bool = False
    ) -> None:
        if not finds_edges(block, () if out is None else (out,), add=add):
            return
        edges, (weight, bias) = edges_of(block, "backward", by_lane=True), maps
        table = table_of(weight, bias)
        totals = torch.zeros(edges.chunks * len(table), len(weight), dtype=torch.float64)
        given = edges, z, *features_of(block), table, block.weight, block.t_edge
        _gine_gradients(*given, grad, out, add, totals)
        total = totals.view(edges.chunks, *table.shape).sum(0).to(bias.dtype)
        d_maps[0].add_(total[:-1].T)
        d_maps[1].add_(total[-1])


class FusedScaledSum(ScaledSumOperation):
    """Nothing of size E x F is held. Backward walks sources in lanes, each with gradients of w of its own."""

    def forward(self, block: EdgeBlock, z: Tensor, w: Tensor, kinds: Tensor, out: Tensor) -> None:
        if block.num_edges:
            _scaled(edges_of(block, "forward"), z, kinds, w, out)

    def backward(
        self,
        block: EdgeBlock,
        z: Tensor,
        w: Tensor,
        kinds: Tensor,
        grad: Tensor,
        out: Tensor | None,
        d_w: Tensor,
        *,
        add: bool = False,
    ) -> None:
        if not finds_edges(block, () if out is None else (out,), add=add):
            return
        edges = edges_of(block, "backward", by_lane=True)
        totals = torch.zeros(edges.chunks * len(w), w.shape[1], dtype=torch.float64)
        _scaled_gradients(edges, z, kinds, w, block.t_edge, grad, out, add, totals)
        d_w.add_(totals.view(edges.chunks, *w.shape).sum(0).to(d_w.dtype))
