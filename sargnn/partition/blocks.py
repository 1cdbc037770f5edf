"""A graph's in-edges from the first node to the last, as they lie in the store, a few million at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sargnn.graph.dataset import Dataset
from sargnn.steps import step

_CHUNK_EDGES = 1 << 22


def in_edge_blocks(dataset: Dataset, text: str) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Runs of nodes: the first, ``indptr`` from 0 on, int64 [nodes + 1], and the sources of their in-edges.

    Args:
        text: what is done meanwhile (``sargnn.steps``).
    """
    indptr = np.asarray(dataset.indptr)
    first = 0
    while first < dataset.num_nodes:
        step(text, first, dataset.num_nodes)
        last = int(np.searchsorted(indptr, indptr[first] + _CHUNK_EDGES, side="right")) - 1
        last = min(max(last, first + 1), dataset.num_nodes)
        yield first, indptr[first : last + 1] - indptr[first], np.asarray(dataset.indices[indptr[first] : indptr[last]])
        first = last
