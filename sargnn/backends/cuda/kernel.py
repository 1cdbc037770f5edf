"""The kernel and the backend of a GPU. Nothing here imports Triton: what does is imported when it is used."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from sargnn.backends.base import Backend, Kernel, operations_of

_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


class CudaBackend(Backend):
    """One pass of a Triton kernel for each operator on rows; products are PyTorch's."""

    def __init__(self, device: torch.device) -> None:
        from sargnn.backends.cuda.folds import CudaFolds, CudaMoves
        from sargnn.backends.cuda.rows import CudaRows

        super().__init__(device)
        self.rows, self.folds, self.moves = CudaRows(), CudaFolds(), CudaMoves()


class TritonKernel(Kernel):
    """Edge operations by Triton kernels: by destination forward, by source backward, no atomics. On a GPU; on a CPU only in
    Triton's interpreter, for tests."""

    name = "triton"
    backend = CudaBackend
    reads_bf16 = True
    operations = operations_of("triton")

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        reasons = []
        if find_spec("triton") is None:
            reasons.append("Triton is not installed")
        if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            reasons.append("it runs on a GPU, not on cpu")
        if dtype not in _DTYPES:
            reasons.append(f"it is written for fp32, fp64 and bf16, not for {dtype}")
        return reasons
