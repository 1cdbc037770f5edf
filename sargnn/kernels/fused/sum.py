"""Sums over edges by the compiled loops of ``sum_loops``."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.fused import sum_loops
from sargnn.kernels.fused.block_arrays import ALL_ROWS, chunks_of_block, listed_rows, numpy_of
from sargnn.kernels.operations import SumOperation


class FusedSum(SumOperation):
    """Needs no temporary."""

    samples = staticmethod(sum_loops.samples)

    def forward(self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        if block.num_edges:
            sum_loops.add_sums(
                chunks_of_block(block, "forward"), listed_rows(block), block.indptr.numpy(), block.src.numpy(),
                numpy_of(src), _factors(scale, src), numpy_of(out),
            )  # fmt: skip

    def backward(self, block: EdgeBlock, grad: Tensor, out: Tensor, scale: Tensor | None = None, *, add: bool = False) -> None:
        if not block.num_edges:
            if not add:
                out.zero_()
            return
        edges = chunks_of_block(block, "backward"), block.t_indptr.numpy(), block.t_dst.numpy()
        if add:
            assert scale is None
            chunks, *ends = edges
            sum_loops.add_sums(chunks, ALL_ROWS, *ends, numpy_of(grad), _factors(None, grad), numpy_of(out))
        else:
            sum_loops.write_sums(*edges, numpy_of(grad), _factors(scale, grad), numpy_of(out))


def _factors(scale: Tensor | None, like: Tensor) -> np.ndarray:
    """``scale`` as the loops take it: empty for ones."""
    return np.empty(0, numpy_of(like).dtype) if scale is None else numpy_of(scale)
