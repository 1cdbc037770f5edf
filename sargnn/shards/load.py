"""From a part to a layer plan.

Letters: N own rows, H halo rows, E edges, P parts.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.exchange import HaloLists, Piece
from sargnn.errors import StoreError
from sargnn.kernels.block import EdgeBlock
from sargnn.partition.cut import Part
from sargnn.shards.plan import LayerPlan, Shard

Layout = Literal["sharded", "merged"]


def load_plan(
    part: Part, rank: int, layout: Layout, *, add_self_loops: bool, device: torch.device, piece_rows: int = 2**31
) -> LayerPlan:
    """The plan that all layers share when every row is computed.

    Args:
        part: the worker's part.
        layout: ``sharded`` makes one shard per peer, ``merged`` one for all.
        piece_rows: no message of the sharded layout holds more rows; the same on all ranks.
        add_self_loops: give every node exactly one self-loop; those in the data are dropped first.

    Raises:
        StoreError: a part with 2**31 or more edges: local indices are 32 bits wide.
    """
    world = len(part.edge_offsets) - 1
    num_rows = len(part.node_ids)
    src, dst, offsets = np.asarray(part.edge_src), np.asarray(part.edge_dst), np.asarray(part.edge_offsets)
    if len(src) + num_rows >= 2**31:
        raise StoreError(
            f"Part {rank} has {len(src)} edges, more than local indices can number.",
            hint="use more workers: world=N with a larger N",
        )
    in_degrees = np.array(part.in_degrees, dtype=np.int64)
    out_degrees = np.array(part.out_degrees, dtype=np.int64)
    local_src, local_dst = src[offsets[rank] : offsets[rank + 1]], dst[offsets[rank] : offsets[rank + 1]]
    if add_self_loops:
        local_src, local_dst, dropped = _with_self_loops(local_src, local_dst, num_rows)
        in_degrees += 1 - dropped
        out_degrees += 1 - dropped

    halo_sizes = np.diff(part.halo_offsets)
    edges = [
        (local_src, local_dst) if q == rank else (src[offsets[q] : offsets[q + 1]], dst[offsets[q] : offsets[q + 1]])
        for q in range(world)
    ]
    starts = [0 if q == rank else num_rows + int(part.halo_offsets[q]) for q in range(world)]
    ids = np.concatenate([part.node_ids, part.halo_ids])
    order = _places(ids)
    node_ids = _tensor(np.asarray(part.node_ids), device)
    send = np.asarray(part.send_rows)
    lists = HaloLists(
        send_rows=tuple(_tensor(send[part.send_offsets[q] : part.send_offsets[q + 1]], device) for q in range(world)),
        receive_rows=tuple(int(size) for size in halo_sizes),
        piece_rows=piece_rows,
    )
    shards: dict[Piece, Shard] | None = None
    merged: Shard | None = None
    if layout == "sharded":
        own = _block(*edges[rank], order[:num_rows], node_ids, node_ids)
        shards = {Piece(rank, 0): Shard(rank, own)}
        for now in lists.rounds(rank):
            peer, number = now.piece
            spans = lists.spans(lists.receive_rows[peer])
            first, last = spans[number] if number < len(spans) else (0, 0)
            shard_src, shard_dst = edges[peer]
            inside = (shard_src >= first) & (shard_src < last)
            rows = slice(starts[peer] + first, starts[peer] + last)
            row_ids = _tensor(ids[rows], device)
            block = _block(shard_src[inside] - np.int32(first), shard_dst[inside], order[rows], row_ids, node_ids)
            shards[now.piece] = Shard(peer, block)
    else:
        all_src = np.concatenate([edges[q][0] + np.int32(starts[q]) for q in range(world)])
        all_dst = np.concatenate([edges[q][1] for q in range(world)])
        by_dst = np.argsort(all_dst, kind="stable")
        merged = Shard(-1, _block(all_src[by_dst], all_dst[by_dst], order, _tensor(ids, device), node_ids))
    return LayerPlan(
        rank=rank,
        world=world,
        num_rows=num_rows,
        num_out=num_rows,
        out_rows=None,
        node_ids=node_ids,
        in_degrees=_tensor(in_degrees, device),
        out_degrees=_tensor(out_degrees, device),
        lists=lists,
        shards=shards,
        merged=merged,
    )


def _with_self_loops(src: np.ndarray, dst: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Local edges with exactly one self-loop per row, sorted by destination, and how many loops each row lost."""
    loops = src == dst
    dropped = np.bincount(dst[loops], minlength=num_rows)
    own = np.arange(num_rows, dtype=np.int32)
    src, dst = np.concatenate([src[~loops], own]), np.concatenate([dst[~loops], own])
    order = np.argsort(dst, kind="stable")
    return src[order], dst[order], dropped


def _places(ids: np.ndarray) -> np.ndarray:
    """int32, the place of each id in ascending order."""
    places = np.empty(len(ids), np.int32)
    places[np.argsort(ids)] = np.arange(len(ids), dtype=np.int32)
    return places


def _block(src: np.ndarray, dst: np.ndarray, order: np.ndarray, src_ids: Tensor, dst_ids: Tensor) -> EdgeBlock:
    device = dst_ids.device
    return EdgeBlock(
        _tensor(src, device), _tensor(dst, device), len(src_ids), len(dst_ids), _tensor(order, device), src_ids, dst_ids
    )


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """A tensor with memory of its own (stores are mapped read-only)."""
    return torch.from_numpy(np.array(array)).to(device)
