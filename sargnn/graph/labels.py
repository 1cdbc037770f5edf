"""What nodes are to be predicted: one class, several labels at once, or numbers. The dtype of a dataset's labels says which.

| task | labels | a node without any | outputs C |
|---|---|---|---|
| ``classes`` | int64 [N], the class | ``UNLABELLED`` | number of classes |
| ``multilabel`` | int8 [N, C], 0 or 1; -1: not known | a row of -1 | number of labels |
| ``regression`` | float32 [N, C]; nan: not known | a row of nan | number of values |

Letters: N nodes, C outputs of the model.
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from sargnn.config.run import Task
from sargnn.graph.schema import UNLABELLED

LABEL_DTYPES: dict[Task, np.dtype] = {
    "classes": np.dtype(np.int64),
    "multilabel": np.dtype(np.int8),
    "regression": np.dtype(np.float32),
}


def task_of(dtype: np.dtype) -> Task:
    """The task whose labels have this dtype. Raises ``KeyError`` where there is none."""
    return {LABEL_DTYPES[task]: task for task in get_args(Task)}[np.dtype(dtype)]


def known_entries(labels: np.ndarray) -> np.ndarray:
    """bool, of the labels' shape: which are known."""
    return np.isfinite(labels) if labels.dtype.kind == "f" else labels > UNLABELLED


def has_label(labels: np.ndarray) -> np.ndarray:
    """bool [N]: nodes of which at least one label is known."""
    known = known_entries(labels)
    return known if known.ndim == 1 else np.any(known, axis=1)


def blank_labels(num_nodes: int, like: np.ndarray) -> np.ndarray:
    """Labels of ``num_nodes`` nodes of which none is known, of the dtype and the outputs of ``like``."""
    return np.full((num_nodes, *like.shape[1:]), np.nan if like.dtype.kind == "f" else UNLABELLED, like.dtype)


def zero_labels(task: Task, num_nodes: int, num_outputs: int) -> np.ndarray:
    """Labels 0 of ``num_nodes`` nodes, where only their form counts."""
    return np.zeros((num_nodes,) if task == "classes" else (num_nodes, num_outputs), LABEL_DTYPES[task])


def random_labels(task: Task, rng: np.random.Generator, num_nodes: int, num_outputs: int) -> np.ndarray:
    """Labels that mean nothing, all known."""
    if task == "classes":
        labels = rng.integers(num_outputs, size=num_nodes)
    elif task == "multilabel":
        labels = rng.integers(2, size=(num_nodes, num_outputs))
    else:
        return rng.standard_normal((num_nodes, num_outputs)).astype(LABEL_DTYPES[task])
    return labels.astype(LABEL_DTYPES[task])
