"""Kernels: who executes a reducer's step on one block of edges."""

KERNELS = {
    "dgl": "sargnn.kernels.dgl:DglKernel",
    "reference": "sargnn.kernels.reference:ReferenceKernel",
}
"""In the order in which ``kernel=auto`` tries them."""
