"""How much memory partitioners take, estimated before they are begun.

METIS cannot stream: it holds a whole graph, to cut it, or a whole part, to order its nodes by locality. Measured (resident
memory that is not mapped files, 2.5 to 124 million edges): 70 to 82 bytes for each entry of the symmetric graph; 66 to 75 for
each of a part's. An edge without its inverse gives two entries. KaMinPar holds a compressed graph, 2 to 4 bytes an entry, and
coarser ones that are not: measured, with its process, 2.3 GB for 159 million entries of 5.6 million nodes, 0.17 GB for 12.4
million of 0.24 million; 0.75 and 0.09 GB where it is given the graph of clusters; 27 to 40 bytes for each entry of a part, with
what finding the part's graph takes. Streaming holds a few numbers a node.

Parts are written one after the other in each process: measured, 12.5 to 13 bytes an in-edge of one part, or a piece of features
where that is more; what they share a few numbers a node, most of them mapped files (``partition.ground``).

Letters: N nodes, E directed edges, P parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sargnn.errors import ConfigError
from sargnn.graph.check import index_dtype
from sargnn.graph.dataset import Dataset

_METIS_BYTES, _ORDER_BYTES, _NODE_BYTES = 85, 80, 100
STREAM_NODE_BYTES = 36
_TITLES = {"metis": "METIS", "kaminpar": "KaMinPar", "stream": "Streaming"}
_CUT_EDGE_BYTES, _CUT_COLUMN_BYTES, _CUT_NODE_BYTES, _OWN_NODE_BYTES = 13, 1, 10, 60
"""Of a part's in-edge, of a column beside what is held of it, of a graph's node in one process, of a part's node."""
_PIECE_BYTES = 80_000_000
_KAMINPAR_BYTES, _KAMINPAR_NODE_BYTES, _KAMINPAR_FIXED_BYTES, _KAMINPAR_ORDER_BYTES = 8, 200, 100_000_000, 45
_PROCESS_BYTES = 120_000_000
"""What a process has before it does anything."""
_SAMPLE = 2000
MOST_LEFT = 0.5
"""Of a graph's entries, in the graph of its clusters, where KaMinPar is given that one."""
LEAST_NODES = 100
"""For each part: a smaller graph is not made smaller still."""
CLUSTER_NODE_BYTES = 60
"""What finding clusters, their graph, and moving nodes between parts take at most, a node."""


def entries_of(dataset: Dataset) -> float:
    """About how many entries A + A^T has: E where all edges go both ways, 2 E where none does; from a sample of the edges."""
    if not dataset.num_edges:
        return 0.0
    chosen = np.random.default_rng(0).integers(dataset.num_edges, size=_SAMPLE)
    destinations = np.searchsorted(np.asarray(dataset.indptr), chosen, side="right") - 1
    both = 0
    for destination, source in zip(destinations.tolist(), np.asarray(dataset.indices[chosen]).tolist(), strict=True):
        if not 0 <= source < dataset.num_nodes:
            continue  # a damaged store, which is answered once all of it is verified
        back = np.asarray(dataset.indices[dataset.indptr[source] : dataset.indptr[source + 1]])
        both += bool((back == destination).any())
    return dataset.num_edges * (2.0 - both / _SAMPLE)


def available_bytes() -> int:
    """What this process may still take: the machine's available memory, or what a control group leaves of it."""
    import psutil

    return min([int(psutil.virtual_memory().available), *_left_in_groups()])


def _left_in_groups() -> Iterator[int]:
    """What is left in each control group that the process is in, page cache that can be dropped counted as left."""
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, place = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        folder = root / place.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(root):
                break
            limit, used = (_lines(group / name)[:1] for name in names)
            if limit and used and limit[0].isdecimal():
                files = dict(entry.split() for entry in _lines(group / "memory.stat") if entry.count(" ") == 1)
                prefix = "total_" if controllers else ""
                cache = sum(int(files.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
                yield int(limit[0]) - int(used[0]) + cache


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def cutting_bytes(dataset: Dataset, partitioner: str, coarsen: str = "auto", world: int = 1) -> float:
    """About what a partitioner takes; 0 for those that hold no more than a number a node.

    ``coarsen``: of KaMinPar, which is given the graph of clusters where the whole one does not fit, unless it is ``never`` or
    the graph has few nodes for so many parts.
    """
    entries, n = entries_of(dataset), dataset.num_nodes
    if partitioner == "metis":
        return entries * _METIS_BYTES + n * _NODE_BYTES
    if partitioner == "kaminpar":
        if coarsen == "never" or n < LEAST_NODES * world:
            return whole_bytes(n, entries)
        return whole_bytes(0, MOST_LEFT * entries) + n * CLUSTER_NODE_BYTES
    return float(n * STREAM_NODE_BYTES) if partitioner == "stream" else 0.0


def whole_bytes(num_nodes: int, entries: float) -> float:
    return entries * _KAMINPAR_BYTES + num_nodes * _KAMINPAR_NODE_BYTES + _KAMINPAR_FIXED_BYTES


def check(
    dataset: Dataset, partitioner: str, order: str, world: int, limit_bytes: int, coarsen: str = "auto", *, cut: bool = False
) -> None:
    """Raises ``ConfigError`` where the partitioner and the order of nodes inside parts do not fit the memory: how much they
    need and what would fit. ``cut``: the partitioner has cut the graph already.
    """
    entries = entries_of(dataset)
    size = f"{dataset.num_nodes} nodes and {dataset.num_edges} edges; {limit_bytes / 1e9:.1f} GB can be had"
    needs = cutting_bytes(dataset, partitioner, coarsen, world) if world > 1 and not cut else 0.0
    if needs > limit_bytes:
        others = [other for other in ("kaminpar", "stream") if other != partitioner and cutting_bytes(dataset, other) < needs]
        less = [f"partitioner={other}, about {cutting_bytes(dataset, other) / 1e9:.2g} GB" for other in others]
        raise ConfigError(
            f"{_TITLES[partitioner]} would need more memory than there is.",
            given=f"about {needs / 1e9:.1f} GB for {size}",
            allowed=[*less, "partitioner=random"],
            hint="partitioner=auto takes the best that fits; or a larger machine for sargnn partition",
        )
    cutting = _held_bytes(dataset, dataset.num_edges / world, world) + dataset.num_nodes * _CUT_NODE_BYTES
    if cutting > limit_bytes:
        raise ConfigError(
            "The edges of a part do not fit the memory that there is.",
            given=f"about {cutting / 1e9:.1f} GB for {size}",
            allowed="more workers",
        )
    by_kaminpar = partitioner in ("kaminpar", "stream")
    ordering = _clustering_bytes(entries / world, dataset.num_nodes / world, by_kaminpar) if order == "locality" else 0.0
    if ordering > limit_bytes:
        raise ConfigError(
            "Ordering the nodes of a part by locality would need more memory than there is.",
            given=f"about {ordering / 1e9:.1f} GB for {size}",
            allowed="partitioner.order=original, or more workers",
        )


def part_edges(dataset: Dataset, offsets: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """How many in-edges each part has, int64 [P]. ``offsets``, ``nodes``: as of ``partition.ground``."""
    edges = np.zeros(len(offsets) - 1, np.int64)
    for p in range(len(edges)):
        own = nodes[offsets[p] : offsets[p + 1]]
        edges[p] = (dataset.indptr[own + 1] - dataset.indptr[own]).sum()
    return edges


def ordering_bytes(dataset: Dataset, edges: int, nodes: int, by_kaminpar: bool) -> float:
    """What a process takes that orders a part with so many in-edges and nodes, with KaMinPar's process."""
    entries = edges * entries_of(dataset) / max(1, dataset.num_edges)
    return _PROCESS_BYTES * (2 if by_kaminpar else 1) + _clustering_bytes(entries, nodes, by_kaminpar)


def _clustering_bytes(entries: float, nodes: float, by_kaminpar: bool) -> float:
    """What finding clusters in a part takes, beside what processes have anyway."""
    return entries * (_KAMINPAR_ORDER_BYTES if by_kaminpar else _ORDER_BYTES) + nodes * _NODE_BYTES


def writing_bytes(dataset: Dataset, edges: int, world: int) -> float:
    """What a process takes that writes a part with so many in-edges."""
    return _PROCESS_BYTES + max(_PIECE_BYTES, _held_bytes(dataset, edges, world))


def _held_bytes(dataset: Dataset, edges: float, world: int) -> float:
    """Of one part while it is written."""
    labels = dataset.labels.nbytes if dataset.labels.ndim > 1 else 0  # one class a node is in the number of bytes of a node
    each = _CUT_EDGE_BYTES + sum(
        _CUT_COLUMN_BYTES + (column.form.itemsize if column.narrow else index_dtype(dataset.num_edges).itemsize)
        for column in dataset.columns.columns.values()
    )
    means = 0 if dataset.schema.typed else 12 * dataset.columns.width  # of self-loops: a sum and what is written
    return edges * each + (labels + dataset.num_nodes * (_OWN_NODE_BYTES + means)) / world
