"""Datasets through their store, as every reader makes them, and what they hold."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.graph.dataset import Dataset, Reader, open_dataset
from sargnn.graph.edge_columns import EdgeColumns


def write_and_read(reader: Reader, buffer_bytes: int = 10**9) -> Dataset:
    """What a reader writes, read back into memory."""
    with tempfile.TemporaryDirectory() as folder:
        reader.write(Path(folder) / "store", buffer_bytes)
        assert [path.name for path in Path(folder).iterdir()] == ["store"]
        found = open_dataset(Path(folder) / "store", verify=True)
        arrays: Any = {name: np.array(getattr(found, name)) for name in ("labels", "split", "indptr", "indices")}
        arrays["relation"] = None if found.relation is None else np.array(found.relation)
        arrays["columns"] = EdgeColumns.of({name: np.array(found.columns[name]) for name in found.columns.columns})
        return dataclasses.replace(found, features=tuple(np.array(f) for f in found.features), **arrays)


def edges_of(dataset: Dataset, relation: int) -> list[tuple[int, int]]:
    """One relation's edges, in numbers within their types."""
    assert dataset.relation is not None
    one, offsets = dataset.schema.relations[relation], dataset.schema.offsets
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    own = dataset.relation == relation
    pairs = (dataset.indices[own] - offsets[one.source], destination[own] - offsets[one.destination])
    return sorted(zip(*(end.tolist() for end in pairs), strict=True))
