"""The oracle: plain PyTorch operations, any device, slow."""

from __future__ import annotations

import torch

from sargnn.kernels.base import Kernel


class ReferenceKernel(Kernel):
    """Every operation as gather and ``index_add_``; holds a tensor of size edges x features while it runs."""

    name = "reference"
    operations = {
        "sum": "sargnn.kernels.reference.sum:ReferenceSum",
        "max": "sargnn.kernels.reference.max:ReferenceMax",
        "gat": "sargnn.kernels.reference.gat:ReferenceGat",
        "gatv2": "sargnn.kernels.reference.gatv2:ReferenceGatV2",
    }
    autograd_operations = {
        "sum": "sargnn.kernels.reference.sum:sum_autograd",
        "max": "sargnn.kernels.reference.max:max_autograd",
        "gat": "sargnn.kernels.reference.gat:gat_autograd",
        "gatv2": "sargnn.kernels.reference.gatv2:gatv2_autograd",
    }

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        return []
