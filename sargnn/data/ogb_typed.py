"""A folder in OGB's raw typed layout, that of ogbn-mag (gzip CSV; h, r, t: a relation and its ends).

    raw/num-node-dict.csv.gz: node types, then their counts          raw/triplet-type-list.csv.gz: h,r,t
    raw/nodetype-has-label.csv.gz: node types, then True or False
    raw/relations/h___r___t/edge.csv.gz [E, 2]: node numbers within their types      .../num-edge-list.csv.gz [1]
    raw/node-feat/TYPE/node-feat.csv.gz [N, F], where the type has features
    raw/node-label/TYPE/node-label.csv.gz [N, 1]
    split/NAME/TYPE/{train,valid,test}.csv.gz: node numbers

Types and relations are taken in sorted order, as OGB's own reader takes them.

Letters: N nodes of a type, E rows of a relation's edge file, F features.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sargnn.data.check import count_classes
from sargnn.data.dataset import SPLITS, Dataset, InMemoryReader
from sargnn.data.ogb_files import (
    MAX_EDGES,
    MAX_NODES,
    existing,
    expect_range,
    expect_shape,
    identity_of,
    read_count,
    read_features,
    read_labels,
    read_split,
    read_table,
    split_folder,
)
from sargnn.data.schema import Relation
from sargnn.data.settings import OgbConfig, OgbDirConfig
from sargnn.data.typed import Edges, homogenize, typed_dataset
from sargnn.errors import DataError

_VERSION = 1
TRIPLETS = Path("raw/triplet-type-list.csv.gz")


class TypedOgbDir(InMemoryReader):
    """Reads a typed folder."""

    def __init__(self, config: OgbDirConfig | OgbConfig, root: Path) -> None:
        self.config, self.root = config, root
        raw = root / "raw"
        self._tables = [existing(raw / "num-node-dict.csv.gz"), existing(root / TRIPLETS)]
        self._tables.append(existing(raw / "nodetype-has-label.csv.gz"))
        counts = _words(self._tables[0])
        if len(counts) != 2 or not all(map(_is_count, counts[1])) or len(set(counts[0])) != len(counts[0]):
            raise DataError(
                f"'{self._tables[0]}' must hold a row of distinct node types and a row of their counts.", given=counts
            )
        self._check_names(self._tables[0], counts[0])
        self.counts = dict(sorted(zip(counts[0], map(int, counts[1]), strict=True)))
        self.node_types = list(self.counts)
        self.triplets = sorted(tuple(row) for row in _words(self._tables[1]))
        if len(set(self.triplets)) != len(self.triplets):
            raise DataError(f"'{self._tables[1]}' names a relation twice.")
        for row in self.triplets:
            if len(row) != 3 or row[0] not in self.counts or row[2] not in self.counts:
                raise DataError(
                    f"'{self._tables[1]}' names a relation whose ends are no node types.",
                    given=",".join(row),
                    allowed=f"HEAD,RELATION,TAIL with ends among {', '.join(self.node_types)}",
                )
            self._check_names(self._tables[1], [row[1]])
        self.labelled = self._labelled()
        self.edges = {t: existing(raw / "relations" / "___".join(t) / "edge.csv.gz") for t in self.triplets}
        self.edge_counts = {t: existing(path.with_name("num-edge-list.csv.gz")) for t, path in self.edges.items()}
        features = {t: raw / "node-feat" / t / "node-feat.csv.gz" for t in self.node_types}
        self.features = {t: path for t, path in features.items() if path.is_file() and self.counts[t]}
        self.labels = existing(raw / "node-label" / self.labelled / "node-label.csv.gz")
        folder = split_folder(root) / self.labelled
        self.split = {name: existing(folder / f"{name}.csv.gz") for name in SPLITS}

    @staticmethod
    def _check_names(path: Path, names: list[str]) -> None:
        """Names of types and relations are names of folders, too."""
        wrong = [name for name in names if name in ("", ".", "..") or "/" in name or "\0" in name]
        if wrong:
            raise DataError(f"'{path}' holds a name that no folder can have.", given=repr(wrong[0])[:80])

    def _labelled(self) -> str:
        path = self._tables[2]
        rows = _words(path)
        flags = dict(zip(*rows, strict=True)) if len(rows) == 2 and len(rows[0]) == len(rows[1]) else {}
        labelled = [t for t, flag in flags.items() if flag == "True"]
        if len(labelled) != 1 or labelled[0] not in self.counts:
            raise DataError(
                f"'{path}' must say which node type has labels: exactly one can be trained on.",
                given=", ".join(labelled) or "none",
                allowed=", ".join(self.node_types),
            )
        return labelled[0]

    def identity(self) -> dict[str, Any]:
        """What decides the content, for the store's key: the flags, and what tells each raw file from another."""
        files = [*self._tables, *self.edges.values(), *self.edge_counts.values(), *self.features.values(), self.labels]
        return {
            "reader": "ogb_dir typed",
            "version": _VERSION,
            "files": identity_of([*files, *self.split.values()]),
            "add_inverse_edges": self.config.add_inverse_edges,
            "normalize_features": self.config.normalize_features,
            "homogenize": self.config.homogenize,
        }

    def read(self) -> Dataset:
        """Read the raw files.

        Raises:
            DataError: a file that cannot be read, counts that disagree, an edge to a node that does not exist, a feature
                that cannot be trained on, a label that is not a class; file and row are named.
        """
        relations = [self._relation(triplet) for triplet in self.triplets]
        if self.config.add_inverse_edges:
            relations += [edges.inverse() for edges in relations]
        features = [np.zeros((n, 0), np.float32) for n in self.counts.values()]
        for node_type, path in self.features.items():
            rows = read_features(path, self.counts[node_type], self.config.normalize_features)
            features[self.node_types.index(node_type)] = rows
        labels = read_labels(self.labels, self.counts[self.labelled])
        dataset = typed_dataset(
            name=self.config.name if isinstance(self.config, OgbConfig) else self.root.name,
            num_classes=count_classes(labels, str(self.labels)),
            node_types=self.node_types,
            features=features,
            relations=relations,
            labelled=self.node_types.index(self.labelled),
            labels=labels,
            split=read_split(self.split, self.counts[self.labelled]),
        )
        return homogenize(dataset) if self.config.homogenize else dataset

    def _relation(self, triplet: tuple[str, ...]) -> Edges:
        path, head, tail = self.edges[triplet], triplet[0], triplet[2]
        count = read_count(self.edge_counts[triplet], 0, MAX_EDGES)
        edges = read_table(path, np.int64, may_be_empty=count == 0)
        if count == 0 and not len(edges):
            edges = np.zeros((0, 2), np.int64)
        expect_shape(path, edges, (count, 2))
        for column, node_type in enumerate((head, tail)):
            expect_range(path, edges[:, column : column + 1], 0, self.counts[node_type], f"a {node_type} that does not exist")
        relation = Relation(self.node_types.index(head), triplet[1], self.node_types.index(tail))
        return Edges(relation, edges[:, 0], edges[:, 1])


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) < 20 and int(text) <= MAX_NODES


def _words(path: Path) -> list[list[str]]:
    """A small CSV's rows, as texts."""
    try:
        frame = pd.read_csv(path, header=None, dtype=str, keep_default_na=False)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}") from error
    return [list(row) for row in frame.to_numpy()]
