"""How things are computed: one interface (``base``, ``operations``), a folder for each implementation.

``cpu``: loops in C++. ``cuda``: kernels in Triton's language. ``torch``: plain PyTorch, the reference, on any
device; and DGL's operators, the baseline.
"""

KERNELS = {
    "fused": "sargnn.backends.cpu.kernel:FusedKernel",
    "triton": "sargnn.backends.cuda.kernel:TritonKernel",
    "dgl": "sargnn.backends.torch.dgl_kernel:DglKernel",
    "reference": "sargnn.backends.torch.reference:ReferenceKernel",
}
"""Who runs edge operations, in the order in which ``kernel=auto`` tries them."""
BACKENDS = {
    "cpu": "sargnn.backends.cpu.kernel:CpuBackend",
    "cuda": "sargnn.backends.cuda.kernel:CudaBackend",
    "torch": "sargnn.backends.torch.backend:TorchBackend",
}
"""Who does all else: ``cpu`` on a CPU; elsewhere ``cuda``, or ``torch`` without Triton."""
DEVICES = {"cpu": "sargnn.backends.device:Device", "cuda": "sargnn.backends.cuda.device:CudaDevice"}
"""Where rows may lie: what answers for a device of PyTorch's, by its type."""
