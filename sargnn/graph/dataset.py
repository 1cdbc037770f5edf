"""What a dataset is, homogeneous or typed, its store, and parts of it as graphs of their own.

Letters: N nodes, E directed edges, K nodes that are kept, F features, C classes, T node types, R relations.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.config.choices import Task
from sargnn.errors import DataError, StoreError
from sargnn.graph.check import (
    Range,
    check_content,
    check_features,
    check_form,
    check_split,
    check_weights,
    index_dtype,
    range_from_json,
    range_to_json,
)
from sargnn.graph.edge_columns import NO_COLUMNS, WEIGHT, EdgeColumns, file_of, names_from_json, names_to_json, open_columns
from sargnn.graph.manifest import blame_manifest
from sargnn.graph.origin import Origin
from sargnn.graph.pairs import Pairs, check_pairs
from sargnn.graph.schema import SPLITS, Schema, label_form, relation_dtype, task_of
from sargnn.graph.schema import UNLABELLED as UNLABELLED
from sargnn.graph.store import Store, StoreWriter
from sargnn.native import Entry
from sargnn.steps import step

FORMAT_VERSION = 2
_BLOCK_EDGES, _CHUNK_ROWS = 1 << 22, 1 << 16
_SEEDS = 64
"""Of a graph's surroundings, at most so many nodes to begin with: training nodes, and as many of each type, so that none is
without nodes."""
_group = Entry("group", "keys * E, values l? E, indptr l K+1, order l E")


@dataclass(frozen=True)
class Dataset:
    """A graph with features, labels and a split. Arrays may be memory-mapped.

    Attributes:
        num_classes: C, the outputs of a model; of a classification the classes.
        features: per node type float32 [nodes of the type, F]; F may differ, and is 0 for a type without features.
        labels: int64 [N], ``UNLABELLED`` where there is none; or those of another task (``graph.schema``). Only nodes of one
            type have labels.
        split: uint8 [N], 0 or a value of ``SPLITS``.
        indptr: int64 [N + 1]; the in-edges of node i are ``indices[indptr[i]:indptr[i + 1]]``.
        indices: int32 [E] (int64 from 2**31 nodes on), the source of each edge, ascending within a destination.
        relation: uint8 [E], or uint16 of more than 256 relations, that of each edge; None if there is one only.
        columns: what edges carry, in the order of ``indices``; weights are float32 [E], finite.
        content_hash: 16 hex digits; empty for a dataset that is in no store.
        stored_weights: the smallest and the largest weight, of a dataset in a store that has weights.
        pairs: links to predict; None: it has none.
        origin: ids of nodes and names of classes, of a graph that was read from tables; None: it was not.
    """

    name: str
    num_classes: int
    schema: Schema
    features: tuple[np.ndarray, ...]
    labels: np.ndarray
    split: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    relation: np.ndarray | None = None
    columns: EdgeColumns = NO_COLUMNS
    content_hash: str = ""
    stored_weights: tuple[float, float] | None = None
    pairs: Pairs | None = None
    origin: Origin | None = None

    @classmethod
    def homogeneous(
        cls,
        name: str,
        num_classes: int,
        features: np.ndarray,
        labels: np.ndarray,
        split: np.ndarray,
        indptr: np.ndarray,
        indices: np.ndarray,
        columns: EdgeColumns = NO_COLUMNS,
    ) -> Dataset:
        """A graph with one node type, features [N, F], and one relation."""
        schema = Schema.homogeneous(len(indptr) - 1)
        return cls(name, num_classes, schema, (features,), labels, split, indptr, indices, columns=columns)

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def task(self) -> Task:
        return task_of(self.labels)

    @property
    def feature_widths(self) -> tuple[int, ...]:
        return tuple(rows.shape[1] for rows in self.features)


class Reader(ABC):
    """Where a dataset comes from: raw files or a generator."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What decides the content, JSON-able, for the store's key."""

    @abstractmethod
    def write(self, path: Path, buffer_bytes: int) -> None:
        """Write the dataset's store, whose folder does not exist yet; readers that stream hold about ``buffer_bytes``."""


class InMemoryReader(Reader):
    """A reader of datasets that fit this machine's memory."""

    @abstractmethod
    def read(self) -> Dataset:
        """The whole dataset."""

    is_trained_on: bool = True
    """Whether some nodes must be in the split for training."""

    def write(self, path: Path, buffer_bytes: int = 0) -> None:
        write_dataset(path, self.read(), made_by=self.identity(), is_trained_on=self.is_trained_on)


def group_by(keys: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """A stable counting sort of integers [E] in [0, num_keys), O(E + num_keys).

    Gives indptr int64 [num_keys + 1] and order int64 [E]: ``order[indptr[k]:indptr[k + 1]]`` are the positions of key k.
    """
    indptr, order = np.empty(num_keys + 1, np.int64), np.empty(len(keys), np.int64)
    _group(np.ascontiguousarray(keys, np.int32 if keys.dtype == np.int32 else np.int64), None, indptr, order)
    return indptr, order


def row_runs(indptr: np.ndarray, entries: int) -> Iterator[tuple[int, int]]:
    """Runs [first, last) of whole rows of a CSR matrix that have at most so many entries together, or are one row."""
    first = 0
    while first < len(indptr) - 1:
        last = max(first + 1, int(np.searchsorted(indptr, indptr[first] + entries, side="right")) - 1)
        yield first, last
        first = last


def in_edge_blocks(dataset: Dataset, text: str) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """A graph's in-edges from the first node to the last, as they lie in the store, a few million at a time.

    Yields the first node of a run, ``indptr`` from 0 on, int64 [nodes + 1], and the sources of their in-edges. ``text``: what
    is done meanwhile (``sargnn.steps``).
    """
    indptr = np.asarray(dataset.indptr)
    for first, last in row_runs(indptr, _BLOCK_EDGES):
        step(text, first, dataset.num_nodes)
        yield first, indptr[first : last + 1] - indptr[first], np.asarray(dataset.indices[indptr[first] : indptr[last]])


def edge_positions(indptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The positions of all edges of the given rows of a CSR matrix, and for each edge which of ``rows`` it belongs to."""
    degrees = indptr[rows + 1] - indptr[rows]
    which = np.repeat(np.arange(len(rows), dtype=np.int64), degrees)
    starts = np.concatenate([[0], np.cumsum(degrees)])[:-1]
    return np.arange(len(which), dtype=np.int64) - starts[which] + indptr[rows][which], which


def destination_order(source: np.ndarray, destination: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """indptr int64 [num_nodes + 1] and order int64 [E] by destination, then source; parallel edges stay in their order."""
    _, order = group_by(source, num_nodes)
    indptr, second = group_by(destination[order], num_nodes)
    return indptr, order[second]


def by_destination(source: np.ndarray, destination: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges as (indptr, indices), sources ascending within each destination; parallel edges are kept."""
    indptr, order = destination_order(source, destination, num_nodes)
    return indptr, source[order].astype(index_dtype(num_nodes))


def write_dataset(path: Path, dataset: Dataset, made_by: dict[str, Any], *, is_trained_on: bool = True) -> None:
    """Write a dataset's store; ``is_trained_on``: some nodes must be in the split for training.

    Raises ``DataError`` for arrays of another form than ``Dataset`` says, numbers out of their range, no training nodes or
    pairs, a node of the split without a label, features or edge weights that cannot be trained on.
    """
    check_form(dataset)
    check_content(dataset)
    if dataset.pairs is None:
        check_split(dataset.name, dataset.labels, dataset.split, dataset.schema, is_trained_on=is_trained_on)
    else:
        check_pairs(dataset.name, dataset.pairs, dataset.num_nodes, len(dataset.schema.relations))
    check_features(dataset)
    weights = check_weights(dataset)
    with StoreWriter(path, "dataset", FORMAT_VERSION) as writer:
        for name in ("labels", "split", "indptr", "indices"):
            writer.put(name, getattr(dataset, name))
        if dataset.relation is not None:
            writer.put("relation", dataset.relation)
        dataset.columns.save(writer)
        for node_type, rows in enumerate(dataset.features):
            writer.put(features_name(node_type), rows)
        describe(writer, dataset.name, dataset.num_classes, dataset.schema, made_by, dataset.columns.forms, weights)
        for part in (dataset.pairs, dataset.origin):
            writer.meta |= part.save(writer) if part is not None else {}


def features_name(node_type: int) -> str:
    return f"features/{node_type:02d}"


def describe(
    writer: StoreWriter,
    name: str,
    num_classes: int,
    schema: Schema,
    made_by: dict[str, Any],
    columns: Iterable[str] = (),
    weights: Range | None = None,
) -> None:
    """Put what is no per-node array into a dataset's store: also the names of what edges carry, and the range of weights."""
    # As arrays too, so that the content hash covers them.
    writer.put("type_offsets", np.array(schema.offsets, np.int64))
    writer.put("relation_ends", np.array([(r.source, r.destination) for r in schema.relations], np.int64))
    writer.meta = {
        "name": name,
        "num_classes": num_classes,
        "schema": schema.to_json(),
        "made_by": made_by,
        "features_checked": True,
        **names_to_json(columns),
    }
    if weights is not None:
        writer.meta["edge_weights"] = range_to_json(weights)


def open_dataset(path: Path, *, verify: bool) -> Dataset:
    """Open a dataset's store, arrays memory-mapped. Raises ``StoreError`` naming the file that is damaged or holds no dataset.

    ``verify``: compare every checksum first, and check the range of every number; features only where the store was made before
    they were checked on the way in.
    """
    store = Store(path, "dataset", FORMAT_VERSION)
    if verify:
        store.verify()
    with blame_manifest(path, "of the dataset"):
        schema = Schema.from_json(store.meta["schema"])
        name, num_classes = store.meta["name"], store.meta["num_classes"]
        if type(name) is not str or type(num_classes) is not int:
            raise TypeError
        weighted = file_of(WEIGHT) in store.files or "edge_weights" in store.meta
        weights = range_from_json(store.meta["edge_weights"]) if weighted else None
        columns = names_from_json(store.meta, weighted=weighted)
    n = schema.num_nodes
    label_dtype, outputs = label_form(store.dtype("labels"), num_classes)
    indices = store.array("indices", index_dtype(n), (None,))
    dataset = Dataset(
        name=name,
        num_classes=num_classes,
        schema=schema,
        features=tuple(
            store.array(features_name(t), np.float32, (schema.count(t), None)) for t in range(len(schema.node_types))
        ),
        labels=store.array("labels", label_dtype, (n, *outputs)),
        split=store.array("split", np.uint8, (n,)),
        indptr=store.array("indptr", np.int64, (n + 1,)),
        indices=indices,
        relation=store.array("relation", relation_dtype(len(schema.relations)), (len(indices),))
        if len(schema.relations) > 1
        else None,
        columns=open_columns(store, columns, len(indices)),
        content_hash=store.content_hash,
        stored_weights=weights,
        pairs=Pairs.open(store, n),
        origin=Origin.open(store, len(schema.node_types)),
    )
    if verify:
        try:
            check_content(dataset)
            if not store.meta.get("features_checked"):
                check_features(dataset)
            if check_weights(dataset) != weights:
                raise DataError(f"The dataset '{name}' has edge weights of another range than its manifest says.")
        except DataError as error:
            raise StoreError(f"The store '{path}' cannot be used. {error}") from error
    return dataset


def cut_surroundings(dataset: Dataset, count: int, seed: int = 0) -> Dataset:
    """The graph between at most ``count`` nodes: training nodes, their in-neighbours, the in-neighbours of these, and so on.

    For what must be quick. Reads the edges into the kept nodes only, and the split. ``count``: at least a few hundred.
    """
    ids = _choose(dataset, count, np.random.default_rng(seed))
    positions, destinations = edge_positions(dataset.indptr, ids)
    given = np.asarray(dataset.indices[positions])
    sources = np.searchsorted(ids, given)
    kept = ids[np.minimum(sources, len(ids) - 1)] == given
    sources, destinations, positions = sources[kept], destinations[kept], positions[kept]
    schema = dataset.schema
    bounds = schema.bounds(ids)
    rows = [ids[a:b] - first for a, b, first in zip(bounds, bounds[1:], schema.offsets, strict=False)]
    return dataclasses.replace(
        dataset,
        schema=dataclasses.replace(schema, offsets=bounds),
        features=tuple(np.array(table[own]) for table, own in zip(dataset.features, rows, strict=True)),
        labels=np.array(dataset.labels[ids]),
        split=np.array(dataset.split[ids]),
        indptr=np.concatenate([[0], np.cumsum(np.bincount(destinations, minlength=len(ids)))]).astype(np.int64),
        indices=sources.astype(index_dtype(len(ids))),
        relation=None if dataset.relation is None else np.array(dataset.relation[positions]),
        columns=dataset.columns.take(positions),
        content_hash="",
        stored_weights=None,
    )


def _choose(dataset: Dataset, count: int, rng: np.random.Generator) -> np.ndarray:
    """Original ids, int64 [K], ascending."""
    training = np.flatnonzero(np.asarray(dataset.split) == SPLITS["train"])
    seeds = min(_SEEDS, count // (1 + len(dataset.schema.node_types)))
    chosen = rng.choice(training, min(seeds, len(training)), replace=False)
    for first, last in zip(dataset.schema.offsets, dataset.schema.offsets[1:], strict=False):
        chosen = np.union1d(chosen, first + rng.choice(last - first, min(seeds, last - first), replace=False))
    reached = chosen
    while len(reached) and len(chosen) < count:
        places, _ = edge_positions(dataset.indptr, reached)
        reached = np.setdiff1d(np.asarray(dataset.indices[places]), chosen)
        if len(reached) > count - len(chosen):
            reached = rng.choice(reached, count - len(chosen), replace=False)
        chosen = np.union1d(chosen, reached)
    if len(chosen) < count:  # what reaches them is less than may be kept
        others = np.setdiff1d(rng.choice(dataset.num_nodes, min(count, dataset.num_nodes), replace=False), chosen)
        chosen = np.union1d(chosen, others[: count - len(chosen)])
    return chosen.astype(np.int64)


def induced(dataset: Dataset, nodes: np.ndarray) -> Dataset:
    """The graph of some nodes, int64 [K], ascending, and the edges between them, without features and what edges carry."""
    place = np.full(dataset.num_nodes, -1, np.int64)
    place[nodes] = np.arange(len(nodes))
    indptr = np.asarray(dataset.indptr)
    sources, relations, degrees = [], [], np.zeros(len(nodes), np.int64)
    for first in range(0, len(nodes), _CHUNK_ROWS):
        chunk = nodes[first : first + _CHUNK_ROWS]
        positions, which = edge_positions(indptr, chunk)
        source = place[dataset.indices[positions]]
        inside = source >= 0
        degrees[first : first + _CHUNK_ROWS] = np.bincount(which[inside], minlength=len(chunk))
        sources.append(source[inside].astype(np.int32))
        if dataset.relation is not None:
            relations.append(dataset.relation[positions[inside]])
    schema = dataclasses.replace(dataset.schema, offsets=dataset.schema.bounds(nodes))
    return dataclasses.replace(
        dataset,
        schema=schema,
        features=tuple(np.zeros((schema.count(t), 0), np.float32) for t in range(len(schema.node_types))),
        labels=np.asarray(dataset.labels)[nodes],
        split=np.asarray(dataset.split)[nodes],
        indptr=np.concatenate([[0], np.cumsum(degrees)]),
        indices=np.concatenate(sources),
        relation=np.concatenate(relations) if relations else None,
        columns=NO_COLUMNS,
        content_hash="",
        stored_weights=None,
    )
