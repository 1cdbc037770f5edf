"""How things are computed: one interface (``base``, ``operations``), a folder for each implementation.

``cpu``: loops that Numba compiles. ``torch``: plain PyTorch, the reference, on any device; and DGL's operators, the baseline.
"""

KERNELS = {
    "fused": "sargnn.backends.cpu.kernel:FusedKernel",
    "dgl": "sargnn.backends.torch.dgl_kernel:DglKernel",
    "reference": "sargnn.backends.torch.reference:ReferenceKernel",
}
"""Who runs edge operations, in the order in which ``kernel=auto`` tries them."""
BACKENDS = {"cpu": "sargnn.backends.cpu.kernel:CpuBackend", "torch": "sargnn.backends.torch.backend:TorchBackend"}
"""Who does all else: ``cpu`` on a CPU, ``torch`` elsewhere."""
