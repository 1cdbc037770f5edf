"""Sums over edges on a CPU: they accumulate straight into the destination rows, in the library's ``sums.cpp``.

Rows may be bf16; what multiplies them, and sums on their way, are fp32 then.

Letters: S source rows, M destination rows, E edges, F features.
"""

from __future__ import annotations

from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.block_arrays import edges_of
from sargnn.backends.operations import WeightedSumOperation
from sargnn.native import Entry

_FACTORS = "scale w? M, of_row w? S, of_edge w? E, places i? E"
_sums = Entry("sums", "edges edges, src xs S F", _FACTORS, "out y M F, lower h? M F, adds int")
_edge_dots = Entry("edge_dots", "edges edges, src xs S F, grad x M F, scale w? M, out w E")


class FusedSum(WeightedSumOperation):
    """Needs no temporary. Backward with weights reads what is made the first time: of the block's own weights
    ``EdgeBlock.t_weight``, in order; of others ``EdgeBlock.t_edge``, which says where each is."""

    lists_sources = True
    splits_sums = True
    writes_sums = True

    def forward(
        self,
        block: EdgeBlock,
        src: Tensor,
        out: Tensor,
        scale: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        lower: Tensor | None = None,
        add: bool = True,
    ) -> None:
        """``lower``: int16 [M, F], the lower halves of fp32 sums whose upper halves ``out`` holds, which is bf16."""
        if not add:
            assert scale is None and block.visits is None
            if block.num_listed < block.num_dst:
                out.zero_()
        if block.num_edges:
            _sums(edges_of(block, "forward"), src, scale, None, weight, None, out, lower, add)

    def backward(
        self,
        block: EdgeBlock,
        grad: Tensor,
        out: Tensor,
        scale: Tensor | None = None,
        *,
        add: bool = False,
        weight: Tensor | None = None,
    ) -> None:
        if not block.num_edges:
            if not add:
                out.zero_()
            return
        assert add or block.src_rows is None, "source rows that are not listed would not be written"
        assert not add or scale is None
        places = None
        if weight is not None and weight is block.weight:
            weight = block.t_weight
        elif weight is not None:
            places = block.t_edge
        _sums(edges_of(block, "backward"), grad, None, scale, weight, places, out, None, add)

    def weight_gradient(self, block: EdgeBlock, src: Tensor, grad: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        if block.num_edges:
            _edge_dots(edges_of(block, "forward"), src, grad, scale, out)
