"""A block's edges as the library walks them, how its rows are shared out among threads, and where features of edges lie.

Letters: E edges, D features of an edge, F columns of what they are mapped to.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.walks import Direction
from sargnn.graph.edge_columns import ATTR
from sargnn.native import Edges

CHUNK_EDGES = 1 << 14
"""Of a chunk that one thread takes."""
LANE_EDGES, LANE_ROWS, MOST_LANES = 1 << 15, 2, 16
"""Of a lane, which adds to a table of its own: at least so many edges, and so many for each row at the other ends, for the
table is set to zero and added to the others'."""


def edges_of(block: EdgeBlock, direction: Direction, *, by_lane: bool = False) -> Edges:
    """A block's edges by destination row (``forward``) or by source row (``backward``), cut into runs of rows with about equal
    edges, where a row counts as one edge; ``by_lane``: into few runs, each of which adds to a table of its own.

    A row is listed more than once where edges come from several pieces (``EdgeBlock.visits``). How they are cut depends on the
    block alone, so that results do not depend on the number of threads.
    """
    listed: Tensor | None
    if direction == "forward" and block.visits is not None:
        (listed, offsets), others = block.visits, block.src
    elif direction == "forward":
        listed, offsets, others = block.dst_rows, block.indptr, block.src
    else:
        listed, offsets, others = block.src_rows, block.t_indptr, block.t_dst
    key = f"fused_{direction}_{'lanes' if by_lane else 'chunks'}"
    held: Edges | None = block.cache.get(key)
    if held is not None and held.arrays[2] is offsets and held.arrays[3] is others:
        return held
    if held is None:
        rows = len(offsets) - 1
        work = offsets.numpy().astype(np.int64) + np.arange(rows + 1)
        runs = int(work[-1]) // CHUNK_EDGES
        if by_lane:
            other_rows = block.num_src if direction == "forward" else block.num_dst
            runs = min(MOST_LANES, len(others) // max(LANE_EDGES, LANE_ROWS * other_rows))
        bounds = np.searchsorted(work, np.linspace(0, work[-1], max(1, runs) + 1)).clip(0, rows)
        bounds[0], bounds[-1] = 0, rows
        if direction == "forward" and block.visits is not None:  # one thread adds to a row
            ids = block.visits[0].numpy()
            inner = (bounds > 0) & (bounds < rows)
            bounds[inner] = np.searchsorted(ids, ids[bounds[inner]])
        bounds = np.unique(bounds)
    else:  # its tensors lie elsewhere now
        bounds = held.arrays[0]
    block.cache[key] = held = Edges(bounds, listed, offsets, others)
    return held


Features = tuple[np.ndarray, np.ndarray | None]
"""float32 [n, D], mapped or not, and which of its rows the edges have: int32 [E], -1 for zeros; None: all, in order."""


def features_of(block: EdgeBlock) -> Features:
    if "features" not in block.cache:
        column = block.columns.columns[ATTR]
        array, places = column.array, None
        if isinstance(array, Tensor):
            array = array.float().numpy()
        elif isinstance(column.order, slice):
            array = array[column.order]
        elif column.order is not None:
            places = column.order
        block.cache["features"] = array.reshape(len(array), -1), places
    held: Features = block.cache["features"]
    return held


def table_of(weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[D + 1, F]: a row for each feature of W [F, D], and b [F], zeros without one."""
    weight = weight.detach()
    last = weight.new_zeros(1, len(weight)) if bias is None else bias.detach()[None]
    return torch.cat([weight.T, last])
