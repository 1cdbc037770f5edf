"""What all parts of a graph are cut on: a few numbers a node, in memory, or in files that several processes map.

Letters: N nodes, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from sargnn.graph.check import index_dtype
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import WEIGHT
from sargnn.graph.store import map_new
from sargnn.native import Entry

_CHUNK_EDGES = 1 << 22
_put_places = Entry("put_places", "nodes * N, place * N")
_count = Entry("count_each", "indices * E, first int, counts *")
_add = Entry("add_each", "indices * E, weights * E, totals d")
NODE_BYTES = 28
"""Of the arrays; weights take 8 more."""


@dataclass(frozen=True)
class Ground:
    """What parts are cut on.

    Attributes:
        offsets, nodes: int64 [P + 1] and [N]; part p owns ``nodes[offsets[p]:offsets[p + 1]]``, in this order, type by type.
        place: of each node in ``nodes``, int32 [N] (int64 from 2**31 nodes on).
        out_degrees: int64 [N].
        out_weights: fp64 [N], sums of the weights of out-edges; None: there are none.
    """

    offsets: np.ndarray
    nodes: np.ndarray
    place: np.ndarray
    out_degrees: np.ndarray
    out_weights: np.ndarray | None = None


def make_array(folder: Path | None, name: str, shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
    """Zeros: in memory, or mapped from a file that is made."""
    if folder is None or 0 in shape:
        return np.zeros(shape, dtype)
    return np.asarray(map_new(folder / f"{name}.npy", shape, dtype))


def places_of(nodes: np.ndarray, folder: Path | None = None, name: str = "place") -> np.ndarray:
    """Where each node of a graph stands in a list of all of them: int32 [N] (int64 from 2**31 nodes on)."""
    place = make_array(folder, name, nodes.shape, index_dtype(len(nodes)))
    _put_places(nodes, place)
    return place


def lay_ground(dataset: Dataset, offsets: np.ndarray, nodes: np.ndarray, folder: Path | None = None) -> Ground:
    """For parts that own ``nodes`` in this order. ``folder``: where arrays go that are not there yet; None: they are held."""
    n = dataset.num_nodes
    place = places_of(nodes, folder)
    out_degrees = make_array(folder, "out_degrees", (n,), np.int64)
    out_weights = None if WEIGHT not in dataset.columns else make_array(folder, "out_weights", (n,), np.float64)
    for first in range(0, dataset.num_edges, _CHUNK_EDGES):
        chunk = slice(first, first + _CHUNK_EDGES)
        indices = np.asarray(dataset.indices[chunk])
        _count(indices, 0, out_degrees)
        if (weights := dataset.columns.run(chunk).weight) is not None:
            _add(indices, np.asarray(weights), out_weights)
    if folder is not None:
        np.save(folder / "offsets.npy", offsets)
    return Ground(offsets, nodes, place, out_degrees, out_weights)


def open_ground(folder: Path) -> Ground:
    """What ``lay_ground`` put into a folder, and ``nodes`` there, memory-mapped."""
    files = {field.name: folder / f"{field.name}.npy" for field in fields(Ground)}
    return Ground(**{name: np.asarray(np.load(file, mmap_mode="c")) for name, file in files.items() if file.exists()})
