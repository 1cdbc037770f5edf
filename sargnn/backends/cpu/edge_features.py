"""Features of a block's edges as the library reads them: from where they lie.

Letters: E edges, D features of an edge, F columns of what they are mapped to.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.graph.edge_columns import ATTR

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
