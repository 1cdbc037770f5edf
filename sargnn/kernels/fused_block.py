"""A block's arrays as compiled loops take them."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from sargnn.kernels.block import EdgeBlock

ALL_ROWS = np.empty(0, np.int32)
"""What compiled loops take for a list of rows that holds every one."""


def numpy_of(tensor: Tensor) -> np.ndarray:
    """The memory of a contiguous tensor, for the compiled loops."""
    assert tensor.is_contiguous()
    return tensor.detach().numpy()


def listed_rows(block: EdgeBlock) -> np.ndarray:
    return ALL_ROWS if block.dst_rows is None else block.dst_rows.numpy()


def chunks_of_block(block: EdgeBlock, direction: str) -> np.ndarray:
    from sargnn.kernels.cpu_spmm import chunks_of

    key = f"fused_{direction}"
    if key not in block.cache:
        block.cache[key] = chunks_of((block.indptr if direction == "forward" else block.t_indptr).numpy())
    chunks: np.ndarray = block.cache[key]
    return chunks


def lanes_of_block(block: EdgeBlock, direction: str) -> np.ndarray:
    """Boundaries, int64, of runs of rows with about equal edges, one per thread: no two lanes share what they add to."""
    import numba

    from sargnn.kernels.cpu_attention import lanes_of

    lanes = numba.get_num_threads()
    key = f"fused_lanes_{direction}_{lanes}"
    if key not in block.cache:
        block.cache[key] = lanes_of((block.indptr if direction == "forward" else block.t_indptr).numpy(), lanes)
    bounds: np.ndarray = block.cache[key]
    return bounds
