"""A block's arrays as compiled loops take them, and how its rows are shared out among threads."""

from __future__ import annotations

from typing import Literal

import numba
import numpy as np
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.bf16 import array_of

ALL_ROWS = np.empty(0, np.int32)
"""What compiled loops take for a list of rows that holds every one."""
ALL_EDGES = np.empty(0, np.int32)
"""What they take for the places of edges' numbers that stand in the edges' order."""

CHUNK_EDGES = 1 << 14


def numpy_of(tensor: Tensor) -> np.ndarray:
    """The memory of a contiguous tensor, for the compiled loops."""
    assert tensor.is_contiguous()
    return array_of(tensor)


def edges_of(
    block: EdgeBlock, direction: Literal["forward", "backward"], *, by_lane: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A block's edges by destination row (``forward``) or by source row (``backward``).

    Args:
        by_lane: cut into one run of rows for each thread, so that no two share what they add to.

    Returns:
        Boundaries, int64, of runs of listed rows with about equal edges, where a row counts as one edge; the listed rows,
        int32, ``ALL_ROWS`` if all are, a row more than once where edges come from several pieces (``EdgeBlock.visits``);
        where each one's edges begin, int32; the rows at their other ends, int32.
    """
    listed: Tensor | None
    if direction == "forward" and block.visits is not None:
        (listed, offsets), others = block.visits, block.src
    elif direction == "forward":
        listed, offsets, others = block.dst_rows, block.indptr, block.src
    else:
        listed, offsets, others = block.src_rows, block.t_indptr, block.t_dst
    indptr, indices = offsets.numpy(), others.numpy()
    lanes = numba.get_num_threads() if by_lane else 0
    key = f"fused_{direction}_{lanes}"
    if key not in block.cache:
        rows = len(indptr) - 1
        work = indptr.astype(np.int64) + np.arange(rows + 1)
        runs = lanes or max(1, int(work[-1]) // CHUNK_EDGES)
        bounds = np.searchsorted(work, np.linspace(0, work[-1], runs + 1)).clip(0, rows)
        if by_lane:
            bounds[0], bounds[-1] = 0, rows
        if direction == "forward" and block.visits is not None:  # one thread adds to a row
            ids = block.visits[0].numpy()
            inner = (bounds > 0) & (bounds < rows)
            bounds[inner] = np.searchsorted(ids, ids[bounds[inner]])
        block.cache[key] = bounds if by_lane else np.unique(bounds)
    return block.cache[key], ALL_ROWS if listed is None else listed.numpy(), indptr, indices
