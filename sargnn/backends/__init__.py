"""How things are computed: one interface (``base``, ``operations``), a folder for each implementation.

``cpu``: loops in C++. ``cuda``: kernels in Triton's language. ``torch``: plain PyTorch, the reference, on any
device; and DGL's operators, the baseline.
"""

KERNELS = {
    "fused": "sargnn.backends.cpu.kernel:FusedKernel",
    "triton": "sargnn.backends.cuda.device:TritonKernel",
    "dgl": "sargnn.backends.torch.dgl_kernel:DglKernel",
    "reference": "sargnn.backends.torch.reference:ReferenceKernel",
}
"""Who runs edge operations, in the order in which ``kernel=auto`` tries them."""
OPERATIONS = {
    "sum": {
        "fused": "sargnn.backends.cpu.sums:FusedSum",
        "triton": "sargnn.backends.cuda.sums:TritonSum",
        "dgl": "sargnn.backends.torch.dgl_operations:DglSum",
        "reference": "sargnn.backends.torch.reference:ReferenceSum",
    },
    "max": {
        "fused": "sargnn.backends.cpu.sums:FusedMax",
        "triton": "sargnn.backends.cuda.sums:TritonMax",
        "dgl": "sargnn.backends.torch.dgl_operations:DglMax",
        "reference": "sargnn.backends.torch.reference:ReferenceMax",
    },
    "gine": {
        "fused": "sargnn.backends.cpu.sums:FusedGine",
        "dgl": "sargnn.backends.torch.reference:ReferenceGine",
        "reference": "sargnn.backends.torch.reference:ReferenceGine",
    },
    "scaled_sum": {
        "fused": "sargnn.backends.cpu.sums:FusedScaledSum",
        "dgl": "sargnn.backends.torch.reference:ReferenceScaledSum",
        "reference": "sargnn.backends.torch.reference:ReferenceScaledSum",
    },
    "gat": {
        "fused": "sargnn.backends.cpu.attention:FusedGat",
        "triton": "sargnn.backends.cuda.attention:TritonGat",
        "dgl": "sargnn.backends.torch.dgl_operations:DglGat",
        "reference": "sargnn.backends.torch.reference:ReferenceGat",
    },
    "gatv2": {
        "fused": "sargnn.backends.cpu.attention:FusedGatV2",
        "triton": "sargnn.backends.cuda.attention:TritonGatV2",
        "dgl": "sargnn.backends.torch.dgl_operations:DglGatV2",
        "reference": "sargnn.backends.torch.reference:ReferenceGatV2",
    },
    "edge_gat": {
        "fused": "sargnn.backends.cpu.attention:FusedGat",
        "dgl": "sargnn.backends.torch.reference:ReferenceGat",
        "reference": "sargnn.backends.torch.reference:ReferenceGat",
    },
    "edge_gatv2": {
        "fused": "sargnn.backends.cpu.attention:FusedGatV2",
        "dgl": "sargnn.backends.torch.reference:ReferenceGatV2",
        "reference": "sargnn.backends.torch.reference:ReferenceGatV2",
    },
    "dot": {
        "fused": "sargnn.backends.cpu.attention:FusedDot",
        "triton": "sargnn.backends.cuda.attention:TritonDot",
        "dgl": "sargnn.backends.torch.dgl_operations:DglDot",
        "reference": "sargnn.backends.torch.reference:ReferenceDot",
    },
}
"""Operations on blocks of edges: the class of each kernel that has one. DGL's layers make a row for each edge, too, where they
read features of edges."""
BACKENDS = {
    "cpu": "sargnn.backends.cpu.kernel:CpuBackend",
    "cuda": "sargnn.backends.cuda.device:CudaBackend",
    "torch": "sargnn.backends.torch.backend:TorchBackend",
}
"""Who does all else: ``cpu`` on a CPU; elsewhere ``cuda``, or ``torch`` without Triton."""
DEVICES = {"cpu": "sargnn.backends.device:Device", "cuda": "sargnn.backends.cuda.device:CudaDevice"}
"""Where rows may lie: what answers for a device of PyTorch's, by its type."""
