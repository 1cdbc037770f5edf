"""Own graphs on their way into a store: homogeneous ones piece by piece, typed ones in memory.

Letters: N nodes, E edges, F features.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.check import count_classes
from sargnn.graph.dataset import Dataset, InMemoryReader, Reader
from sargnn.graph.edge_columns import WEIGHT, EdgeColumns, EdgePiece, join
from sargnn.graph.features import FeatureCheck
from sargnn.graph.labels import LABEL_DTYPES, has_label
from sargnn.graph.schema import SPLITS, Relation
from sargnn.graph.typed import Edges, homogenize, typed_dataset
from sargnn.graph.weights import WeightCheck
from sargnn.sources.ogb.layouts import MAX_NODES
from sargnn.sources.own.given import GivenArray
from sargnn.sources.own.graph import EdgeList, Nodes, OwnGraph, Triplet
from sargnn.sources.own.targets import check_fractions, check_split_column, draw_split, labelled_type, read_labels, read_split
from sargnn.sources.streamed import StreamedReader

if TYPE_CHECKING:
    from sargnn.sources.settings import OwnGraphConfig

_VERSION = 1
_PIECE_NUMBERS = 1 << 22


def own_reader(graph: OwnGraph, config: OwnGraphConfig, content: Any, origin: str | None = None) -> Reader:
    """The reader of a graph.

    Args:
        content: what decides the arrays, JSON-able, for the store's key.
        origin: where the graph came from, added to every error; None where the arrays' names say it.

    Raises:
        DataError: what is wrong with labels, split or shapes; edges' and features' content is looked at later, as it is read.
    """
    with blame(origin):
        _check(graph, config)
        for remark in graph.remarks():
            logging.getLogger(__name__).warning(remark)
        identity = {
            "reader": "own",
            "version": _VERSION,
            "content": content,
            "add_inverse_edges": config.add_inverse_edges,
            "normalize_features": config.normalize_features,
            "homogenize": config.homogenize,
            "split": [config.split, config.split_seed] if config.split is not None else None,
            "task": config.task,
            **({"split_column": config.split_column} if config.split_column is not None else {}),
            **({"edge_weights": True} if any(WEIGHT in edges.forms for edges in graph.edges.values()) else {}),
        }
        return (_Typed if graph.typed else _Homogeneous)(graph, config, identity, origin)


@contextmanager
def blame(origin: str | None) -> Iterator[None]:
    """Errors of a graph say where it came from."""
    try:
        yield
    except DataError as error:
        if origin is None:
            raise
        raise DataError(f"{error}\n  from:    {origin}") from error


def _check(graph: OwnGraph, config: OwnGraphConfig) -> None:
    """Shapes and kinds of all arrays, before anything long is read."""
    if config.split is not None:
        check_fractions(config.split)
    total = sum(nodes.count for nodes in graph.nodes.values())
    if not 1 <= total <= MAX_NODES:
        raise DataError(f"{graph.whole} has a number of nodes that cannot be.", given=total, allowed=f"1 to {MAX_NODES}")
    for nodes in graph.nodes.values():
        if nodes.features is not None and len(nodes.features.shape) not in (1, 2):
            raise DataError(
                f"{nodes.features.name} must be a table of features.",
                given=f"shape {list(nodes.features.shape)}",
                allowed="[N, F]",
            )
    labelled = graph.nodes[labelled_type(graph.nodes, graph.whole)]
    if config.split is None:
        check_split_column(labelled, config.split_column)
    elif config.split_column is not None:
        given = f"dataset.split={list(config.split)}, dataset.split_column={config.split_column}"
        raise DataError("A split is drawn, and one of the graph's own is asked for, too.", given=given, hint="leave one out")


class _Targets:
    """Labels and split of the type that has them, read once."""

    def __init__(self, graph: OwnGraph, config: OwnGraphConfig) -> None:
        self.whole, self.config = graph.whole, config
        self.node_type = labelled_type(graph.nodes, graph.whole)
        self.nodes: Nodes = graph.nodes[self.node_type]

    @cached_property
    def given(self) -> GivenArray:
        assert self.nodes.labels is not None
        return self.nodes.labels

    def labels(self) -> np.ndarray:
        return read_labels(self.given, self.config.task)

    def split(self, labels: np.ndarray) -> np.ndarray:
        """uint8 [N]. Raises ``DataError``, also for a node that is in a split and has no label."""
        labelled = has_label(labels)
        if self.config.split is not None:
            given = [array.name for array in (*self.nodes.masks.values(), *self.nodes.numbers.values())]
            if given:
                logging.getLogger(__name__).warning(f"dataset.split draws the split; not read: {', '.join(given)}")
            return draw_split(labelled, self.config.split, self.config.split_seed)
        split = read_split(self.nodes, self.whole, self.config.split_column)
        if not (split == SPLITS["train"]).any():
            mask = self.nodes.masks.get("train") or self.nodes.numbers["train"]
            raise DataError(f"{mask.name} names no node to train on.", hint="dataset.split=[0.6,0.2,0.2] draws a split")
        wrong = (split > 0) & ~labelled
        if wrong.any():
            raise DataError(
                f"{self.given.name} has no label for a node that is in a split.",
                given=f"node {int(wrong.argmax())} (counted from 0), {int(wrong.sum())} in all",
                hint="leave it out of the masks",
            )
        return split


class _Homogeneous(StreamedReader):
    """One type, one relation."""

    row_unit = ("node", 0)

    def __init__(self, graph: OwnGraph, config: OwnGraphConfig, identity: dict[str, Any], origin: str | None) -> None:
        self.name, self._identity, self._origin = graph.name, identity, origin
        ((_, nodes),) = graph.nodes.items()
        ((_, self._edges),) = graph.edges.items()
        self.num_nodes, self.num_rows = nodes.count, self._edges.count
        self.forms = self._edges.forms
        self.add_inverse_edges, self.normalize_features = config.add_inverse_edges, config.normalize_features
        self._features, self._targets = nodes.features, _Targets(graph, config)

    def identity(self) -> dict[str, Any]:
        return self._identity

    def write(self, path: Path, buffer_bytes: int) -> None:
        with blame(self._origin):
            super().write(path, buffer_bytes)

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        yield from checked_edges(self._edges, rows, self.num_nodes, self.num_nodes)

    def weights_source(self) -> str:
        return self._edges.weights_name

    def edge_place(self, position: int) -> str:
        return self._edges.place(position)

    @property
    def num_features(self) -> int:
        return _width(self._features)

    def features(self, rows: int) -> Iterator[np.ndarray]:
        if self._features is None:
            yield np.zeros((self.num_nodes, 0), np.float32)
            return
        for piece in self._features.pieces(rows):
            yield piece.reshape(len(piece), -1)

    @property
    def label_bytes(self) -> int:
        width = int(np.prod(self._targets.given.shape[1:], dtype=np.int64))
        return width * LABEL_DTYPES[self._targets.config.task or "classes"].itemsize

    def features_source(self) -> str:
        return _bare(self._features.name) if self._features is not None else "features"

    def labels(self) -> np.ndarray:
        self._labels = self._targets.labels()
        return self._labels

    def labels_source(self) -> str:
        return _bare(self._targets.given.name)

    def split(self) -> np.ndarray:
        split = self._targets.split(self._labels)
        del self._labels
        return split


class _Typed(InMemoryReader):
    """Several types or relations."""

    def __init__(self, graph: OwnGraph, config: OwnGraphConfig, identity: dict[str, Any], origin: str | None) -> None:
        self.graph, self.config, self._identity, self._origin = graph, config, identity, origin
        self._targets = _Targets(graph, config)

    def identity(self) -> dict[str, Any]:
        return self._identity

    def write(self, path: Path, buffer_bytes: int = 0) -> None:
        with blame(self._origin):
            super().write(path, buffer_bytes)

    def read(self) -> Dataset:
        labels = self._targets.labels()
        split = self._targets.split(labels)
        node_types = list(self.graph.nodes)
        relations = [self._relation(triplet, edges, node_types) for triplet, edges in self.graph.edges.items()]
        if self.config.add_inverse_edges:
            relations += [edges.inverse() for edges in relations]
        dataset = typed_dataset(
            name=self.graph.name,
            num_classes=count_classes(labels, _bare(self._targets.given.name)),
            node_types=node_types,
            features=[self._table(nodes) for nodes in self.graph.nodes.values()],
            relations=relations,
            labelled=node_types.index(self._targets.node_type),
            labels=labels,
            split=split,
        )
        return homogenize(dataset) if self.config.homogenize else dataset

    def _relation(self, triplet: Triplet, edges: EdgeList, node_types: list[str]) -> Edges:
        source, name, destination = triplet
        counts = self.graph.nodes[source].count, self.graph.nodes[destination].count
        pieces = list(checked_edges(edges, _PIECE_NUMBERS, *counts))
        sources, destinations = (
            np.concatenate([np.zeros(0, np.int64), *(ends.astype(np.int64) for ends in column)])
            for column in ([piece[0] for piece in pieces], [piece[1] for piece in pieces])
        )
        check = WeightCheck(edges.weights_name, edges.place)
        columns = join(
            [EdgeColumns.empty(edges.forms), *(check.checked(carried) for *_, carried in pieces)],
            [0, *(len(piece[0]) for piece in pieces)],
        )
        ends = Relation(node_types.index(source), name, node_types.index(destination))
        return Edges(ends, sources, destinations, columns)

    def _table(self, nodes: Nodes) -> np.ndarray:
        """float32 [N, F]."""
        width = _width(nodes.features)
        table = np.zeros((nodes.count, width), np.float32)
        if nodes.features is None or not table.size:
            return table
        check, first = FeatureCheck(_bare(nodes.features.name), unit="node", first=0), 0
        for piece in nodes.features.pieces(max(1, _PIECE_NUMBERS // width)):
            rows = check.to_float32(piece.reshape(len(piece), -1), normalize=self.config.normalize_features)
            table[first : first + len(rows)] = rows
            first += len(rows)
        check.finish()
        return table


def _bare(name: str) -> str:
    """Without the quotes that messages put around it."""
    return name[1:-1] if name[:1] == name[-1:] == "'" else name


def _width(features: GivenArray | None) -> int:
    if features is None:
        return 0
    return features.shape[1] if len(features.shape) == 2 else 1


def checked_edges(edges: EdgeList, rows: int, sources: int, destinations: int) -> Iterator[EdgePiece]:
    """The pieces of an edge list between so many sources and destinations. Raises ``DataError`` naming the edge."""
    first = 0
    for piece in edges.pieces(rows):
        for what, column, count in (("source", piece[0], sources), ("destination", piece[1], destinations)):
            if not len(column) or (column.min() >= 0 and column.max() < count):
                continue
            row = int(((column < 0) | (column >= count)).argmax())
            hint = "nodes are counted from 0; are these counted from 1?" if column[row] == count else None
            raise DataError(
                f"{edges.name} names a {what} that does not exist, in {edges.place(first + row)}.",
                given=column[row],
                allowed=f"0 to {count - 1}; there are {count} nodes",
                hint=hint,
            )
        yield piece
        first += len(piece[0])
