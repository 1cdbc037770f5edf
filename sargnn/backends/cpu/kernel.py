"""The backend of a CPU, and its kernel: accumulates straight into the destination rows, forward and transposed."""

from __future__ import annotations

import torch

from sargnn.backends.base import Backend, Kernel, operations_of
from sargnn.backends.cpu.folds import CpuFolds, CpuMoves
from sargnn.backends.cpu.rows import CpuRows

_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


class CpuBackend(Backend):
    """The library's loops; products are PyTorch's."""

    pools = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.rows, self.folds, self.moves = CpuRows(), CpuFolds(), CpuMoves()


class FusedKernel(Kernel):
    """The library's loops over the block's own index arrays. Sums and maxima need no temporary; the backward pass of ``gat``,
    with T threads, T of [M, K].

    It has nothing for autograd: ``domain_parallel``, the baseline, refuses it.
    """

    name = "fused"
    reads_bf16 = True
    operations = operations_of("fused")

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        reasons = []
        if device.type != "cpu":
            reasons.append(f"it runs on a CPU, not on {device.type}")
        if dtype not in _DTYPES:
            reasons.append(f"it is compiled for fp32, fp64 and bf16, not for {dtype}")
        return reasons
