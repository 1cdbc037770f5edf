"""A block's arrays as compiled loops take them, and how its rows are shared out among threads."""

from __future__ import annotations

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


def listed_rows(block: EdgeBlock) -> np.ndarray:
    """int32 [A], the destination rows that are listed; ``ALL_ROWS`` if all are."""
    return ALL_ROWS if block.dst_rows is None else block.dst_rows.numpy()


def listed_sources(block: EdgeBlock) -> np.ndarray:
    """int32 [B], the source rows that are listed; ``ALL_ROWS`` if all are."""
    return ALL_ROWS if block.src_rows is None else block.src_rows.numpy()


def chunks_of_block(block: EdgeBlock, direction: str) -> np.ndarray:
    """``chunks_of`` the block's listed destinations (``forward``) or its sources (``backward``), kept with the block."""
    key = f"fused_{direction}"
    if key not in block.cache:
        block.cache[key] = chunks_of((block.indptr if direction == "forward" else block.t_indptr).numpy())
    chunks: np.ndarray = block.cache[key]
    return chunks


def lanes_of_block(block: EdgeBlock, direction: str) -> np.ndarray:
    """Boundaries, int64, of runs of rows with about equal edges, one per thread: no two lanes share what they add to."""
    lanes = numba.get_num_threads()
    key = f"fused_lanes_{direction}_{lanes}"
    if key not in block.cache:
        block.cache[key] = lanes_of((block.indptr if direction == "forward" else block.t_indptr).numpy(), lanes)
    bounds: np.ndarray = block.cache[key]
    return bounds


def chunks_of(indptr: np.ndarray) -> np.ndarray:
    """Boundaries, int64, of runs of rows with about ``CHUNK_EDGES`` edges each (rows count a little too)."""
    rows = len(indptr) - 1
    work = indptr.astype(np.int64) + np.arange(rows + 1)
    number = max(1, int(work[-1]) // CHUNK_EDGES)
    return np.unique(np.searchsorted(work, np.linspace(0, work[-1], number + 1)).clip(0, rows))


def lanes_of(indptr: np.ndarray, lanes: int) -> np.ndarray:
    """Boundaries, int64 [lanes + 1], of runs of rows with about equal work: a row counts as one edge."""
    rows = len(indptr) - 1
    work = indptr.astype(np.int64) + np.arange(rows + 1)
    bounds = np.searchsorted(work, np.linspace(0, work[-1], lanes + 1)).clip(0, rows)
    bounds[0], bounds[-1] = 0, rows
    return bounds
