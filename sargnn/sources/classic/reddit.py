"""Reddit's files as DGL and PyTorch Geometric pass them on (Hamilton et al., 2017): two ``.npz`` archives, read piece by piece.

    reddit_data.npz: feature float [N, F], node_types [N]: 1 trains, 2 validates, 3 tests; label [N]
    reddit_graph.npz: row, col [E], shape [2], format: a SciPy matrix in COO format

Each entry of the matrix is an edge from its row to its column, as DGL takes it; the file has both directions. Its values, all
1, are not read, and neither is ``node_ids``.

Arrays are inflated piece by piece and never unpickled; only labels and the split are held whole. So the 114.6 million edges are
sorted within ``prepare.buffer``, on disk.

Letters: N nodes, E edges, F features.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.edge_columns import NO_COLUMNS, EdgePiece
from sargnn.graph.manifest import shape_fits
from sargnn.graph.schema import SPLITS
from sargnn.sources.classic.files import FILES, REDDIT_FILES
from sargnn.sources.npz import Member
from sargnn.sources.ogb.layouts import MAX_EDGES, MAX_NODES
from sargnn.sources.ogb.tables import expect_range
from sargnn.sources.own.given import GivenArray, member_of, read_labels
from sargnn.sources.scan import identity_of
from sargnn.sources.settings import RedditConfig
from sargnn.sources.streamed import StreamedReader

_VERSION = 1
_ANEW = "take the file anew"


class Reddit(StreamedReader):
    """Reading raises ``DataError`` with the file's name: missing, cut off or damaged, arrays that do not fit each other, an
    edge to no node, a feature that cannot be trained on, a label that is no class."""

    add_inverse_edges = False

    def __init__(self, config: RedditConfig) -> None:
        self.name, self.normalize_features = config.name, config.normalize_features
        files = FILES[config.name].find(config.root)
        self.data, self.graph = (files[name] for name in REDDIT_FILES)
        self.features_source, self.labels_source = f"{self.data}: feature", f"{self.data}: label"

    def identity(self) -> dict[str, Any]:
        return {
            "reader": "reddit",
            "version": _VERSION,
            "files": identity_of([self.data, self.graph]),
            "normalize_features": self.normalize_features,
        }

    def _array(self, path: Path, name: str, shape: tuple[int | None, ...], kinds: str) -> GivenArray:
        array = member_of(path, name)
        if not shape_fits(array.shape, shape) or array.dtype.kind not in kinds:
            raise DataError(
                f"'{path}' does not hold '{name}' as it should be.",
                given=f"{array.dtype} {list(array.shape)}",
                allowed=f"{'numbers' if 'f' in kinds else 'whole numbers'} {[n or 'any' for n in shape]}",
                hint=_ANEW,
            )
        return array

    @cached_property
    def _features(self) -> GivenArray:
        features = self._array(self.data, "feature", (None, None), "fiu")
        expect_range(self.data, np.array([[features.shape[0]]]), 1, MAX_NODES + 1, "a number of nodes that cannot be")
        return features

    @cached_property
    def num_nodes(self) -> int:  # type: ignore[override]
        return self._features.shape[0]

    @cached_property
    def num_rows(self) -> int:  # type: ignore[override]
        with Member(self.graph, "format") as member:
            kind = bytes(member.read(1).tobytes()).replace(b"\0", b"") if member.shape == () else b"?"
        if kind != b"coo":
            given = kind.decode("latin1")[:20]
            raise DataError(f"'{self.graph}' holds a matrix in another format.", given=given, allowed="coo", hint=_ANEW)
        shape = self._array(self.graph, "shape", (2,), "iu").whole().tolist()
        if shape != [self.num_nodes] * 2:
            raise DataError(
                f"'{self.graph}' does not have a row and a column for each node of '{self.data}'.",
                given=shape,
                allowed=str([self.num_nodes] * 2),
                hint="take both files from one place",
            )
        count = self._array(self.graph, "row", (None,), "iu").shape[0]
        self._array(self.graph, "col", (count,), "iu")
        expect_range(self.graph, np.array([[count]]), 0, MAX_EDGES + 1, "a number of edges that cannot be")
        return count

    @cached_property
    def num_features(self) -> int:  # type: ignore[override]
        return self._features.shape[1]

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        sources, destinations = (self._array(self.graph, name, (self.num_rows,), "iu").pieces(rows) for name in ("row", "col"))
        first = 0
        for pair in zip(sources, destinations, strict=True):
            expect_range(self.graph, np.stack(pair, 1), 0, self.num_nodes, "a node that does not exist", first)
            yield *pair, NO_COLUMNS
            first += len(pair[0])

    def features(self, rows: int) -> Iterator[np.ndarray]:
        return self._features.pieces(rows)

    def labels(self) -> np.ndarray:
        return read_labels(self._array(self.data, "label", (self.num_nodes,), "iuf"), "classes")

    def split(self) -> np.ndarray:
        node_types = self._array(self.data, "node_types", (self.num_nodes,), "iu").whole()
        allowed = (0, *SPLITS.values())
        wrong = ~np.isin(node_types, allowed)
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"'{self.data}': 'node_types' puts node {row} (counted from 0) into no part of the split.",
                given=node_types[row],
                allowed="1 trains, 2 validates, 3 tests, 0 none of them",
                hint=_ANEW,
            )
        return node_types.astype(np.uint8)
