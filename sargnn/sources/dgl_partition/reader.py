"""A DGL partition as a dataset: homogeneous ones part by part, typed ones in memory.

Letters: N nodes, F features, P parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.check import FeatureCheck, count_classes
from sargnn.graph.dataset import Dataset, InMemoryReader, Reader, features_name
from sargnn.graph.edge_columns import ATTR, WEIGHT, EdgePiece
from sargnn.graph.schema import Relation
from sargnn.graph.store import StoreWriter
from sargnn.graph.typed import Edges, typed_dataset
from sargnn.interop.dgl import load_part, load_tensors
from sargnn.sources.dgl_partition.nodes import ORIGINAL_IDS, DglNodes, Names, read_nodes, rows_of
from sargnn.sources.dgl_partition.parts import DglColumns, DglParts, Triplet, find_columns, read_parts
from sargnn.sources.scan import identity_of
from sargnn.sources.streamed import StreamedReader
from sargnn.steps import step

_VERSION = 1


@dataclasses.dataclass(frozen=True)
class DglPartition:
    """What is read of a partition, and the dataset that it becomes.

    Attributes:
        name: of the dataset.
        inverse: every edge also the other way round; of a typed graph, as relations of their own.
        identity: what decides the dataset's content, JSON-able.
    """

    parts: DglParts
    nodes: DglNodes
    columns: DglColumns
    name: str
    inverse: bool
    identity: Mapping[str, Any]

    @property
    def reader(self) -> Reader:
        return TypedDgl(self) if self.parts.typed else HomogeneousDgl(self)

    def edges(self, p: int) -> dict[Triplet, EdgePiece]:
        """Relation -> our ids of sources and destinations of part p's own edges, and their columns. Raises ``DataError``."""
        ends = self.parts.own_edges(p, load_part(self.parts.graphs[p]))
        columns = self.columns.of_part(p, {triplet: len(sources) for triplet, (sources, _) in ends.items()})
        ours = self.nodes.ours
        return {triplet: (ours[a], ours[b], columns[triplet]) for triplet, (a, b) in ends.items()}

    def features(self) -> Iterator[tuple[str, np.ndarray, np.ndarray, str]]:
        """Part by part and type by type: the type, our ids [n] of own nodes, features float [n, F] as they come, and the file.

        Raises ``DataError`` with the file's name: features have another shape than the first part's.
        """
        for p in range(self.parts.num_parts):
            step("reading features", p, self.parts.num_parts)
            yield from self._features_of(p)  # of which nothing is held when the next one is loaded

    def _features_of(self, p: int) -> Iterator[tuple[str, np.ndarray, np.ndarray, str]]:
        parts, nodes, place = self.parts, self.nodes, self.parts.node_data[p]
        data, own = load_tensors(place), parts.own_nodes(p, load_part(parts.graphs[p]))
        for node_type, key in nodes.features.items():
            if not len(own[node_type]):
                continue
            rows = rows_of(parts, p, data, key)
            table = rows.reshape(-1, 1) if rows.ndim == 1 else rows
            if table.ndim != 2 or table.shape[1] != nodes.widths[node_type]:
                raise DataError(
                    f"'{place}' holds '{key}' of another shape than the first part.",
                    given=list(rows.shape),
                    allowed=f"{nodes.widths[node_type]} columns",
                )
            table = table if table.dtype.kind == "f" else table.astype(np.float64)
            yield node_type, nodes.ours[own[node_type]], table, str(place)


def dgl_partition(
    path: Path, names: Names, *, name: str = "", mapping: Path | None = None, inverse: bool = False
) -> DglPartition:
    """Read a partition's JSON file, and the nodes of all its parts. Raises ``DataError`` with the file's name.

    Args:
        names, mapping: as ``read_nodes`` takes them.
        name: of the dataset; empty: as DGL's file calls the graph.
        inverse: as in ``DglPartition``.
    """
    parts = read_parts(path)
    nodes, columns = read_nodes(parts, names, mapping), find_columns(parts)
    beside = [graph.with_name(ORIGINAL_IDS) for graph in parts.graphs]
    files = [path, *parts.graphs, *parts.node_data, *(file for file in beside if file.is_file())]
    files += columns.files if columns.forms else ()
    carried = {"edge_weights": columns.keys[WEIGHT], "edge_features": columns.keys[ATTR]}
    identity = {
        "reader": "dgl",
        "version": _VERSION,
        "files": identity_of([file.resolve() for file in [*files, *([mapping] if mapping else [])]]),
        "names": dataclasses.asdict(names),
        "inverse": inverse,
        **{what: sorted(keys.values()) for what, keys in carried.items() if keys},
    }
    return DglPartition(parts, nodes, columns, name or parts.name, inverse, identity)


class HomogeneousDgl(StreamedReader):
    """No more than one part is held."""

    def __init__(self, partition: DglPartition) -> None:
        self.partition, self.parts, self.nodes = partition, partition.parts, partition.nodes
        self.name, self.num_nodes, self.num_rows = partition.name, self.parts.num_nodes, self.parts.num_edges
        self.add_inverse_edges, self.normalize_features = partition.inverse, False
        self.forms = partition.columns.forms
        self.num_features = self.nodes.widths.get(self.nodes.labelled, 0)
        self.weights_source = self.edge_features_source = self.features_source = self.labels_source = str(self.parts.path)

    def identity(self) -> dict[str, Any]:
        return dict(self.partition.identity)

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        for p in range(self.parts.num_parts):
            ((sources, destinations, columns),) = self.partition.edges(p).values()
            for first in range(0, len(sources), rows):
                piece = slice(first, first + rows)
                yield sources[piece], destinations[piece], columns.run(piece)

    def features(self, rows: int) -> Iterator[np.ndarray]:
        """Part by part, and not in the nodes' order: only ``_write_features`` reads them."""
        return (table for _, _, table, _ in self.partition.features())

    def _write_features(self, writer: StoreWriter, rows: int) -> None:
        if not self.num_features:
            writer.put(features_name(0), np.zeros((self.num_nodes, 0), np.float32))
            return
        target = writer.create(features_name(0), (self.num_nodes, self.num_features), np.float32)
        for _, ids, table, place in self.partition.features():
            check = FeatureCheck(place)
            for first in range(0, len(ids), rows):
                target[ids[first : first + rows]] = check.to_float32(table[first : first + rows])
            check.finish()
        target.flush()

    def labels(self) -> np.ndarray:
        return self.nodes.labels

    def split(self) -> np.ndarray:
        return self.nodes.split


class TypedDgl(InMemoryReader):
    """Types and relations are in sorted order."""

    def __init__(self, partition: DglPartition) -> None:
        self.partition, self.parts, self.nodes = partition, partition.parts, partition.nodes
        self._types = list(self.parts.nodes)

    def identity(self) -> dict[str, Any]:
        return dict(self.partition.identity)

    def read(self) -> Dataset:
        """Raises ``DataError`` with the file's name: files disagree, a feature cannot be trained on, a label is no class."""
        relations = self._relations()
        if self.partition.inverse:
            relations += [edges.inverse() for edges in relations]
        return typed_dataset(
            name=self.partition.name,
            num_classes=count_classes(self.nodes.labels, str(self.parts.path)),
            node_types=self._types,
            features=self._features(),
            relations=relations,
            labelled=self._types.index(self.nodes.labelled),
            labels=self.nodes.labels,
            split=self.nodes.split,
        )

    def _relations(self) -> list[Edges]:
        parts = self.parts
        pieces: dict[Triplet, list[EdgePiece]] = {triplet: [] for triplet in parts.edges}
        for p in range(parts.num_parts):
            step("reading edges", p, parts.num_parts)
            for triplet, (sources, destinations, columns) in self.partition.edges(p).items():
                head, _, tail = triplet
                pieces[triplet].append((sources - parts.offsets[head], destinations - parts.offsets[tail], columns))
        return [
            Edges.of_pieces(Relation(self._types.index(head), name, self._types.index(tail)), ends)
            for (head, name, tail), ends in pieces.items()
        ]

    def _features(self) -> list[np.ndarray]:
        """Of each type float32 [nodes of the type, F], F = 0 without features."""
        parts, widths = self.parts, self.nodes.widths
        features = {name: np.zeros((count, widths.get(name, 0)), np.float32) for name, count in parts.counts.items()}
        for name, ids, table, place in self.partition.features():
            check = FeatureCheck(f"{place}, {name}")
            features[name][ids - parts.offsets[name]] = check.to_float32(table)
            check.finish()
        return list(features.values())
