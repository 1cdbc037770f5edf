"""How much memory cutting a graph takes, estimated before it is begun.

Measured (resident memory that is not mapped files): METIS 33 to 38 bytes for each entry of the symmetric graph, ordering a part
by locality 65 to 90 for each of the part's; the rest is margin. An edge without its inverse gives two entries.

Letters: N nodes, E directed edges, P parts.
"""

from __future__ import annotations

import numpy as np

from sargnn.data.dataset import Dataset
from sargnn.errors import ConfigError

_METIS_BYTES, _ORDER_BYTES, _NODE_BYTES = 42, 100, 100
_SAMPLE = 2000


def entries_of(dataset: Dataset) -> float:
    """About how many entries A + A^T has: E where all edges go both ways, 2 E where none does; from a sample of the edges."""
    if not dataset.num_edges:
        return 0.0
    chosen = np.random.default_rng(0).integers(dataset.num_edges, size=_SAMPLE)
    destinations = np.searchsorted(np.asarray(dataset.indptr), chosen, side="right") - 1
    both = 0
    for destination, source in zip(destinations.tolist(), np.asarray(dataset.indices[chosen]).tolist(), strict=True):
        back = np.asarray(dataset.indices[dataset.indptr[source] : dataset.indptr[source + 1]])
        both += bool((back == destination).any())
    return dataset.num_edges * (2.0 - both / _SAMPLE)


def check(dataset: Dataset, partitioner: str, order: str, world: int, buffer_bytes: int) -> None:
    """The partitioner and the order of nodes inside parts fit the buffer.

    Raises:
        ConfigError: they do not; it says how much they need and what would fit.
    """
    entries = entries_of(dataset)
    metis = entries * _METIS_BYTES + dataset.num_nodes * _NODE_BYTES if partitioner == "metis" and world > 1 else 0.0
    if metis > buffer_bytes:
        raise ConfigError(
            "METIS would need more memory than it may take.",
            given=f"about {metis / 1e9:.1f} GB for {dataset.num_nodes} nodes and {dataset.num_edges} edges; prepare.buffer is "
            f"{buffer_bytes / 1e9:.1f} GB",
            allowed=f"prepare.buffer={metis / 1e9 * 1.05:.0f}GB where the machine has it; or partitioner=random or range, with "
            "partitioner.order=original",
        )
    ordering = (entries * _ORDER_BYTES + dataset.num_nodes * _NODE_BYTES) / world if order == "locality" else 0.0
    if ordering > buffer_bytes:
        raise ConfigError(
            "Ordering the nodes of a part by locality would need more memory than it may take.",
            given=f"about {ordering / 1e9:.1f} GB; prepare.buffer is {buffer_bytes / 1e9:.1f} GB",
            allowed=f"partitioner.order=original, more workers, or prepare.buffer={ordering / 1e9 * 1.05:.0f}GB",
        )
