"""Maxima over edges by the compiled loops of ``max_loops``."""

from __future__ import annotations

from torch import Tensor

from sargnn.bf16 import number
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.fused import max_loops
from sargnn.kernels.fused.block_arrays import chunks_of_block, listed_rows, listed_sources, numpy_of
from sargnn.kernels.operations import MaxOperation


class FusedMax(MaxOperation):
    """Needs no temporary. A row that is not a number wins over all."""

    lists_sources = True
    samples = staticmethod(max_loops.samples)

    def forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        if block.num_edges:
            max_loops.fold_max(
                chunks_of_block(block, "forward"),
                listed_rows(block),
                block.indptr.numpy(),
                block.src.numpy(),
                numpy_of(src),
                block.src_id_rank.numpy(),
                numpy_of(best),
                numpy_of(winner),
            )

    def backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor, *, add: bool = False) -> None:
        if not block.num_edges:
            if not add:
                out.zero_()
            return
        assert add or block.src_rows is None, "source rows that are not listed would not be written"
        max_loops.write_max_gradients(
            chunks_of_block(block, "backward"),
            listed_sources(block),
            block.t_indptr.numpy(),
            block.t_dst.numpy(),
            numpy_of(grad),
            numpy_of(winner),
            block.src_id_rank.numpy(),
            number(0, grad.dtype),
            int(add),
            numpy_of(out),
        )
