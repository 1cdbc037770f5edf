"""The compiled kernel on a CPU: accumulates straight into the destination rows, forward and transposed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.fused_attention import FusedAttention
from sargnn.kernels.fused_block import ALL_ROWS, chunks_of_block, listed_rows, numpy_of

_DTYPES = (torch.float32, torch.float64)


class FusedKernel(FusedAttention):
    """Compiled loops over the block's own index arrays. Sums and maxima need no temporary; attention's backward pass, with T
    threads, T - 1 of [M, K].

    Compiled once into Numba's cache by ``warm_up``, before workers start.
    """

    name = "fused"
    operations = frozenset({"sum", "max", "gat", "gatv2"})

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        reasons = []
        if device.type != "cpu":
            reasons.append(f"it runs on a CPU, not on {device.type}")
        if dtype not in _DTYPES:
            reasons.append(f"it is compiled for fp32 and fp64, not for {dtype}")
        return reasons

    def sum_forward(self, block: EdgeBlock, src: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        from sargnn.kernels.cpu_spmm import add_sums

        if block.num_edges:
            factors = np.empty(0, numpy_of(src).dtype) if scale is None else numpy_of(scale)
            add_sums(
                chunks_of_block(block, "forward"), listed_rows(block), block.indptr.numpy(), block.src.numpy(),
                numpy_of(src), factors, numpy_of(out),
            )  # fmt: skip

    def sum_backward(
        self, block: EdgeBlock, grad: Tensor, out: Tensor, scale: Tensor | None = None, *, add: bool = False
    ) -> None:
        from sargnn.kernels.cpu_spmm import add_sums, write_sums

        if not block.num_edges:
            if not add:
                out.zero_()
            return
        if add:
            assert scale is None
            no_scale = np.empty(0, numpy_of(grad).dtype)
            add_sums(
                chunks_of_block(block, "backward"), ALL_ROWS, block.t_indptr.numpy(), block.t_dst.numpy(),
                numpy_of(grad), no_scale, numpy_of(out),
            )  # fmt: skip
            return
        weights = np.empty(0, numpy_of(grad).dtype) if scale is None else numpy_of(scale)
        write_sums(
            chunks_of_block(block, "backward"),
            block.t_indptr.numpy(),
            block.t_dst.numpy(),
            numpy_of(grad),
            weights,
            numpy_of(out),
        )

    def max_forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        from sargnn.kernels.cpu_spmm import fold_max

        if block.num_edges:
            fold_max(
                chunks_of_block(block, "forward"), listed_rows(block), block.indptr.numpy(), block.src.numpy(),
                numpy_of(src), block.src_order.numpy(), numpy_of(best), numpy_of(winner),
            )  # fmt: skip

    def max_backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor) -> None:
        from sargnn.kernels.cpu_spmm import write_max_errors

        if not block.num_edges:
            out.zero_()
            return
        write_max_errors(
            chunks_of_block(block, "backward"), block.t_indptr.numpy(), block.t_dst.numpy(),
            numpy_of(grad), numpy_of(winner), block.src_order.numpy(), numpy_of(out),
        )  # fmt: skip

    def sum_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        raise AssertionError("domain_parallel refuses this kernel")

    def max_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        raise AssertionError("domain_parallel refuses this kernel")
