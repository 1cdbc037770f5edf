"""Benchmark sets in the files in which they are published, read by ``dataset=arrays``.

The heterophilous benchmark (Platonov et al., ICLR 2023: roman-empire, amazon-ratings, minesweeper, tolokers, questions):

    edges [E, 2]             of an undirected graph, each in one direction
    node_features [N, F]     node_labels [N]
    train_masks, val_masks, test_masks [k, N]   k splits, one a row

Amazon, Coauthor and CitationFull (Shchur et al., 2018; Bojchevski and Günnemann, 2018), without a split:

    adj_indptr, adj_indices, adj_shape          edges, a CSR matrix [N, N]; loops are dropped, as PyTorch Geometric does
    attr_data, attr_indices, attr_indptr, attr_shape   features, a CSR matrix [N, F]; a value above 0 is 1, as there
    labels [N]

WikiCS (Mernyei and Cangea, 2020), ``data.json``:

    features [N][F]   labels [N]   links [N][]: the neighbours of each node
    train_masks, val_masks, stopping_masks [20][N], test_mask [N]: 20 splits, of one set of test nodes

Its two validation sets are one here, since one validation set selects and stops. Edges go both ways, each once.

Letters: N nodes, E edges, F features.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from sargnn.errors import DataError
from sargnn.sources.own.edges import EdgeArrays
from sargnn.sources.own.given import GivenArray, PlainArray, SparseRows, csr_fits, member_of
from sargnn.sources.own.graph import Unread
from sargnn.sources.own.names import EDGES, FEATURES, LABELS, MASKS, NUMBERS

_NAMES = {"edges": EDGES, "node_features": FEATURES, "node_labels": LABELS} | {
    f"{split}_masks": f"{split}_mask" for split in ("train", "val", "test")
}
"""Name in a file of the heterophilous benchmark -> the one that is used here."""
_ADJACENCY = ("adj_indices", "adj_indptr", "adj_shape")
_ATTRIBUTES = ("attr_data", "attr_indices", "attr_indptr", "attr_shape")
_UNREAD = ("adj_data", "node_names", "attr_names", "class_names", "metadata")
"""What such files hold beside them: weights that are all 1, and texts."""
WIKICS = "wikics"
_WIKICS_NAMES = {"features": FEATURES, "labels": LABELS, "links": None} | {
    "train_masks": "train_mask",
    "val_masks": "val_mask",
    "stopping_masks": None,
    "test_mask": "test_mask",
}
"""Name in WikiCS's file -> the one that is used here; None: it becomes a part of another."""


class _BothWays(EdgeArrays):
    """Edges and their inverses, each pair of nodes once in each direction.

    Args:
        name: what messages call them.
        ends: integers [E, 2].
        loops: whether an edge from a node to itself stays.
    """

    def __init__(self, name: str, ends: np.ndarray, *, loops: bool = True) -> None:
        numbers = np.arange(len(ends)) if loops else np.flatnonzero(ends[:, 0] != ends[:, 1])
        ends = np.concatenate([ends[numbers], ends[numbers][:, ::-1]])
        ends, rows = np.unique(ends, axis=0, return_index=True)
        self._rows = numbers[rows % max(len(numbers), 1)]
        super().__init__(name, *(PlainArray(name, ends[:, side]) for side in (0, 1)))

    def place(self, position: int) -> str:
        return super().place(int(self._rows[position]))


def published_tree(path: Path, members: Collection[str], unread: Unread) -> dict[str, Any] | None:
    """The arrays of an ``.npz`` file by the names that ``own.names`` has, masks [N, k]; None: it has none of these forms.

    Args:
        path: the file.
        members: names of its arrays.
        unread: gets those that mean nothing.

    Raises:
        DataError: an array is damaged, or edges have another form.
    """
    if {"edges", "train_masks"} <= {*members}:
        return _heterophilous(path, members, unread)
    if {*_ADJACENCY, *_ATTRIBUTES, "labels"} <= {*members}:
        return _sparse(path, members, unread)
    return None


def _heterophilous(path: Path, members: Collection[str], unread: Unread) -> dict[str, Any]:
    unread.of_graph.extend(f"'{name}'" for name in members if name not in _NAMES)
    tree: dict[str, Any] = {_NAMES[name]: member_of(path, name) for name in members if name in _NAMES}
    nodes = tree[FEATURES].shape[:1] if FEATURES in tree else ()
    for name, array in tree.items():
        if name.endswith("_mask") and array.shape[1:] == nodes:
            tree[name] = PlainArray(array.name, array.whole().T)
    edges: GivenArray = tree[EDGES]
    if len(edges.shape) != 2 or edges.shape[1] != 2:
        raise DataError(
            f"{edges.name} must have two columns, an edge's two nodes.",
            given=f"shape {list(edges.shape)}",
            allowed="[number of edges, 2], each edge in one direction",
        )
    return tree | {EDGES: _BothWays(edges.name, edges.whole())}


def _sparse(path: Path, members: Collection[str], unread: Unread) -> dict[str, Any]:
    columns, starts, shape = (member_of(path, name).whole() for name in _ADJACENCY)
    adjacency = _matrix(path, "adj", np.ones(len(columns), bool), columns, starts, shape)
    values, columns, starts, shape = (member_of(path, name).whole() for name in _ATTRIBUTES)
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
        raise DataError(f"'{path}': 'attr_data' holds a value that is no finite number.", given=str(values.dtype))
    attributes = _matrix(path, "attr", values.astype(np.float32), columns, starts, shape)
    attributes.sum_duplicates()
    attributes.data[attributes.data > 0] = 1
    if adjacency.shape != (attributes.shape[0],) * 2:
        raise DataError(
            f"'{path}': 'adj_shape' is not that of the edges between the nodes of 'attr_shape'.",
            given=list(adjacency.shape),
            allowed=str([attributes.shape[0]] * 2),
        )
    masks = {name: member_of(path, name) for name in members if name in (*MASKS, *NUMBERS)}
    known = {*_ADJACENCY, *_ATTRIBUTES, *_UNREAD, *masks, "labels"}
    unread.of_graph.extend(f"'{name}'" for name in members if name not in known)
    ends = np.stack(adjacency.tocoo().coords, 1)
    return masks | {
        EDGES: _BothWays(f"'{path}': 'adj_indices'", ends, loops=False),
        FEATURES: SparseRows(f"'{path}': 'attr_data'", attributes),
        LABELS: member_of(path, "labels"),
    }


def _matrix(path: Path, name: str, *arrays: np.ndarray) -> sparse.csr_array:
    values, columns, starts, shape = arrays
    rows = tuple(shape.tolist()) if shape.dtype.kind in "iu" else ()
    if len(rows) != 2 or not csr_fits(values, columns, starts, rows):
        raise DataError(
            f"'{path}' holds a sparse matrix that is damaged: '{name}_indptr', '{name}_indices', '{name}_shape'.",
            given=f"shape {list(rows)}, {len(columns)} entries",
        )
    return sparse.csr_array((values, columns, starts), shape=rows)


def wikics_tree(path: Path) -> dict[str, Any]:
    """As ``published_tree``, of WikiCS's ``data.json``. Raises ``DataError`` for a file that holds something else."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"'{path}' cannot be read: {str(error)[:100]}", hint="take the file anew") from error
    missing = [name for name in _WIKICS_NAMES if name not in content] if isinstance(content, Mapping) else ["a mapping"]
    if missing:
        raise DataError(f"'{path}' is no data.json of WikiCS: it lacks {', '.join(missing)}.", allowed=_WIKICS_NAMES)
    arrays = {name: _numbers(path, name, content[name]) for name in _WIKICS_NAMES if name != "links"}
    masks = [arrays[name].T for name in ("train_masks", "val_masks", "stopping_masks")]
    if masks[1].shape != masks[2].shape:
        raise DataError(f"'{path}': 'val_masks' and 'stopping_masks' are of different shapes.", given=masks[2].T.shape)
    lists: list[Any] = content["links"] if isinstance(content["links"], list) else [None]
    lengths = [len(those) if isinstance(those, list) else -1 for those in lists]
    if min(lengths, default=0) < 0:
        raise DataError(f"'{path}': 'links' does not give node {lengths.index(-1)} a list of nodes.")
    neighbours = _numbers(path, "links", [neighbour for those in lists for neighbour in those])
    if not neighbours.size:
        neighbours = neighbours.astype(np.int64)
    ends = np.stack([np.repeat(np.arange(len(lists)), lengths), neighbours], 1)
    arrays["train_masks"], arrays["val_masks"] = masks[0], masks[1] | masks[2]
    tree: dict[str, Any] = {
        used: PlainArray(f"'{path}': '{name}'", arrays[name]) for name, used in _WIKICS_NAMES.items() if used is not None
    }
    return tree | {EDGES: _BothWays(f"'{path}': 'links'", ends)}


def _numbers(path: Path, name: str, value: Any) -> np.ndarray:
    try:
        array = np.array(value)
    except ValueError:  # rows of different lengths
        array = np.array("")
    masks = name.endswith(("_mask", "_masks"))
    if not array.shape or array.size and array.dtype.kind not in ("b" if masks else "fiu"):
        raise DataError(
            f"'{path}': '{name}' does not hold {'true and false' if masks else 'numbers'} in rows of one length.",
            given=str(value)[:60],
        )
    return array
