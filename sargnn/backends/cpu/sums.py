"""Sums over edges by the compiled loops of ``sum_loops`` and, with weights, ``weighted_sum_loops``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu import sum_loops, weighted_sum_loops
from sargnn.backends.cpu.block_arrays import ALL_EDGES, chunks_of_block, listed_rows, listed_sources, numpy_of
from sargnn.backends.operations import WeightedSumOperation
from sargnn.bf16 import wide


class FusedSum(WeightedSumOperation):
    """Needs no temporary. Backward with weights reads what is made the first time: of the block's own weights
    ``EdgeBlock.t_weight``, in order; of others ``EdgeBlock.t_edge``, which says where each is."""

    lists_sources = True
    splits_sums = True

    @staticmethod
    def samples(dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...]]]:
        """The compiled functions with arguments of the types that they are called with."""
        return sum_loops.samples(dtype) + weighted_sum_loops.samples(dtype)

    def forward(
        self,
        block: EdgeBlock,
        src: Tensor,
        out: Tensor,
        scale: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        lower: Tensor | None = None,
    ) -> None:
        """``lower``: int16 [M, F], the lower halves of fp32 sums whose upper halves ``out`` holds, which is bf16."""
        if not block.num_edges:
            return
        target = numpy_of(out), numpy_of(out if lower is None else lower)
        edges = chunks_of_block(block, "forward"), listed_rows(block), block.indptr.numpy(), block.src.numpy()
        if weight is None:
            sum_loops.add_sums(*edges, numpy_of(src), _factors(scale, src), *target)
        else:
            weights = _weights(weight, block, src)
            weighted_sum_loops.add_weighted_sums(*edges, numpy_of(src), _factors(scale, src), weights, ALL_EDGES, *target)

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
        chunks, *ends = chunks_of_block(block, "backward"), block.t_indptr.numpy(), block.t_dst.numpy()
        values, factors, target = numpy_of(grad), _factors(scale, grad), numpy_of(out)
        assert add or block.src_rows is None, "source rows that are not listed would not be written"
        assert not add or scale is None
        rows = listed_sources(block)
        if weight is not None:
            own = weight is block.weight
            weights = (
                _weights(block.t_weight if own else weight, block, grad),
                ALL_EDGES if own else block.t_edge.numpy(),
            )
            if add:
                weighted_sum_loops.add_weighted_sums(chunks, rows, *ends, values, factors, *weights, target, target)
            else:
                weighted_sum_loops.write_weighted_sums(chunks, *ends, values, factors, *weights, target)
        elif add:
            sum_loops.add_sums(chunks, rows, *ends, values, factors, target, target)
        else:
            sum_loops.write_sums(chunks, *ends, values, factors, target)

    def weight_gradient(self, block: EdgeBlock, src: Tensor, grad: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        if block.num_edges:
            weighted_sum_loops.write_weight_gradients(
                chunks_of_block(block, "forward"),
                listed_rows(block),
                block.indptr.numpy(),
                block.src.numpy(),
                numpy_of(src),
                numpy_of(grad),
                _factors(scale, src),
                numpy_of(out),
            )


def _factors(scale: Tensor | None, like: Tensor) -> np.ndarray:
    """``scale`` as the loops take it: empty for ones."""
    return numpy_of(like.new_empty(0, dtype=wide(like.dtype)) if scale is None else scale)


def _weights(weight: Tensor, block: EdgeBlock, like: Tensor) -> np.ndarray:
    """``weight`` as the loops take it, which check nothing."""
    assert weight.shape == (block.num_edges,) and weight.dtype == wide(like.dtype)
    return numpy_of(weight)
