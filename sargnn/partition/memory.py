"""How much memory METIS takes, estimated before it is begun.

METIS cannot stream: it holds a whole graph, to cut it, or a whole part, to order its nodes by locality. Measured (resident
memory that is not mapped files, 2.5 to 124 million edges): 70 to 82 bytes for each entry of the symmetric graph; 96 to 120 for
each of a part's. An edge without its inverse gives two entries.

Letters: N nodes, E directed edges, P parts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sargnn.data.dataset import Dataset
from sargnn.errors import ConfigError

_METIS_BYTES, _ORDER_BYTES, _NODE_BYTES = 85, 130, 100
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


def available_bytes() -> int:
    """What this process may still take: the machine's available memory, or what a control group leaves of it."""
    import psutil

    available = int(psutil.virtual_memory().available)
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return min(available, int(limit) - int(used)) if limit != "max" else available
    except (OSError, ValueError):
        return available


def check(dataset: Dataset, partitioner: str, order: str, world: int, limit_bytes: int) -> None:
    """The partitioner and the order of nodes inside parts fit the memory that is there.

    Raises:
        ConfigError: they do not; it says how much they need and what would fit.
    """
    entries = entries_of(dataset)
    size = f"{dataset.num_nodes} nodes and {dataset.num_edges} edges; {limit_bytes / 1e9:.1f} GB can be had"
    metis = entries * _METIS_BYTES + dataset.num_nodes * _NODE_BYTES if partitioner == "metis" and world > 1 else 0.0
    if metis > limit_bytes:
        raise ConfigError(
            "METIS would need more memory than there is.",
            given=f"about {metis / 1e9:.1f} GB for {size}",
            allowed="partitioner=random or partitioner=range with partitioner.order=original, which stay within "
            "prepare.buffer; or a larger machine for sargnn partition",
        )
    ordering = (entries * _ORDER_BYTES + dataset.num_nodes * _NODE_BYTES) / world if order == "locality" else 0.0
    if ordering > limit_bytes:
        raise ConfigError(
            "Ordering the nodes of a part by locality would need more memory than there is.",
            given=f"about {ordering / 1e9:.1f} GB for {size}",
            allowed="partitioner.order=original, or more workers",
        )
