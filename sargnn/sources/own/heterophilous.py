"""The ``.npz`` files of the heterophilous benchmark (Platonov et al., ICLR 2023): roman-empire, amazon-ratings, minesweeper,
tolokers, questions.

    edges [E, 2]             of an undirected graph, each in one direction
    node_features [N, F]     node_labels [N]
    train_masks, val_masks, test_masks [k, N]   k splits, one a row

Letters: N nodes, E edges, F features.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.sources.own.edges import EdgeArrays
from sargnn.sources.own.given import GivenArray, PlainArray, member_of
from sargnn.sources.own.graph import Unread
from sargnn.sources.own.names import EDGES, FEATURES, LABELS

_NAMES = {"edges": EDGES, "node_features": FEATURES, "node_labels": LABELS} | {
    f"{split}_masks": f"{split}_mask" for split in ("train", "val", "test")
}
"""Name in the file -> the one that is used here."""


def is_heterophilous(members: Collection[str]) -> bool:
    """Whether an archive with these arrays is such a file."""
    return {"edges", "train_masks"} <= {*members}


class _BothWays(EdgeArrays):
    """Edges [E, 2] and their inverses, each pair of nodes once in each direction."""

    def __init__(self, given: GivenArray) -> None:
        if len(given.shape) != 2 or given.shape[1] != 2:
            raise DataError(
                f"{given.name} must have two columns, an edge's two nodes.",
                given=f"shape {list(given.shape)}",
                allowed="[number of edges, 2], each edge in one direction",
            )
        ends = given.whole()
        ends = np.concatenate([ends, ends[:, ::-1]])
        ends, self._rows = np.unique(ends, axis=0, return_index=True)
        self._rows %= max(given.shape[0], 1)
        super().__init__(given.name, *(PlainArray(given.name, ends[:, side]) for side in (0, 1)))

    def place(self, position: int) -> str:
        return super().place(int(self._rows[position]))


def heterophilous_tree(path: Path, members: Collection[str], unread: Unread) -> dict[str, Any]:
    """The arrays by the names that ``own.names`` has, masks [N, k], edges in both directions.

    Args:
        path: the file.
        members: names of its arrays.
        unread: gets those that mean nothing.

    Raises:
        DataError: an array is damaged, or edges have another form.
    """
    unread.of_graph.extend(f"'{name}'" for name in members if name not in _NAMES)
    tree: dict[str, Any] = {_NAMES[name]: member_of(path, name) for name in members if name in _NAMES}
    nodes = tree[FEATURES].shape[:1] if FEATURES in tree else ()
    for name, array in tree.items():
        if name.endswith("_mask") and array.shape[1:] == nodes:
            tree[name] = PlainArray(array.name, array.whole().T)
    return tree | {EDGES: _BothWays(tree[EDGES])}
