"""A part of the reversed graph: each worker's out-edges in place of its in-edges.

The edges j -> i into a worker's own rows i are known to it, with j as a place in its halo. The owner of j gets them, one message
from each worker to each other one, and has them as edges i -> j of the reversed graph: j is its own row, i a halo row.

Letters: N own rows, E edges, P workers.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from sargnn.comm.group import Group
from sargnn.comm.swap import swap
from sargnn.partition.cut import Part


def transposed(part: Part, group: Group) -> Part:
    """The same worker's part of the reversed graph; all workers must call it together. Homogeneous graphs only.

    Its edges carry what they carried, and are sorted as a part's are: by source part, destination, source.
    """
    assert not part.schema.typed and not part.columns
    rank, world = group.rank, group.world
    sent: list[np.ndarray] = []
    needed: list[np.ndarray] = []
    for peer in range(world):
        src, dst = part.edges(peer, 0)
        rows = np.empty(0, np.int32) if peer == rank else np.unique(dst).astype(np.int32)
        needed.append(rows)
        sent.append(np.stack([dst if peer == rank else np.searchsorted(rows, dst), src], 1).astype(np.int32))
    edges = swap(group, sent, "the edges of the reversed graph")
    halo_ids = swap(group, [part.node_ids[rows] for rows in needed], "the nodes of the reversed graph's halo")
    halo_ids[rank] = np.empty(0, np.int64)
    sources, destinations = [], []
    for peer, pairs in enumerate(edges):
        src, own = pairs[:, 0], pairs[:, 1]
        if peer != rank:
            own = part.send_rows[part.send_offsets[peer] : part.send_offsets[peer + 1]][own]
        order = np.lexsort((src, own))
        sources.append(src[order])
        destinations.append(own[order].astype(np.int32))
    return dataclasses.replace(
        part,
        edge_src=np.concatenate(sources),
        edge_dst=np.concatenate(destinations),
        edge_offsets=_offsets(sources),
        halo_ids=np.concatenate(halo_ids),
        halo_offsets=_offsets(halo_ids),
        send_rows=np.concatenate(needed),
        send_offsets=_offsets(needed),
        in_degrees=part.out_degrees,
        out_degrees=part.in_degrees,
        in_weights=part.out_weights,
        out_weights=part.in_weights,
    )


def _offsets(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(array) for array in arrays])]).astype(np.int64)
