"""The compiled kernel on a CPU: accumulates straight into the destination rows, forward and transposed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sargnn.kernels.base import Kernel
from sargnn.kernels.block import EdgeBlock

_DTYPES = (torch.float32, torch.float64)


class FusedKernel(Kernel):
    """Compiled loops over the block's own index arrays; no temporary of any size.

    Compiled once into Numba's cache by ``warm_up``, before workers start.
    """

    name = "fused"
    operations = frozenset({"sum", "max"})

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
            factors = np.empty(0, _numpy(src).dtype) if scale is None else _numpy(scale)
            add_sums(
                _chunks(block, "forward"), _listed(block), block.indptr.numpy(), block.src.numpy(),
                _numpy(src), factors, _numpy(out),
            )  # fmt: skip

    def sum_backward(self, block: EdgeBlock, grad: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        from sargnn.kernels.cpu_spmm import write_sums

        if not block.num_edges:
            out.zero_()
            return
        weights = np.empty(0, _numpy(grad).dtype) if scale is None else _numpy(scale)
        write_sums(_chunks(block, "backward"), block.t_indptr.numpy(), block.t_dst.numpy(), _numpy(grad), weights, _numpy(out))

    def max_forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        from sargnn.kernels.cpu_spmm import fold_max

        if block.num_edges:
            fold_max(
                _chunks(block, "forward"), _listed(block), block.indptr.numpy(), block.src.numpy(),
                _numpy(src), block.src_order.numpy(), _numpy(best), _numpy(winner),
            )  # fmt: skip

    def max_backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor) -> None:
        from sargnn.kernels.cpu_spmm import write_max_errors

        if not block.num_edges:
            out.zero_()
            return
        write_max_errors(
            _chunks(block, "backward"), block.t_indptr.numpy(), block.t_dst.numpy(),
            _numpy(grad), _numpy(winner), block.src_order.numpy(), _numpy(out),
        )  # fmt: skip

    def sum_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        raise AssertionError("domain_parallel refuses this kernel")

    def max_autograd(self, block: EdgeBlock, src: Tensor) -> Tensor:
        raise AssertionError("domain_parallel refuses this kernel")


_NO_ROWS = np.empty(0, np.int32)


def _numpy(tensor: Tensor) -> np.ndarray:
    """The memory of a contiguous tensor, for the compiled loops."""
    assert tensor.is_contiguous()
    return tensor.detach().numpy()


def _listed(block: EdgeBlock) -> np.ndarray:
    return _NO_ROWS if block.dst_rows is None else block.dst_rows.numpy()


def _chunks(block: EdgeBlock, direction: str) -> np.ndarray:
    from sargnn.kernels.cpu_spmm import chunks_of

    key = f"fused_{direction}"
    if key not in block.cache:
        block.cache[key] = chunks_of((block.indptr if direction == "forward" else block.t_indptr).numpy())
    chunks: np.ndarray = block.cache[key]
    return chunks
