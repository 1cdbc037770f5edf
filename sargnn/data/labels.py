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

from sargnn.config import Task
from sargnn.data.schema import UNLABELLED

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
