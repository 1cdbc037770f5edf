"""DGL's operators on a CPU."""

from __future__ import annotations

import torch

from sargnn.interop.dgl import import_dgl
from sargnn.kernels.base import Kernel
from sargnn.kernels.dgl.unseen import graph_bytes, libxsmm_bytes


class DglKernel(Kernel):
    """DGL's operators on graphs that are built on first use and kept with the block; see ``graphs``."""

    name = "dgl"
    autograd_reads_bf16 = True
    operations = {
        "sum": "sargnn.kernels.dgl.sum:DglSum",
        "max": "sargnn.kernels.dgl.max:DglMax",
        "gat": "sargnn.kernels.dgl.gat:DglGat",
        "gatv2": "sargnn.kernels.dgl.gatv2:DglGatV2",
    }
    autograd_operations = {
        "sum": "sargnn.kernels.dgl.sum:sum_autograd",
        "max": "sargnn.kernels.dgl.max:max_autograd",
        "gat": "sargnn.kernels.dgl.gat:gat_autograd",
        "gatv2": "sargnn.kernels.dgl.gatv2:gatv2_autograd",
    }

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        reasons = []
        if device.type != "cpu":
            reasons.append(f"DGL from PyPI runs on a CPU only, not on {device.type}")
        if dtype not in (torch.float32, torch.float64, torch.bfloat16):
            reasons.append(f"it is used in fp32, fp64 and bf16, not in {dtype}")
        try:
            import_dgl()
        except (ImportError, OSError) as error:
            reasons.append(f"DGL cannot be imported: {error}")
        return reasons

    def graph_bytes(self, operation: str, *, autograd: bool) -> int:
        return graph_bytes(operation, whole=autograd)

    def passing_bytes(self, operation: str, edges: int, rows: int, row_bytes: int, dtype: torch.dtype) -> int:
        return libxsmm_bytes(operation, edges, rows, row_bytes, dtype)
