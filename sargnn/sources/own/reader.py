"""Own graphs on their way into a store: homogeneous ones piece by piece, those with types or pairs in memory.

``dataset=python`` is a function of the user's that returns a graph. It is called whenever a run needs the dataset, and the
store's key covers what it returns: whatever it reads, a store that holds something else is never used.

Letters: N nodes, E edges, F features.
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sargnn.config.choices import DatasetSettings
from sargnn.errors import DataError, SargnnError
from sargnn.graph.check import EdgeCheck, FeatureCheck, count_classes, expanded_width
from sargnn.graph.dataset import Dataset, InMemoryReader, Reader
from sargnn.graph.edge_columns import ATTR, WEIGHT, EdgePiece, attr_form
from sargnn.graph.origin import Origin
from sargnn.graph.schema import LABEL_DTYPES, SPLITS, UNLABELLED, Relation, has_label
from sargnn.graph.typed import Edges, homogenize, typed_dataset
from sargnn.interop.dgl import missing_in
from sargnn.resolve import resolve
from sargnn.sources.given_pairs import EdgeLabels, give_pairs, label_edges
from sargnn.sources.ogb.layouts import MAX_NODES
from sargnn.sources.own.edges import EdgeList, Triplet, checked_edges
from sargnn.sources.own.given import GivenArray, read_labels
from sargnn.sources.own.graph import (
    Nodes,
    OwnGraph,
    Unread,
    build_graph,
    check_fractions,
    check_split_column,
    draw_split,
    labelled_type,
    read_split,
)
from sargnn.sources.own.objects import tree_of
from sargnn.sources.own.pairs import PairReader
from sargnn.sources.streamed import StreamedReader
from sargnn.steps import step

if TYPE_CHECKING:
    from sargnn.sources.settings import OwnGraphConfig, PythonConfig

_VERSION = 1
_PIECE_NUMBERS = 1 << 22


def function_reader(config: PythonConfig) -> Reader:
    """The reader of what the function returns.

    Raises ``ConfigError``: there is no such function; ``DataError`` with its file and line: it cannot be called so, fails, or
    returns something else than a graph.
    """
    assert config.target is not None
    function = resolve("dataset", {}, config.name, config.target)
    place, name = config.target.rpartition(":")[0], config.title
    if isinstance(function, type) and issubclass(function, DatasetSettings):
        hint = "a class of settings is an option of its own, a file with target: (docs/maintainers/extend-dataset.md)"
        raise DataError("'dataset.target' names a class of settings, not a function.", given=config.target, hint=hint)
    if not callable(function):
        given = f"{config.target}, a {type(function).__name__}"
        raise DataError("'dataset.target' names something that cannot be called.", given=given, allowed="a function")
    origin = f"{place}, {name}"
    try:
        line = inspect.getsourcelines(inspect.unwrap(function))[1]
        place = inspect.getsourcefile(inspect.unwrap(function)) or place
        origin = f"{place} line {line}, {name}"
    except (OSError, TypeError):
        pass
    step(f"calling {name}")
    value = _call(function, name, config.args, place, origin)
    return object_reader(value, config, name, f"what '{name}' returns", origin)


def _call(function: Callable[..., Any], name: str, arguments: dict[str, Any], place: str, origin: str) -> Any:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no arguments"
        raise DataError(
            f"'{name}' cannot be called so: {error}.",
            given=f"{given}; {origin}",
            allowed=f"{name}{inspect.signature(function)}",
            hint="dataset.args.KEY=VALUE gives an argument",
        ) from error
    except ValueError:  # a function of C without a signature
        pass
    try:
        return function(**arguments)
    except SargnnError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename) == Path(place)] or list(frames)[1:] or list(frames)
        where = f"{own[-1].filename} line {own[-1].lineno}"
        if dgl_missing := missing_in(error, where):
            raise dgl_missing from error
        raise DataError(
            f"'{name}' failed: {type(error).__name__}: {error}",
            given=where,
            hint="SARGNN_FULL_ERROR=1 shows the whole traceback",
        ) from error


def object_reader(value: Any, config: OwnGraphConfig, name: str, whole: str, origin: str | None) -> Reader:
    """The reader of a graph in memory, in any of the forms that ``own.objects`` knows; ``origin`` as of ``own_reader``."""
    unread = Unread()
    with blame(origin):
        graph = build_graph(name, whole, tree_of(value, whole, unread), unread)
    return own_reader(graph, config, graph.digest(), origin)


def own_reader(graph: OwnGraph, config: OwnGraphConfig, content: Any, origin: str | None = None) -> OwnReader:
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
            **({"edge_categories": list(config.edge_categories)} if config.edge_categories else {}),
            **({"edge_weights": True} if any(WEIGHT in edges.forms for edges in graph.edges.values()) else {}),
            **({"edge_features": True} if any(ATTR in edges.forms for edges in graph.edges.values()) else {}),
            **({"predicted_type": config.predicted_type} if config.predicted_type is not None else {}),
            **({"link_messages": config.link_messages} if graph.pairs or graph.edge_labels else {}),
            **({"known": "by relation"} if graph.pairs and graph.typed else {}),
        }
        in_memory = graph.typed or graph.pairs or graph.edge_labels
        return (_InMemory if in_memory else _Homogeneous)(graph, config, identity, origin)


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
    width = max((edges.forms[ATTR].shape[0] for edges in graph.edges.values() if ATTR in edges.forms), default=0)
    expanded_width(width, config.edge_categories or (), graph.whole)
    labelled = graph.nodes[labelled_type(graph.nodes, graph.whole, for_links=_for_links(graph, config))]
    if config.split is None:
        check_split_column(labelled, config.split_column)
    elif config.split_column is not None:
        given = f"dataset.split={list(config.split)}, dataset.split_column={config.split_column}"
        raise DataError("A split is drawn, and one of the graph's own is asked for, too.", given=given, hint="leave one out")


def _for_links(graph: OwnGraph, config: OwnGraphConfig) -> bool:
    """Whether the graph has links or labelled edges to predict, or they are drawn; or nodes by a model of another graph."""
    return bool(graph.pairs or graph.edge_labels or config.link_split is not None or config.predicted_type is not None)


class OwnReader(Reader):
    """What readers of own graphs share: where errors say the graph came from; labels and split of the type that has them.

    A graph with links, or labels of edges, needs neither: where one of both is missing, the other is not read.
    """

    def __init__(self, graph: OwnGraph, config: OwnGraphConfig, identity: dict[str, Any], origin: str | None) -> None:
        self.graph, self.config, self._identity, self._whence = graph, config, identity, origin
        self.origin: Origin | None = None
        self.is_trained_on = config.predicted_type is None
        for_links = _for_links(graph, config)
        self.labelled_type = labelled_type(graph.nodes, graph.whole, for_links=for_links)
        self.labelled = graph.nodes[self.labelled_type]
        labels, parts = self.labelled.labels, [*self.labelled.masks.values(), *self.labelled.numbers.values()]
        needs_split = for_links and config.predicted_type is None
        self.given_labels = labels if not needs_split or parts or config.split is not None else None
        if self.given_labels is None and (others := parts if labels is None else [labels]):
            lacks = "node has a label" if labels is None else "split of nodes is given"
            names = ", ".join(array.name for array in others)
            logging.getLogger(__name__).warning(f"not read, as no {lacks}: {names}. Links and edges need neither.")
        self.labels_source = "labels" if self.given_labels is None else _bare(self.given_labels.name)

    def identity(self) -> dict[str, Any]:
        return self._identity

    def remember(self, identity: dict[str, Any], origin: Origin) -> None:
        """Of a graph that was read from tables: what decides the content instead, and what the dataset remembers of them."""
        self._identity, self.origin = identity, origin

    def write(self, path: Path, buffer_bytes: int = 0) -> None:
        with blame(self._whence):
            super().write(path, buffer_bytes)  # type: ignore[safe-super]

    def labels(self) -> np.ndarray:
        if self.given_labels is None:
            return np.full(self.labelled.count, UNLABELLED, np.int64)
        return read_labels(self.given_labels, self.config.task)

    def split_of(self, labels: np.ndarray) -> np.ndarray:
        """uint8 [N]. Raises ``DataError``, also for a node that is in a split and has no label."""
        known, nodes = has_label(labels), self.labelled
        if self.given_labels is None:
            return np.zeros(len(labels), np.uint8)
        if self.config.predicted_type is not None and not (self.config.split or nodes.masks or nodes.numbers):
            return np.where(known, SPLITS["test"], 0).astype(np.uint8)
        if self.config.split is not None:
            given = [array.name for array in (*nodes.masks.values(), *nodes.numbers.values())]
            if given:
                logging.getLogger(__name__).warning(f"dataset.split draws the split; not read: {', '.join(given)}")
            return draw_split(known, self.config.split, self.config.split_seed)
        split = read_split(nodes, self.graph.whole, self.config.split_column)
        if not (split == SPLITS["train"]).any() and self.config.predicted_type is None:
            mask = nodes.masks.get("train") or nodes.numbers["train"]
            raise DataError(f"{mask.name} names no node to train on.", hint="dataset.split=[0.6,0.2,0.2] draws a split")
        wrong = (split > 0) & ~known
        if wrong.any():
            raise DataError(
                f"{self.given_labels.name} has no label for a node that is in a split.",
                given=f"{self.given_labels.place(int(wrong.argmax()), 'node')}, {int(wrong.sum())} in all",
                hint="leave it out of the masks",
            )
        return split


class _Homogeneous(OwnReader, StreamedReader):
    row_unit = ("node", 0)

    def __init__(self, graph: OwnGraph, config: OwnGraphConfig, identity: dict[str, Any], origin: str | None) -> None:
        super().__init__(graph, config, identity, origin)
        (self._edges,) = graph.edges.values()
        self.name, self.num_nodes, self.num_rows = graph.name, self.labelled.count, self._edges.count
        self.edge_categories = config.edge_categories or ()
        self.forms, self.weights_source = _stored_forms(self._edges, config), self._edges.weights_name
        self.edge_features_source = _bare(self._edges.features_name)
        self.add_inverse_edges, self.normalize_features = config.add_inverse_edges, config.normalize_features
        self._features = self.labelled.features
        self.num_features = _width(self._features)
        self.features_source = _bare(self._features.name) if self._features is not None else "features"
        width = 1 if self.given_labels is None else int(np.prod(self.given_labels.shape[1:], dtype=np.int64))
        self.label_bytes = width * LABEL_DTYPES[config.task or "classes"].itemsize

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        return checked_edges(self._edges, rows, self.num_nodes, self.num_nodes)

    def edge_place(self, position: int) -> str:
        return self._edges.place(position)

    def features(self, rows: int) -> Iterator[np.ndarray]:
        if self._features is None:
            yield np.zeros((self.num_nodes, 0), np.float32)
            return
        for piece in self._features.pieces(rows):
            yield piece.reshape(len(piece), -1)

    def labels(self) -> np.ndarray:
        self._labels = super().labels()
        return self._labels

    def split(self) -> np.ndarray:
        split = self.split_of(self._labels)
        del self._labels
        return split


class _InMemory(OwnReader, InMemoryReader):
    def read(self) -> Dataset:
        labels = self.labels()
        split = self.split_of(labels)
        node_types = list(self.graph.nodes)
        given = relations = [self._relation(triplet, edges, node_types) for triplet, edges in self.graph.edges.items()]
        if self.config.add_inverse_edges and self.graph.typed:
            relations += [edges.inverse() for edges in relations]
        elif self.config.add_inverse_edges:
            relations = [edges.with_inverses() for edges in relations]
        dataset = typed_dataset(
            name=self.graph.name,
            num_classes=count_classes(labels, self.labels_source),
            node_types=node_types,
            features=[self._table(nodes) for nodes in self.graph.nodes.values()],
            relations=relations,
            labelled=node_types.index(self.labelled_type),
            labels=labels,
            split=split,
        )
        if self.graph.edge_labels:
            numbers = {triplet: number for number, triplet in enumerate(self.graph.edges)}
            labelled = [
                EdgeLabels(given[numbers[triplet]], numbers[triplet], *of_edges.read(self.config.task))
                for triplet, of_edges in self.graph.edge_labels.items()
            ]
            dataset = label_edges(dataset, labelled, messages=self.config.link_messages)
        if self.graph.pairs:
            offsets = dict(zip(node_types, dataset.schema.offsets, strict=False))
            counts = {name: nodes.count for name, nodes in self.graph.nodes.items()}
            pairs = PairReader(list(self.graph.edges), offsets, counts).read(self.graph.pairs)
            dataset = give_pairs(dataset, pairs, messages=self.config.link_messages)
        dataset = replace(dataset, origin=self.origin)
        return homogenize(dataset) if self.config.homogenize else dataset

    def _relation(self, triplet: Triplet, edges: EdgeList, node_types: list[str]) -> Edges:
        source, name, destination = triplet
        counts = self.graph.nodes[source].count, self.graph.nodes[destination].count
        forms, categories = _stored_forms(edges, self.config), self.config.edge_categories or ()
        check = EdgeCheck(edges.weights_name, _bare(edges.features_name), edges.place, categories)
        rows = max(1, _PIECE_NUMBERS // (1 + sum(form.itemsize for form in forms.values()) // 4))
        pieces = [(a, b, check.checked(columns)) for a, b, columns in checked_edges(edges, rows, *counts)]
        check.finish()
        relation = Relation(node_types.index(source), name, node_types.index(destination))
        return Edges.of_pieces(relation, pieces, forms)

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


def _stored_forms(edges: EdgeList, config: OwnGraphConfig) -> Mapping[str, np.dtype]:
    """What edges carry in the store: name -> dtype, with a shape where it is several numbers."""
    if ATTR not in edges.forms:
        return edges.forms
    width = expanded_width(edges.forms[ATTR].shape[0], config.edge_categories or (), edges.features_name)
    return {**edges.forms, ATTR: attr_form(width)}


def _width(features: GivenArray | None) -> int:
    if features is None:
        return 0
    return features.shape[1] if len(features.shape) == 2 else 1
