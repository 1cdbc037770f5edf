"""OGB's binary layout, that of ogbn-papers100M: arrays in deflated ``.npz`` files, too large to be read at once.

    raw/data.npz: edge_index int [2, E], node_feat float [N, F] (node_year is not used), num_nodes_list, num_edges_list [1],
        which may be missing: then the shapes of the others say it; edge_weight [E] or [E, 1] where edges have weights
    raw/node-label.npz: node_label float [N, 1], nan where there is none
    split/NAME/{train,valid,test}.csv.gz: node numbers

Members are inflated piece by piece, never unpickled. Sources and destinations lie one after the other in ``edge_index``, so
that it is inflated twice, once for each.

Letters: N nodes, E edges, F features.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.edge_columns import NO_COLUMNS, WEIGHT, WEIGHT_FORM, EdgeColumns, EdgePiece
from sargnn.graph.weights import edge_place
from sargnn.sources.npz import Member, blame_archive
from sargnn.sources.ogb.folder import OgbFolder
from sargnn.sources.ogb.layouts import MAX_EDGES, MAX_NODES, find_binary
from sargnn.sources.ogb.tables import expect_one_column, expect_range, labels_from
from sargnn.sources.settings import OgbConfig, OgbDirConfig


class BinaryOgbDir(OgbFolder):
    """Reads a folder in the binary layout.

    Raises (reading):
        DataError: a file that is missing, cut off or damaged, counts that disagree, an edge to a node that does not exist, a
            feature that cannot be trained on, a label that is not a class.
    """

    layout, version = "ogb_binary", 1

    def __init__(self, config: OgbDirConfig | OgbConfig, root: Path) -> None:
        super().__init__(config, root, find_binary(root))
        self.data, self.label = self.raw["data"], self.raw["label"]
        self.forms = {WEIGHT: WEIGHT_FORM} if self._holds("edge_weight") else {}

    def _count(self, name: str, low: int, high: int, other: str, axis: int) -> int:
        """The count that ``name`` holds; where there is no such array, a length of the array ``other``."""
        if not self._holds(name):
            with self._member(self.data, other, (None, None), "iuf") as member:
                length = member.shape[axis]
                expect_range(self.data, np.array([[length]]), low, high + 1, f"a length of '{other}' that cannot be")
                return length
        with self._member(self.data, name, (1,), "iu") as member:
            count = member.read(1).reshape(1, 1)
            expect_range(self.data, count, low, high + 1, f"a count in '{name}' that cannot be")
            return int(count[0, 0])

    @cached_property
    def num_nodes(self) -> int:  # type: ignore[override]
        return self._count("num_nodes_list", 1, MAX_NODES, "node_feat", 0)

    @cached_property
    def num_rows(self) -> int:  # type: ignore[override]
        return self._count("num_edges_list", 0, MAX_EDGES, "edge_index", 1)

    @cached_property
    def num_features(self) -> int:
        with self._member(self.data, "node_feat", (self.num_nodes, None), "f") as member:
            return int(member.shape[1])

    def _holds(self, name: str) -> bool:
        with blame_archive(self.data), zipfile.ZipFile(self.data) as archive:
            return f"{name}.npy" in archive.namelist()

    def _member(self, path: Path, name: str, shape: tuple[int | None, ...], kinds: str) -> Member:
        member = Member(path, name)
        fits = len(member.shape) == len(shape) and all(b in (None, a) for a, b in zip(member.shape, shape, strict=True))
        if not fits or member.dtype.kind not in kinds:
            member.close()
            raise DataError(
                f"'{path}' does not hold '{name}' as the counts give it.",
                given=f"{member.dtype} {list(member.shape)}",
                allowed=f"{[n or 'any' for n in shape]}",
            )
        return member

    def _weights(self) -> Member:
        with Member(self.data, "edge_weight") as member:
            columns = member.shape[1:]
        return self._member(self.data, "edge_weight", (self.num_rows, 1) if columns else (self.num_rows,), "fiub")

    def weights_source(self) -> str:
        return f"'{self.data}'"

    def edge_place(self, position: int) -> str:
        return edge_place(position)

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        def ends() -> Member:
            return self._member(self.data, "edge_index", (2, self.num_rows), "iu")

        with ExitStack() as stack:
            sources, destinations = (stack.enter_context(ends()) for _ in range(2))
            weights = stack.enter_context(self._weights()) if self.forms else None
            destinations.skip(self.num_rows)
            for first in range(0, self.num_rows, rows):
                count = min(rows, self.num_rows - first)
                pair = sources.read(count), destinations.read(count)
                expect_range(self.data, np.stack(pair, 1), 0, self.num_nodes, "a node that does not exist", first)
                yield *pair, NO_COLUMNS if weights is None else EdgeColumns.of({WEIGHT: weights.read(count).reshape(-1)})
            destinations.finish()
            if weights is not None:
                weights.finish()

    def features(self, rows: int) -> Iterator[np.ndarray]:
        with self._member(self.data, "node_feat", (self.num_nodes, self.num_features), "f") as member:
            for first in range(0, self.num_nodes, rows):
                count = min(rows, self.num_nodes - first)
                yield member.read(count * self.num_features).reshape(count, self.num_features)
            member.finish()

    def features_source(self) -> str:
        return str(self.data)

    def labels(self) -> np.ndarray:
        with self._member(self.label, "node_label", (self.num_nodes, None), "fiu") as member:
            columns = member.shape[1]
            expect_one_column(self.label, columns, self.task)
            raw = member.read(self.num_nodes * columns)
            member.finish()
        return labels_from(self.label, raw.reshape(self.num_nodes, columns), self.num_nodes, self.task)

    def labels_source(self) -> str:
        return str(self.label)
