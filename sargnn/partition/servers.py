"""A graph cut into servers first, and each server into its workers, so that few edges join two servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import NO_COLUMNS
from sargnn.partition.cut import edge_positions

_CHUNK_ROWS = 1 << 16


def assign_in_servers(dataset: Dataset, assign: Callable[[Dataset, int], np.ndarray], world: int, servers: int) -> np.ndarray:
    """The worker of each node, int32 [N]: workers ``[s G, (s + 1) G)`` are server s, with G = ``world`` / ``servers``.

    Args:
        assign: a partitioner; gives for a graph and a number of parts each node's part.
    """
    workers = world // servers
    server_of = assign(dataset, servers)
    worker_of = server_of.astype(np.int32) * np.int32(workers)
    if workers > 1:
        for server in range(servers):
            nodes = np.flatnonzero(server_of == server)
            if len(nodes):
                worker_of[nodes] += assign(induced(dataset, nodes), workers)
    return worker_of


def induced(dataset: Dataset, nodes: np.ndarray) -> Dataset:
    """The graph of some nodes and the edges between them, renumbered, without features and what edges carry.

    Args:
        nodes: int64 ascending.
    """
    place = np.full(dataset.num_nodes, -1, np.int64)
    place[nodes] = np.arange(len(nodes))
    indptr = np.asarray(dataset.indptr)
    sources, relations, degrees = [], [], np.zeros(len(nodes), np.int64)
    for first in range(0, len(nodes), _CHUNK_ROWS):
        positions, which = edge_positions(indptr, nodes[first : first + _CHUNK_ROWS])
        source = place[dataset.indices[positions]]
        inside = source >= 0
        degrees[first : first + _CHUNK_ROWS] = np.bincount(which[inside], minlength=len(nodes[first : first + _CHUNK_ROWS]))
        sources.append(source[inside].astype(np.int32))
        if dataset.relation is not None:
            relations.append(dataset.relation[positions[inside]])
    schema = dataclasses.replace(dataset.schema, offsets=dataset.schema.bounds(nodes))
    return dataclasses.replace(
        dataset,
        schema=schema,
        features=tuple(np.zeros((schema.count(t), 0), np.float32) for t in range(len(schema.node_types))),
        labels=np.asarray(dataset.labels)[nodes],
        split=np.asarray(dataset.split)[nodes],
        indptr=np.concatenate([[0], np.cumsum(degrees)]),
        indices=np.concatenate(sources),
        relation=np.concatenate(relations) if relations else None,
        columns=NO_COLUMNS,
        content_hash="",
        stored_weights=None,
    )
