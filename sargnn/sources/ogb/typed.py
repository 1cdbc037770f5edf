"""A folder in OGB's raw typed layout, that of ogbn-mag (gzip CSV; h, r, t: a relation and its ends).

    raw/num-node-dict.csv.gz: node types, then their counts          raw/triplet-type-list.csv.gz: h,r,t
    raw/nodetype-has-label.csv.gz: node types, then True or False
    raw/relations/h___r___t/edge.csv.gz [E, 2]: node numbers within their types      .../num-edge-list.csv.gz [1]
    raw/relations/h___r___t/edge-weight.csv.gz [E, 1], edge-feat.csv.gz [E, D], where edges have weights, features
    raw/node-feat/TYPE/node-feat.csv.gz [N, F], where the type has features
    raw/node-label/TYPE/node-label.csv.gz [N, 1]
    split/NAME/TYPE/{train,valid,test}.csv.gz: node numbers

Tables of counts may be missing. A type then has as many nodes as there are rows of features, or of labels, or as its largest
number among the edges says.

Letters: N nodes of a type, E rows of a relation's edge file, F features, D features of edges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sargnn.graph.check import EdgeCheck, count_classes
from sargnn.graph.dataset import Dataset, InMemoryReader
from sargnn.graph.edge_columns import ATTR, WEIGHT, EdgeColumns
from sargnn.graph.schema import Relation
from sargnn.graph.typed import Edges, homogenize, typed_dataset
from sargnn.sources.ogb import tables
from sargnn.sources.ogb.layouts import MAX_EDGES, MAX_NODES, Triplet, find_typed
from sargnn.sources.scan import identity_of
from sargnn.sources.settings import OgbConfig, OgbDirConfig

_VERSION = 1


class TypedOgbDir(InMemoryReader):
    """Raises ``DataError`` where files are missing, with all of them."""

    def __init__(self, config: OgbDirConfig | OgbConfig, root: Path) -> None:
        self.config, self.root, self.files = config, root, find_typed(root)

    def identity(self) -> dict[str, Any]:
        own = self.files
        paths = [*own.tables, *own.edges.values(), *own.edge_counts.values(), *own.features.values(), own.labels]
        paths += [*own.edge_weights.values(), *own.edge_features.values()]
        return {
            "reader": "ogb_dir typed",
            "version": _VERSION,
            "files": identity_of([*paths, *own.split.values()]),
            "add_inverse_edges": self.config.add_inverse_edges,
            "normalize_features": self.config.normalize_features,
            "homogenize": self.config.homogenize,
            **({"task": self.config.task} if self.config.task is not None else {}),
        }

    def read(self) -> Dataset:
        """Raises ``DataError`` with file and row, as reading an ``OgbDir`` does."""
        files = self.files
        pairs = {triplet: self._table(triplet) for triplet in files.triplets}
        counts = files.counts if files.counts is not None else self._count_nodes(pairs)
        relations = [self._relation(triplet, edges, counts) for triplet, edges in pairs.items()]
        if self.config.add_inverse_edges:
            relations += [edges.inverse() for edges in relations]
        features = [np.zeros((n, 0), np.float32) for n in counts.values()]
        for node_type, path in files.features.items():
            if counts[node_type]:
                rows = tables.read_features(path, counts[node_type], self.config.normalize_features)
                features[files.node_types.index(node_type)] = rows
        labels = tables.read_labels(files.labels, counts[files.labelled], self.config.task)
        dataset = typed_dataset(
            name=self.config.name if isinstance(self.config, OgbConfig) else self.root.name,
            num_classes=count_classes(labels, str(files.labels)),
            node_types=files.node_types,
            features=features,
            relations=relations,
            labelled=files.node_types.index(files.labelled),
            labels=labels,
            split=tables.read_split(files.split, counts[files.labelled]),
        )
        return homogenize(dataset) if self.config.homogenize else dataset

    def _table(self, triplet: Triplet) -> np.ndarray:
        """A relation's edge file, int64 [E, 2]."""
        path, counted = self.files.edges[triplet], self.files.edge_counts.get(triplet)
        count = tables.read_count(counted, 0, MAX_EDGES) if counted is not None else None
        edges = tables.read_table(path, np.int64, may_be_empty=not count)
        if not count and not len(edges):
            edges = np.zeros((0, 2), np.int64)
        tables.expect_shape(path, edges, (len(edges) if count is None else count, 2))
        return edges

    def _count_nodes(self, pairs: dict[Triplet, np.ndarray]) -> dict[str, int]:
        """How many nodes each type has, where no table says it."""
        counts = {}
        for node_type in self.files.node_types:
            if (path := self.files.features.get(node_type)) is not None:
                counts[node_type] = tables.count_rows(path, 0, MAX_NODES)
            elif node_type == self.files.labelled:
                counts[node_type] = tables.count_rows(self.files.labels, 0, MAX_NODES)
            else:
                ends = [(t, edges, k) for t, edges in pairs.items() for k in (0, 1) if t[2 * k] == node_type]
                for triplet, edges, k in ends:
                    what = f"a node of type {node_type} that cannot be"
                    tables.expect_range(self.files.edges[triplet], edges[:, k : k + 1], 0, MAX_NODES, what)
                counts[node_type] = max((int(edges[:, k].max(initial=-1)) for _, edges, k in ends), default=-1) + 1
        return counts

    def _relation(self, triplet: Triplet, edges: np.ndarray, counts: dict[str, int]) -> Edges:
        head, name, tail = triplet
        for column, node_type in enumerate((head, tail)):
            numbers, path = edges[:, column : column + 1], self.files.edges[triplet]
            tables.expect_range(path, numbers, 0, counts[node_type], f"a node of type {node_type} that does not exist")
        types = self.files.node_types
        ends = Relation(types.index(head), name, types.index(tail))
        return Edges(ends, edges[:, 0], edges[:, 1], self._columns(triplet, len(edges)))

    def _columns(self, triplet: Triplet, count: int) -> EdgeColumns:
        weights, features = self.files.edge_weights.get(triplet), self.files.edge_features.get(triplet)
        columns = EdgeColumns()
        if weights is not None:
            table = tables.read_table(weights, np.float64, may_be_empty=not count)
            tables.expect_shape(weights, table, (count, 1))
            columns = columns.put(WEIGHT, table[:, 0])
        if features is not None and count:
            table = tables.read_table(features, np.float64)
            tables.expect_shape(features, table, (count, table.shape[1]))
            columns = columns.put(ATTR, table)
        check = EdgeCheck(f"'{weights}'", str(features), lambda position: f"row {position + 1}")
        columns = check.checked(columns)
        check.finish()
        return columns
