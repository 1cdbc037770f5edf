"""A small part of a graph for what must be quick: some training nodes, what reaches them, and the edges between all of these.

Letters: N nodes, E directed edges, K nodes that are kept.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from sargnn.graph.check import index_dtype
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS

_SEEDS = 64
"""At most so many nodes to begin with: training nodes, and as many of each type, so that none is without nodes."""


def cut_surroundings(dataset: Dataset, count: int, seed: int = 0) -> Dataset:
    """The graph between at most ``count`` nodes: training nodes, their in-neighbours, the in-neighbours of these, and so on.

    Nodes are numbered anew in the order of their original ids. Reads the edges into the kept nodes only, and the split.

    Args:
        dataset: with memory-mapped arrays or not. count: at least a few hundred. seed: of the choice.
    """
    ids = _choose(dataset, count, np.random.default_rng(seed))
    sources, destinations, positions = _edges_between(dataset, ids)
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
        places, _ = _in_edges(dataset, reached)
        reached = np.setdiff1d(np.asarray(dataset.indices[places]), chosen)
        if len(reached) > count - len(chosen):
            reached = rng.choice(reached, count - len(chosen), replace=False)
        chosen = np.union1d(chosen, reached)
    if len(chosen) < count:  # what reaches them is less than may be kept
        others = np.setdiff1d(rng.choice(dataset.num_nodes, min(count, dataset.num_nodes), replace=False), chosen)
        chosen = np.union1d(chosen, others[: count - len(chosen)])
    return chosen.astype(np.int64)


def _in_edges(dataset: Dataset, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the edges into nodes, and the place of each one's destination among them, both int64 [edges]."""
    first, last = np.asarray(dataset.indptr[nodes]), np.asarray(dataset.indptr[nodes + 1])
    counts = last - first
    place = np.repeat(np.arange(len(nodes)), counts)
    within = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
    return first[place] + within, place


def _edges_between(dataset: Dataset, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sources and destinations by their new numbers, sorted as before, and the edges' positions."""
    positions, destinations = _in_edges(dataset, ids)
    given = np.asarray(dataset.indices[positions])
    sources = np.searchsorted(ids, given)
    kept = ids[np.minimum(sources, len(ids) - 1)] == given
    return sources[kept], destinations[kept], positions[kept]
