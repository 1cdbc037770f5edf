"""Sums over edges on a CPU: they accumulate straight into the destination rows, in the library's ``sums.cpp``.

Rows may be bf16; what multiplies them, and sums on their way, are fp32 then.

Letters: S source rows, M destination rows, E edges, F features.
"""

from __future__ import annotations

from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.block_arrays import edges_of
from sargnn.backends.walks import Direction, Factors, WalkedSum
from sargnn.native import Entry

_FACTORS = "scale w? M, of_row w? S, of_edge w? E, places i? E"
_sums = Entry("sums", "edges edges, src xs S F", _FACTORS, "out y M F, lower h? M F, adds int")
_edge_dots = Entry("edge_dots", "edges edges, src xs S F, grad x M F, scale w? M, out w E")


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
