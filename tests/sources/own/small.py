"""A graph of six nodes, and its readers with the settings that an own graph has by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sargnn.sources.own.folder import arrays_reader
from sargnn.sources.own.reader import object_reader
from sargnn.sources.settings import ArraysConfig, PythonConfig
from tests.sources.own.given import Arrays

SETTINGS: dict[str, Any] = {
    "add_inverse_edges": False,
    "normalize_features": False,
    "homogenize": False,
    "split": None,
    "split_seed": 0,
}
N = 6
GRAPH: Arrays = {
    "edge_index": np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]),
    "x": np.arange(12, dtype=np.float32).reshape(N, 2),
    "y": np.array([0, 1, 0, 1, 0, -1]),
    "train_mask": np.array([1, 1, 0, 0, 0, 0], bool),
    "val_mask": np.array([0, 0, 1, 0, 0, 0], bool),
    "test_mask": np.array([0, 0, 0, 1, 1, 0], bool),
}


def changed(**values: Any) -> Arrays:
    """The graph with other arrays; None: without that one."""
    return {name: value for name, value in (GRAPH | values).items() if value is not None}


def of_object(value: Any, **changes: Any) -> Any:
    return object_reader(value, PythonConfig("python", **(SETTINGS | changes), args={}), "graph", "the graph", None)


def of_folder(root: Path, **changes: Any) -> Any:
    return arrays_reader(ArraysConfig("arrays", **(SETTINGS | changes), root=str(root)))
