"""How Triton kernels are started, and the code that several of them share.

On a GPU they are compiled. Where ``TRITON_INTERPRET=1`` is set before Triton is imported, its interpreter runs them on a CPU's
tensors, slowly: what tests do.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.rng import Draw

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter."""
WORDS = ["seed", "epoch", "tag", "threshold"]
"""Arguments of kernels that draw: another number of these makes no other code."""


def run(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start a program of a kernel for each place of a grid; none where it has none.

    Args:
        grid: at most 65,535 in the second and the third place.
        arguments: tensors, numbers, None. Of a tensor with an attribute ``host``, such as one on a pretended device, the kernel
            gets that one.
        constants: also ``num_warps``.
    """
    if all(grid):
        kernel[grid](*(getattr(argument, "host", argument) for argument in arguments), **constants)


def held(dtype: torch.dtype) -> Any:
    """What sums of rows of a dtype are held in, as kernels take it."""
    return tl.float64 if wide(dtype) == torch.float64 else tl.float32


def words(draw: Draw | None) -> tuple[int, int, int, int, float]:
    """A draw as kernels take it: seed, epoch, tag, threshold, and what is kept is multiplied with; 0 drops nothing."""
    return (0, 0, 0, 0, 1.0) if draw is None else (draw.seed, draw.epoch, draw.tag, draw.threshold, draw.scale)


def tile(width: int, dtype: torch.dtype, most: int = 256) -> dict[str, Any]:
    """The constants of a kernel that walks over tiles of rows of ``width`` columns: ``EDGES`` rows of ``COLUMNS`` columns.

    Args:
        dtype: of the rows; what sums of them are ``HELD`` in goes by it.
        most: columns of a tile; wider rows are several.
    """
    columns = min(triton.next_power_of_2(max(width, 1)), most)
    warps = warps_of(columns)
    return {"HELD": held(dtype), "EDGES": edges_of(columns, warps, dtype), "COLUMNS": columns, "num_warps": warps}


def warps_of(columns: int) -> int:
    """Eight columns a thread, as long as there are warps."""
    return min(32, max(1, columns // 256))


def edges_of(columns: int, warps: int, dtype: torch.dtype) -> int:
    """How many rows a tile has: 128 bytes of registers a thread."""
    return max(2, 4096 // wide(dtype).itemsize * warps // max(columns, 16))


def in_wide(tensor: Tensor | None, like: torch.dtype) -> Tensor | None:
    """Factors in what sums of rows are held in, contiguous."""
    return None if tensor is None else tensor.to(wide(like)).contiguous()


@triton.jit
def drawn(source, destination, column, tag, seed, epoch):
    """The draw of each column, or head, of a node or an edge, uint32: word ``column % 4`` of the counter (source, destination,
    column // 4, tag) of ``sargnn.rng``. All are broadcast; a node's destination is 0."""
    key = (epoch.to(tl.uint64) << 32) | seed.to(tl.uint64)
    zero = (source + destination + column) * 0
    c0 = (source + zero).to(tl.uint32)
    c1 = (destination + zero).to(tl.uint32)
    c2 = (column // 4 + zero).to(tl.uint32)
    c3 = (tag + zero).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(key, c0, c1, c2, c3)
    which = column % 4
    return tl.where(which == 0, w0, tl.where(which == 1, w1, tl.where(which == 2, w2, w3)))
