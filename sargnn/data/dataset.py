"""What a homogeneous dataset is, and its store.

Letters: N nodes, E directed edges, F features, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np

from sargnn.data.store import Store, StoreWriter
from sargnn.errors import DataError

FORMAT_VERSION = 1
UNLABELLED = -1
SPLITS = {"train": 1, "valid": 2, "test": 3}
"""Values of ``Dataset.split``; 0 is none of them."""


@dataclass(frozen=True)
class Dataset:
    """A graph with features, labels and a split. Arrays may be memory-mapped.

    Attributes:
        name: the dataset's name.
        num_classes: C.
        features: float32 [N, F].
        labels: int64 [N], ``UNLABELLED`` where there is none.
        split: uint8 [N], 0 or a value of ``SPLITS``.
        indptr: int64 [N + 1]; the in-edges of node i are ``indices[indptr[i]:indptr[i + 1]]``.
        indices: int32 [E] (int64 from 2**31 nodes on), the source of each edge, ascending within a destination.
        content_hash: 16 hex digits; empty for a dataset that is in no store.
    """

    name: str
    num_classes: int
    features: np.ndarray
    labels: np.ndarray
    split: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    content_hash: str = ""

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E, directed."""
        return len(self.indices)


class Reader(ABC):
    """Where a dataset comes from: raw files or a generator."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What decides the content, JSON-able, for the store's key."""

    @abstractmethod
    def write(self, path: Path) -> None:
        """Write the dataset's store, whose folder does not exist yet."""


class InMemoryReader(Reader):
    """A reader of datasets that fit this machine's memory."""

    @abstractmethod
    def read(self) -> Dataset:
        """The whole dataset."""

    def write(self, path: Path) -> None:
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


def write_dataset(path: Path, dataset: Dataset, made_by: dict[str, Any]) -> None:
    """Write a dataset's store.

    Raises:
        DataError: no training nodes, or a labelled split node without a label.
    """
    if not (dataset.split == SPLITS["train"]).any():
        raise DataError(f"The dataset '{dataset.name}' has no training nodes.")
    if (dataset.labels[dataset.split > 0] == UNLABELLED).any():
        row = int(np.flatnonzero((dataset.split > 0) & (dataset.labels == UNLABELLED))[0])
        raise DataError(f"Node {row} of '{dataset.name}' is in the split but has no label.")
    with StoreWriter(path, "dataset", FORMAT_VERSION) as writer:
        for name in ("features", "labels", "split", "indptr", "indices"):
            writer.put(name, getattr(dataset, name))
        writer.meta = {"name": dataset.name, "num_classes": dataset.num_classes, "made_by": made_by}


def open_dataset(path: Path, *, verify: bool) -> Dataset:
    """Open a dataset's store, arrays memory-mapped; with ``verify`` every checksum is compared first."""
    store = Store(path, "dataset", FORMAT_VERSION)
    if verify:
        store.verify()
    return Dataset(
        name=store.meta["name"],
        num_classes=store.meta["num_classes"],
        features=store.array("features"),
        labels=store.array("labels"),
        split=store.array("split"),
        indptr=store.array("indptr"),
        indices=store.array("indices"),
        content_hash=store.content_hash,
    )
