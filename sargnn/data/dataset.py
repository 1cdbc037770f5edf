"""What a dataset is, homogeneous or typed, and its store.

Letters: N nodes, E directed edges, F features, C classes, T node types, R relations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np

from sargnn.data.schema import Schema
from sargnn.data.store import Store, StoreWriter
from sargnn.errors import DataError

FORMAT_VERSION = 2
UNLABELLED = -1
SPLITS = {"train": 1, "valid": 2, "test": 3}
"""Values of ``Dataset.split``; 0 is none of them."""


@dataclass(frozen=True)
class Dataset:
    """A graph with features, labels and a split. Arrays may be memory-mapped.

    Attributes:
        name: the dataset's name.
        num_classes: C.
        schema: node types and relations.
        features: per node type float32 [nodes of the type, F]; F may differ, and is 0 for a type without features.
        labels: int64 [N], ``UNLABELLED`` where there is none; nodes of one type have labels.
        split: uint8 [N], 0 or a value of ``SPLITS``.
        indptr: int64 [N + 1]; the in-edges of node i are ``indices[indptr[i]:indptr[i + 1]]``.
        indices: int32 [E] (int64 from 2**31 nodes on), the source of each edge, ascending within a destination.
        relation: uint8 [E], the relation of each edge; None if there is one only.
        content_hash: 16 hex digits; empty for a dataset that is in no store.
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
    content_hash: str = ""

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
    ) -> Dataset:
        """A graph with one node type, features [N, F], and one relation."""
        schema = Schema.homogeneous(len(indptr) - 1)
        return cls(name, num_classes, schema, (features,), labels, split, indptr, indices)

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E, directed."""
        return len(self.indices)

    @property
    def feature_widths(self) -> tuple[int, ...]:
        """F of each node type."""
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

    def write(self, path: Path, buffer_bytes: int = 0) -> None:
        write_dataset(path, self.read(), made_by=self.identity())


@numba.njit(cache=True)
def _group(keys: Any, num_keys: Any) -> Any:  # pragma: no cover - compiled
    indptr = np.zeros(num_keys + 1, np.int64)
    for key in keys:
        indptr[key + 1] += 1
    for k in range(num_keys):
        indptr[k + 1] += indptr[k]
    cursor = indptr[:-1].copy()
    order = np.empty(len(keys), np.int64)
    for position in range(len(keys)):
        key = keys[position]
        order[cursor[key]] = position
        cursor[key] += 1
    return indptr, order


def group_by(keys: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """A stable counting sort, O(len(keys) + num_keys).

    Args:
        keys: integers [E] in [0, num_keys).

    Returns:
        indptr int64 [num_keys + 1] and order int64 [E]: ``order[indptr[k]:indptr[k + 1]]`` are the positions of key k.
    """
    return _group(np.ascontiguousarray(keys), num_keys)


def by_destination(source: np.ndarray, destination: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges as (indptr, indices), sources ascending within each destination; parallel edges are kept.

    Args:
        source, destination: integers [E] in [0, num_nodes).
    """
    _, order = group_by(source, num_nodes)
    indptr, second = group_by(destination[order], num_nodes)
    index_type = np.int32 if num_nodes < 2**31 else np.int64
    return indptr, source[order[second]].astype(index_type)


def check_labels(name: str, labels: np.ndarray, split: np.ndarray, schema: Schema) -> None:
    """Labels int64 [N] and split uint8 [N] can be trained on. Raises ``DataError``."""
    if not (split == SPLITS["train"]).any():
        raise DataError(f"The dataset '{name}' has no training nodes.")
    if (labels[split > 0] == UNLABELLED).any():
        row = int(np.flatnonzero((split > 0) & (labels == UNLABELLED))[0])
        raise DataError(f"Node {row} of '{name}' is in the split but has no label.")
    if len(np.unique(schema.types_of(np.flatnonzero(split)))) > 1:
        raise DataError(f"The split of '{name}' holds nodes of more than one type.")


def write_dataset(path: Path, dataset: Dataset, made_by: dict[str, Any]) -> None:
    """Write a dataset's store.

    Raises:
        DataError: no training nodes, or a labelled split node without a label.
    """
    check_labels(dataset.name, dataset.labels, dataset.split, dataset.schema)
    with StoreWriter(path, "dataset", FORMAT_VERSION) as writer:
        for name in ("labels", "split", "indptr", "indices"):
            writer.put(name, getattr(dataset, name))
        if dataset.relation is not None:
            writer.put("relation", dataset.relation)
        for node_type, rows in enumerate(dataset.features):
            writer.put(features_name(node_type), rows)
        describe(writer, dataset.name, dataset.num_classes, dataset.schema, made_by)


def features_name(node_type: int) -> str:
    """The name of a type's features in a store."""
    return f"features/{node_type:02d}"


def describe(writer: StoreWriter, name: str, num_classes: int, schema: Schema, made_by: dict[str, Any]) -> None:
    """Put what is no per-node array into a dataset's store."""
    # As arrays too, so that the content hash covers them.
    writer.put("type_offsets", np.array(schema.offsets, np.int64))
    writer.put("relation_ends", np.array([(r.source, r.destination) for r in schema.relations], np.int64))
    writer.meta = {"name": name, "num_classes": num_classes, "schema": schema.to_json(), "made_by": made_by}


def open_dataset(path: Path, *, verify: bool) -> Dataset:
    """Open a dataset's store, arrays memory-mapped; with ``verify`` every checksum is compared first."""
    store = Store(path, "dataset", FORMAT_VERSION)
    if verify:
        store.verify()
    schema = Schema.from_json(store.meta["schema"])
    return Dataset(
        name=store.meta["name"],
        num_classes=store.meta["num_classes"],
        schema=schema,
        features=tuple(store.array(features_name(t)) for t in range(len(schema.node_types))),
        labels=store.array("labels"),
        split=store.array("split"),
        indptr=store.array("indptr"),
        indices=store.array("indices"),
        relation=store.array("relation") if "relation" in store.files else None,
        content_hash=store.content_hash,
    )
