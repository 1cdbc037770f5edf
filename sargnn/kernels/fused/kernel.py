"""The compiled kernel on a CPU: accumulates straight into the destination rows, forward and transposed."""

from __future__ import annotations

import torch

from sargnn.kernels.base import Kernel

_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


class FusedKernel(Kernel):
    """Compiled loops over the block's own index arrays. Sums and maxima need no temporary; attention's backward pass, with T
    threads, T - 1 of [M, K].

    Compiled once into Numba's cache by ``warm_up``, before workers start. It has nothing for autograd: ``domain_parallel``, the
    baseline, refuses it.
    """

    name = "fused"
    reads_bf16 = True
    operations = {
        "sum": "sargnn.kernels.fused.sum:FusedSum",
        "max": "sargnn.kernels.fused.max:FusedMax",
        "gat": "sargnn.kernels.fused.gat:FusedGat",
        "gatv2": "sargnn.kernels.fused.gatv2:FusedGatV2",
    }

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        reasons = []
        if device.type != "cpu":
            reasons.append(f"it runs on a CPU, not on {device.type}")
        if dtype not in _DTYPES:
            reasons.append(f"it is compiled for fp32, fp64 and bf16, not for {dtype}")
        return reasons
