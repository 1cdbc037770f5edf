"""Kernels: who executes a reducer's step on one block of edges."""

KERNELS = {
    "fused": "sargnn.kernels.fused:FusedKernel",
    "dgl": "sargnn.kernels.dgl:DglKernel",
    "reference": "sargnn.kernels.reference:ReferenceKernel",
}
"""In the order in which ``kernel=auto`` tries them."""
