"""Planetoid's raw files of Cora, Citeseer and Pubmed (Yang et al., 2016), read as the field reads them.

    ind.NAME.x, .allx, .tx: CSR matrices [nodes, F]      ind.NAME.y, .ally, .ty: one-hot classes [nodes, C]
    ind.NAME.graph: node -> list of neighbours           ind.NAME.test.index: a node number in each line

Rows of ``allx`` are the nodes 0, 1, ...; row k of ``tx`` is the node in line k of ``test.index``, so test nodes come back in
the order of their numbers. A number that the test nodes leave out (Citeseer has 15) is a node with features of 0 and no label.

The public split: the first rows, as many as ``y`` has, train; the next 500 validate; the nodes of ``test.index`` test.

Edges go both ways, each once. Self-loops are dropped, as in PyTorch Geometric, whose counts of edges are the published ones:
10,556 in Cora, 9,104 in Citeseer, 88,648 in Pubmed. GCN and GAT give every node its own; GraphSage must not count a node among
its own neighbours.

Letters: N nodes, F features, C classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.check import FeatureCheck, count_classes
from sargnn.graph.dataset import Dataset, InMemoryReader, by_destination
from sargnn.graph.schema import SPLITS, UNLABELLED
from sargnn.sources.classic.files import FILES
from sargnn.sources.classic.pickles import load_array, load_lists, load_matrix
from sargnn.sources.scan import identity_of
from sargnn.sources.settings import PlanetoidConfig

_VERSION = 1
_VALIDATION_NODES = 500
_MOST_FEATURES, _MOST_GAPS = 1_000_000, 10
"""Bounds on what a damaged file can ask for: columns, and numbers for each test node; Citeseer has 1.015 of them."""


class Planetoid(InMemoryReader):
    """Raises ``DataError`` where files are missing, with all of them."""

    def __init__(self, config: PlanetoidConfig) -> None:
        self.config = config
        self.files = FILES[config.name].find(config.root)

    def identity(self) -> dict[str, Any]:
        return {
            "reader": "planetoid",
            "version": _VERSION,
            "files": identity_of(list(self.files.values())),
            "normalize_features": self.config.normalize_features,
        }

    def read(self) -> Dataset:
        """Raises ``DataError``: a file is damaged, names anything but arrays, or does not fit the others; the file is named."""
        features, all_features, test_features = (load_matrix(self._path(part)) for part in ("x", "allx", "tx"))
        train, others, test = (self._classes(part) for part in ("y", "ally", "ty"))
        for part, rows, classes in (("x", features, train), ("allx", all_features, others), ("tx", test_features, test)):
            self._expect(part, rows.shape, (len(classes), all_features.shape[1]))
        for part, classes in (("y", train), ("ty", test)):
            self._expect(part, classes.shape, (len(classes), others.shape[1]))
        if not 1 <= all_features.shape[1] <= _MOST_FEATURES:
            raise DataError(
                f"'{self._path('allx')}' has a number of features that cannot be.",
                given=all_features.shape[1],
                allowed=f"1 to {_MOST_FEATURES}",
            )
        first, held = len(others), self._test_nodes(len(others), len(test))
        count = int(held.max()) + 1
        split = np.zeros(count, np.uint8)
        validation = len(train) + _VALIDATION_NODES
        if not len(train) or validation > first:
            raise DataError(
                f"'{self._path('ally')}' has too few rows for the public split.",
                given=f"{first}, of which {len(train)} train",
                allowed=f"some to train, and {_VALIDATION_NODES} more to validate",
            )
        split[: len(train)] = SPLITS["train"]
        split[len(train) : validation] = SPLITS["valid"]
        split[held] = SPLITS["test"]

        table = np.zeros((count, all_features.shape[1]), np.float32)
        for part, numbers, rows in (("allx", slice(0, first), all_features), ("tx", held, test_features)):
            check = FeatureCheck(str(self._path(part)))
            table[numbers] = check.to_float32(rows.toarray(), normalize=self.config.normalize_features)
            check.finish()
        labels = np.full(count, UNLABELLED, np.int64)
        for numbers, classes in ((slice(0, first), others), (held, test)):
            labels[numbers] = np.where(classes.any(1), classes.argmax(1), UNLABELLED)
        # A row of zeros is class 0 to the field, which takes the argmax; only in a split does it matter.
        labels[(labels == UNLABELLED) & (split > 0)] = 0
        indptr, indices = self._edges(count)
        classes_count = count_classes(labels, str(self._path("ally")))
        return Dataset.homogeneous(self.config.name, classes_count, table, labels, split, indptr, indices)

    def _path(self, part: str) -> Path:
        return self.files[f"ind.{self.config.name}.{part}"]

    def _classes(self, part: str) -> np.ndarray:
        """bool [nodes, C]."""
        classes = load_array(self._path(part))
        if classes.ndim != 2 or 0 in classes.shape:
            raise DataError(
                f"'{self._path(part)}' must have a row for each node, and a column for each class.",
                given=f"shape {list(classes.shape)}",
            )
        wrong = ~np.isin(classes, (0, 1)).all(1) | ((classes != 0).sum(1) > 1)
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"'{self._path(part)}' does not name one class in row {row + 1}.",
                given=classes[row].tolist()[:10],
                allowed="one 1, and 0 elsewhere",
            )
        return classes.astype(bool)

    def _expect(self, part: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if tuple(shape) != wanted:
            raise DataError(
                f"'{self._path(part)}' does not have the shape that the other files give.",
                given=list(shape),
                allowed=str(list(wanted)),
                hint="take all files from one place",
            )

    def _test_nodes(self, first: int, count: int) -> np.ndarray:
        """int64 [count]: the node of each row of ``tx``, from ``first`` on."""
        path = self._path("test.index")
        try:
            lines = path.read_text().splitlines()
        except (OSError, ValueError) as error:
            raise DataError(f"'{path}' cannot be read: {error}", hint="take the file anew") from error
        end = first + _MOST_GAPS * count
        line_of: dict[int, int] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            node = int(line) if line.strip().isdecimal() and len(line.strip()) < 12 else -1
            if not first <= node < end:
                raise DataError(
                    f"'{path}' does not name a test node in line {number}.",
                    given=line.strip()[:40],
                    allowed=f"a whole number from {first}, the first one after the rows of allx, to {end - 1}",
                )
            if node in line_of:
                raise DataError(f"'{path}' names node {node} twice, in lines {line_of[node]} and {number}.")
            line_of[node] = number
        if len(line_of) != count or not line_of:
            raise DataError(f"'{path}' does not name a node for each row of tx.", given=len(line_of), allowed=str(count))
        return np.array(list(line_of), np.int64)

    def _edges(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        path = self._path("graph")
        ends = np.stack(load_lists(path))
        if ends.size and (ends.min() < 0 or ends.max() >= count):
            column = int(((ends < 0) | (ends >= count)).any(0).argmax())
            raise DataError(
                f"'{path}' names an edge to a node that does not exist.",
                given=" to ".join(map(str, ends[:, column])),
                allowed=f"0 to {count - 1}; there are {count} nodes",
            )
        source, destination = ends[:, ends[0] != ends[1]]
        both = np.unique(np.concatenate([source * count + destination, destination * count + source]))
        return by_destination(both // count, both % count, count)
