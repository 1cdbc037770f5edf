"""Which nodes have no edge into them."""

from __future__ import annotations

from collections import Counter

import numpy as np

from sargnn.graph.dataset import Dataset

ALL_RELATIONS = -1
"""Stands for all relations into a node together."""
_CHUNK_EDGES = 1 << 24


def nodes_without_edges(dataset: Dataset, wanted: np.ndarray | None = None) -> dict[int, int]:
    """Of each relation that nodes of its destination type have no edge of, how many; of ``ALL_RELATIONS``, how many no
    relation into their type reaches.

    Edges of a typed graph are read in runs of whole nodes; of others only ``indptr`` is.

    Args:
        wanted: bool [N], the nodes that are counted; None: all.
    """
    nodes_without: Counter[int] = Counter()
    schema = dataset.schema

    def count(relation: int, destination: int) -> None:
        first, last = schema.offsets[destination], schema.offsets[destination + 1]
        lacks = _degrees(dataset, relation, first, last) == 0
        nodes_without[relation] += int((lacks if wanted is None else lacks & wanted[first:last]).sum())

    for number, relation in enumerate(schema.relations):
        count(number, relation.destination)
    for destination in {edge_type.destination for edge_type in schema.relations}:
        count(ALL_RELATIONS, destination)
    return {relation: nodes for relation, nodes in nodes_without.items() if nodes}


def _degrees(dataset: Dataset, relation: int, first: int, last: int) -> np.ndarray:
    """Edges of a relation into the nodes from ``first`` up to ``last``."""
    indptr = np.asarray(dataset.indptr[first : last + 1])
    if dataset.relation is None or relation == ALL_RELATIONS:
        return np.diff(indptr)
    degrees = np.zeros(last - first, np.int64)
    at = 0
    while at < last - first:
        end = max(at + 1, int(np.searchsorted(indptr, indptr[at] + _CHUNK_EDGES, side="right")) - 1)
        own = np.asarray(dataset.relation[indptr[at] : indptr[end]]) == relation
        sums = np.concatenate([[0], np.cumsum(own)])
        degrees[at:end] = np.diff(sums[indptr[at : end + 1] - indptr[at]])
        at = end
    return degrees
