"""Cutting a dataset into parts: for each worker its own rows, its in-edges by source part, its halo and send lists.

Letters: N own nodes, H halo rows, E in-edges, F features, P parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from sargnn.data.dataset import Dataset, group_by


@dataclass(frozen=True)
class Part:
    """What one worker owns and needs. Arrays may be memory-mapped.

    Attributes:
        node_ids: int64 [N], original ids of the own nodes in local order.
        features: float32 [N, F]. labels: int64 [N]. split: uint8 [N].
        in_degrees, out_degrees: int64 [N], in the whole graph, self-loops and parallel edges counted.
        edge_src: int32 [E], row in the halo of the source part (own row for the own part).
        edge_dst: int32 [E], own row. Edges are sorted by (source part, destination, source).
        edge_offsets: int64 [P + 1]: the edges from part q are ``[edge_offsets[q], edge_offsets[q + 1])``.
        halo_ids: int64 [H], original ids of the remote rows that are needed, by owner, ascending in the owner's order.
        halo_offsets: int64 [P + 1], per owner.
        send_rows: int32, own rows that each peer needs, by peer, ascending; the peer's halo has the same order.
        send_offsets: int64 [P + 1], per peer.
    """

    node_ids: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    split: np.ndarray
    in_degrees: np.ndarray
    out_degrees: np.ndarray
    edge_src: np.ndarray
    edge_dst: np.ndarray
    edge_offsets: np.ndarray
    halo_ids: np.ndarray
    halo_offsets: np.ndarray
    send_rows: np.ndarray
    send_offsets: np.ndarray


PART_ARRAYS = tuple(f.name for f in fields(Part))


def cut(dataset: Dataset, offsets: np.ndarray, nodes: np.ndarray) -> Iterator[Part]:
    """Cut a dataset into parts, in rank order.

    Args:
        offsets: int64 [P + 1], nodes: int64 [N of the graph]; part p owns ``nodes[offsets[p]:offsets[p + 1]]``, in
            this order.
    """
    world = len(offsets) - 1
    indptr = np.asarray(dataset.indptr)
    position = np.empty(dataset.num_nodes, np.int64)
    position[nodes] = np.arange(dataset.num_nodes)
    out_degrees = np.bincount(dataset.indices, minlength=dataset.num_nodes)

    sources, destinations, edge_offsets, halos = [], [], [], []
    for p in range(world):
        own = nodes[offsets[p] : offsets[p + 1]]
        positions, row = edge_positions(indptr, own)
        source = position[dataset.indices[positions]]
        owner = np.searchsorted(offsets, source, side="right") - 1
        order = np.lexsort((source, row, owner))
        source, owner = source[order], owner[order]
        per_owner = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=world))])
        local = np.empty(len(source), np.int32)
        halo: list[np.ndarray] = []
        for q in range(world):
            block = slice(per_owner[q], per_owner[q + 1])
            if q == p:
                local[block] = source[block] - offsets[q]
                halo.append(np.zeros(0, np.int64))
            else:
                unique, inverse = np.unique(source[block], return_inverse=True)
                local[block] = inverse
                halo.append(unique)
        sources.append(local)
        destinations.append(row[order].astype(np.int32))
        edge_offsets.append(per_owner)
        halos.append(halo)

    for p in range(world):
        own = nodes[offsets[p] : offsets[p + 1]]
        send = [(halos[q][p] - offsets[p]).astype(np.int32) for q in range(world)]
        yield Part(
            node_ids=own,
            features=np.asarray(dataset.features[own], dtype=np.float32),
            labels=np.asarray(dataset.labels[own]),
            split=np.asarray(dataset.split[own]),
            in_degrees=indptr[own + 1] - indptr[own],
            out_degrees=out_degrees[own],
            edge_src=sources[p],
            edge_dst=destinations[p],
            edge_offsets=edge_offsets[p],
            halo_ids=nodes[np.concatenate(halos[p])],
            halo_offsets=_offsets(halos[p]),
            send_rows=np.concatenate(send),
            send_offsets=_offsets(send),
        )


def edge_positions(indptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The positions of all edges of the given rows of a CSR matrix, and for each edge which of ``rows`` it belongs to."""
    degrees = indptr[rows + 1] - indptr[rows]
    which = np.repeat(np.arange(len(rows), dtype=np.int64), degrees)
    starts = np.concatenate([[0], np.cumsum(degrees)])[:-1]
    return np.arange(len(which), dtype=np.int64) - starts[which] + indptr[rows][which], which


def parts_of(dataset: Dataset, assignment: np.ndarray, world: int) -> Iterator[Part]:
    """Cut by an assignment (int32 [N]), original order inside each part."""
    return cut(dataset, *group_by(assignment, world))


def _offsets(lists: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
