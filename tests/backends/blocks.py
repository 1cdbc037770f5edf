"""Random blocks of edges with their dense matrices, and rows for them."""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.backends import KERNELS
from sargnn.backends.block import EdgeBlock

CPU_KERNELS = [name for name in KERNELS if name != "triton"]
"""All but those of a GPU, which ``tests/backends/cuda`` runs in an interpreter that takes a thousand times as long."""
SHAPES = [(6, 9, 20), (1, 1, 1), (5, 7, 0), (40, 3, 100), (3, 40, 30), (0, 4, 0), (4, 0, 0)]
"""Sources, destinations and edges of a block."""


def block_of(num_src: int, num_dst: int, num_edges: int, seed: int = 0) -> tuple[EdgeBlock, Tensor]:
    """A random block with parallel edges, and its dense matrix [D, S]."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(max(num_src, 1), (num_edges,), generator=generator, dtype=torch.int32)
    dst = torch.randint(max(num_dst, 1), (num_edges,), generator=generator, dtype=torch.int32).sort().values
    dense = torch.zeros(num_dst, num_src, dtype=torch.float64)
    if num_edges:
        dense.index_put_((dst.long(), src.long()), torch.ones(()).double(), accumulate=True)
    return EdgeBlock(src, dst, num_src, num_dst), dense


def integers(rows: int, width: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Small whole numbers [rows, width], sums of which are exact in any order."""
    return torch.randint(-9, 9, (rows, width), generator=torch.Generator().manual_seed(seed)).to(dtype)
