"""Edges that take no part in an epoch, drawn by the original ids of their ends; parallel ones share a draw.

Letters: E edges of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.kernels.block import EdgeBlock, keep_edges
from sargnn.rng import Draw, edge_mask


def drop_factors(block: EdgeBlock, draw: Draw, dtype: torch.dtype) -> Tensor:
    """[E], 0 for edges that are dropped and 1 / (1 - p) for the others, in the order of ``block.src``."""
    destinations = block.dst_per_edge()
    if block.src.device.type == "cpu":
        from sargnn.kernels.fused.edge_dropout import drop_weights

        ones = torch.ones(block.num_edges, 1, dtype=dtype)
        return drop_weights(ones, block.src_ids, block.src, block.dst_ids, destinations.to(torch.int32), draw)[:, 0]
    kept = edge_mask(block.src_ids[block.src.long()], block.dst_ids[destinations], 1, draw)[:, 0]
    return kept.to(dtype) * draw.scale


def without_dropped(block: EdgeBlock, draw: Draw | None) -> EdgeBlock:
    """The block of the edges that are kept; itself without a draw. What kernels keep with a block is made anew for it."""
    return block if draw is None else keep_edges(block, drop_factors(block, draw, torch.float32) > 0)
