"""Kernels: who runs the operations of reducers on one block of edges."""

KERNELS = {
    "fused": "sargnn.kernels.fused.kernel:FusedKernel",
    "dgl": "sargnn.kernels.dgl.kernel:DglKernel",
    "reference": "sargnn.kernels.reference.kernel:ReferenceKernel",
}
"""In the order in which ``kernel=auto`` tries them."""
