"""Maxima over edges on a CPU, feature by feature, in the library's ``maxima.cpp``."""

from __future__ import annotations

from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.block_arrays import edges_of
from sargnn.backends.operations import MaxOperation
from sargnn.backends.walks import finds_edges
from sargnn.native import Entry

_max_rows = Entry("max_rows", "edges edges", "src xs S F", "ranks i S", "best x M F", "winner i M F")
_max_gradients = Entry("max_gradients", "edges edges", "grad x M F", "winner i M F", "ranks i S", "out x S F", "adds int")


class FusedMax(MaxOperation):
    """Needs no temporary. A row that is not a number wins over all."""

    lists_sources = True

    def forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        if block.num_edges:
            _max_rows(edges_of(block, "forward"), src, block.src_id_rank, best, winner)

    def backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor, *, add: bool = False) -> None:
        if finds_edges(block, (out,), add=add):
            _max_gradients(edges_of(block, "backward"), grad, winner, block.src_id_rank, out, add)
