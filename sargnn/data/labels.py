"""What nodes are to be predicted: one class, several labels at once, or numbers. The dtype of a dataset's labels says which.

Here is also by which metrics predictions of each task are judged (``training.metrics`` computes them).

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

from sargnn.config.run import Metric, Task
from sargnn.data.schema import UNLABELLED
from sargnn.errors import ConfigError

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


METRICS: dict[Task, tuple[Metric, ...]] = {
    "classes": ("accuracy",),
    "multilabel": ("rocauc", "f1"),
    "regression": ("mse", "mae"),
}
"""What predictions of each task can be judged by; the first one where nothing is chosen."""
SMALLER_IS_BETTER: tuple[Metric, ...] = ("mse", "mae")


def choose_metric(task: Task, wanted: Metric | None) -> Metric:
    """The metric that is wanted, or the task's first one. Raises ``ConfigError`` for one of another task."""
    if wanted is not None and wanted not in METRICS[task]:
        raise ConfigError(
            f"'{wanted}' is no metric of this dataset's task, {task}.",
            given=f"metric={wanted}",
            allowed=METRICS[task],
            hint="metric=null takes the first of these",
        )
    return wanted or METRICS[task][0]


def is_better(metric: str, value: float, than: float) -> bool:
    """Whether a value of the metric is strictly better than another one."""
    return value < than if metric in SMALLER_IS_BETTER else value > than
