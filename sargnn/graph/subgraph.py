"""Parts of a graph as graphs of their own: the edges between some of its nodes, which are numbered anew.

Letters: N nodes, E directed edges, K nodes that are kept.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from sargnn.graph.check import index_dtype
from sargnn.graph.dataset import Dataset, edge_positions
from sargnn.graph.edge_columns import NO_COLUMNS
from sargnn.graph.schema import SPLITS

_SEEDS = 64
"""At most so many nodes to begin with: training nodes, and as many of each type, so that none is without nodes."""
_CHUNK_ROWS = 1 << 16


def cut_surroundings(dataset: Dataset, count: int, seed: int = 0) -> Dataset:
    """The graph between at most ``count`` nodes: training nodes, their in-neighbours, the in-neighbours of these, and so on.

    For what must be quick. Reads the edges into the kept nodes only, and the split. ``count``: at least a few hundred.
    """
    ids = _choose(dataset, count, np.random.default_rng(seed))
    positions, destinations = edge_positions(dataset.indptr, ids)
    given = np.asarray(dataset.indices[positions])
    sources = np.searchsorted(ids, given)
    kept = ids[np.minimum(sources, len(ids) - 1)] == given
    sources, destinations, positions = sources[kept], destinations[kept], positions[kept]
    schema = dataset.schema
    bounds = schema.bounds(ids)
    rows = [ids[a:b] - first for a, b, first in zip(bounds, bounds[1:], schema.offsets, strict=False)]
    return dataclasses.replace(
        dataset,
        schema=dataclasses.replace(schema, offsets=bounds),
        features=tuple(np.array(table[own]) for table, own in zip(dataset.features, rows, strict=True)),
        labels=np.array(dataset.labels[ids]),
        split=np.array(dataset.split[ids]),
        indptr=np.concatenate([[0], np.cumsum(np.bincount(destinations, minlength=len(ids)))]).astype(np.int64),
        indices=sources.astype(index_dtype(len(ids))),
        relation=None if dataset.relation is None else np.array(dataset.relation[positions]),
        columns=dataset.columns.take(positions),
        content_hash="",
        stored_weights=None,
    )


def _choose(dataset: Dataset, count: int, rng: np.random.Generator) -> np.ndarray:
    """Original ids, int64 [K], ascending."""
    training = np.flatnonzero(np.asarray(dataset.split) == SPLITS["train"])
    seeds = min(_SEEDS, count // (1 + len(dataset.schema.node_types)))
    chosen = rng.choice(training, min(seeds, len(training)), replace=False)
    for first, last in zip(dataset.schema.offsets, dataset.schema.offsets[1:], strict=False):
        chosen = np.union1d(chosen, first + rng.choice(last - first, min(seeds, last - first), replace=False))
    reached = chosen
    while len(reached) and len(chosen) < count:
        places, _ = edge_positions(dataset.indptr, reached)
        reached = np.setdiff1d(np.asarray(dataset.indices[places]), chosen)
        if len(reached) > count - len(chosen):
            reached = rng.choice(reached, count - len(chosen), replace=False)
        chosen = np.union1d(chosen, reached)
    if len(chosen) < count:  # what reaches them is less than may be kept
        others = np.setdiff1d(rng.choice(dataset.num_nodes, min(count, dataset.num_nodes), replace=False), chosen)
        chosen = np.union1d(chosen, others[: count - len(chosen)])
    return chosen.astype(np.int64)


def induced(dataset: Dataset, nodes: np.ndarray) -> Dataset:
    """The graph of some nodes, int64 [K], ascending, and the edges between them, without features and what edges carry."""
    place = np.full(dataset.num_nodes, -1, np.int64)
    place[nodes] = np.arange(len(nodes))
    indptr = np.asarray(dataset.indptr)
    sources, relations, degrees = [], [], np.zeros(len(nodes), np.int64)
    for first in range(0, len(nodes), _CHUNK_ROWS):
        chunk = nodes[first : first + _CHUNK_ROWS]
        positions, which = edge_positions(indptr, chunk)
        source = place[dataset.indices[positions]]
        inside = source >= 0
        degrees[first : first + _CHUNK_ROWS] = np.bincount(which[inside], minlength=len(chunk))
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
