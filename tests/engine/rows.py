"""What a norm over rows takes."""

from __future__ import annotations

import torch
from torch import Tensor


def inputs(rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rows [N, F] that are not centred, weight [F], bias [F], original ids [N] and gradients of the output [N, F]."""
    generator = torch.Generator().manual_seed(rows * 100 + width)
    x = 3 + 2 * torch.randn(rows, width, generator=generator, dtype=dtype)
    weight, bias = (torch.randn(width, generator=generator, dtype=dtype) for _ in range(2))
    ids = torch.randperm(10 * rows, generator=generator)[:rows]
    return x, weight, bias, ids, torch.randn(rows, width, generator=generator, dtype=dtype)
