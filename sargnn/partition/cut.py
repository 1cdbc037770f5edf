"""Cutting a dataset into parts: for each worker its own rows, its in-edges by source part, its halo and send lists.

Letters: N own nodes, H halo rows, E in-edges, F features, P parts, T node types, R relations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from sargnn.data.dataset import Dataset, group_by
from sargnn.data.schema import Schema


@dataclass(frozen=True)
class Part:
    """What one worker owns and needs. Arrays may be memory-mapped.

    Attributes:
        schema: node types and relations of the whole graph.
        features: per node type float32 [own nodes of the type, F].
        node_ids: int64 [N], original ids of the own nodes in local order: type by type.
        labels: int64 [N]. split: uint8 [N].
        in_degrees, out_degrees: int64 [N], in the whole graph, self-loops and parallel edges counted.
        edge_src: int32 [E], row in the halo of the source part (own row for the own part).
        edge_dst: int32 [E], own row. Edges are sorted by (source part, relation, destination, source).
        edge_offsets: int64 [P R + 1]: the edges of relation r from part q start at ``edge_offsets[q R + r]``.
        halo_ids: int64 [H], original ids of the remote rows that are needed, by owner, ascending in the owner's order.
        halo_offsets: int64 [P + 1], per owner.
        send_rows: int32, own rows that each peer needs, by peer, ascending; the peer's halo has the same order.
        send_offsets: int64 [P + 1], per peer.
    """

    schema: Schema
    features: tuple[np.ndarray, ...]
    node_ids: np.ndarray
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

    @property
    def row_bounds(self) -> tuple[int, ...]:
        """T + 1: the own rows of type t are ``[row_bounds[t], row_bounds[t + 1])``."""
        return self.schema.bounds(self.node_ids)

    def edges(self, peer: int, relation: int) -> tuple[np.ndarray, np.ndarray]:
        """``edge_src`` and ``edge_dst`` of one relation's edges from part ``peer``."""
        first = peer * len(self.schema.relations) + relation
        span = slice(self.edge_offsets[first], self.edge_offsets[first + 1])
        return self.edge_src[span], self.edge_dst[span]


PART_ARRAYS = tuple(f.name for f in fields(Part) if f.name not in ("schema", "features"))


def cut(dataset: Dataset, offsets: np.ndarray, nodes: np.ndarray) -> Iterator[Part]:
    """Cut a dataset into parts, in rank order.

    Args:
        offsets: int64 [P + 1], nodes: int64 [N of the graph]; part p owns ``nodes[offsets[p]:offsets[p + 1]]``, in
            this order, type by type.
    """
    world, num_relations = len(offsets) - 1, len(dataset.schema.relations)
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
        if dataset.relation is not None:
            owner = owner * num_relations + dataset.relation[positions]
        order = np.lexsort((source, row, owner))
        source, owner = source[order], owner[order]
        per_relation = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=world * num_relations))])
        per_owner = per_relation[::num_relations]
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
        edge_offsets.append(per_relation)
        halos.append(halo)

    schema = dataset.schema
    for p in range(world):
        own = nodes[offsets[p] : offsets[p + 1]]
        bounds = schema.bounds(own)
        send = [(halos[q][p] - offsets[p]).astype(np.int32) for q in range(world)]
        yield Part(
            schema=schema,
            features=tuple(
                np.asarray(rows[own[bounds[t] : bounds[t + 1]] - schema.offsets[t]], dtype=np.float32)
                for t, rows in enumerate(dataset.features)
            ),
            node_ids=own,
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


def one_type(part: Part, rank: int, node_type: int) -> Part:
    """The nodes of one type with all relations between them, as a homogeneous graph. ``out_degrees`` are not known: 0."""
    a, b = part.row_bounds[node_type : node_type + 2]
    world = len(part.halo_offsets) - 1
    relations = [r for r, one in enumerate(part.schema.relations) if one.source == one.destination == node_type]
    sources, destinations, halos, send = [], [], [], []
    for q in range(world):
        halo = part.halo_ids[part.halo_offsets[q] : part.halo_offsets[q + 1]]
        first, last = part.schema.bounds(halo)[node_type : node_type + 2]
        edges = [part.edges(q, r) for r in relations]
        nothing = np.zeros(0, np.int32)
        src = np.concatenate([nothing, *(one for one, _ in edges)]) - np.int32(a if q == rank else first)
        dst = np.concatenate([nothing, *(one for _, one in edges)]) - np.int32(a)
        order = np.lexsort((src, dst))
        sources.append(src[order])
        destinations.append(dst[order])
        halos.append(halo[first:last])
        rows = part.send_rows[part.send_offsets[q] : part.send_offsets[q + 1]]
        send.append(rows[(rows >= a) & (rows < b)] - np.int32(a))
    all_destinations = np.concatenate(destinations)
    return Part(
        schema=Schema.homogeneous(part.schema.num_nodes),
        features=(part.features[node_type],),
        node_ids=part.node_ids[a:b],
        labels=part.labels[a:b],
        split=part.split[a:b],
        in_degrees=np.bincount(all_destinations, minlength=b - a),
        out_degrees=np.zeros(b - a, np.int64),
        edge_src=np.concatenate(sources),
        edge_dst=all_destinations,
        edge_offsets=_offsets(sources),
        halo_ids=np.concatenate(halos),
        halo_offsets=_offsets(halos),
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
