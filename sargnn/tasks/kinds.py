"""What those need to know of a task who check, list or draw its results: without torch, and without a worker's part.

Letters: N nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from sargnn.config.fields import is_among
from sargnn.config.groups import LINK_METRICS
from sargnn.config.run import Metric
from sargnn.errors import ConfigError
from sargnn.graph.schema import SPLITS
from sargnn.resolve import is_target

Scores = dict[str, float | None]
"""A metric's values by split; None for an empty one. ``val_loss`` is the loss of validation labels, where it was asked for."""
Array = TypeVar("Array")
PREDICTIONS, LOGITS, SMOOTHED, EMBEDDINGS = (f"{name}.npy" for name in ("predictions", "logits", "smoothed", "embeddings"))
"""The files of ``sargnn predict``."""
SPLIT_KEYS = {"train": "train", "val": "valid", "test": "test"}
"""A split as keys of files name it, and as ``SPLITS`` does."""


@dataclass(frozen=True)
class Kind:
    """A kind of labels, or of links.

    Attributes:
        metrics: what predictions can be judged by; the first one where nothing is chosen.
        output, outputs: what the model's only output is called, and what several are.
        why_not_smoothed: why there is no label smoothing; None: there is.
        are_shares: a node's outputs come to shares of classes, which are positive and add up to one.
    """

    metrics: tuple[Metric, ...]
    output: str
    outputs: str
    why_not_smoothed: str | None = None
    are_shares: bool = False


KINDS: dict[str, Kind] = {
    "classes": Kind(("accuracy", "rocauc", "ap", "f1_macro", "f1_weighted"), "class", "classes", are_shares=True),
    "multilabel": Kind(("rocauc", "f1", "f1_macro", "ap"), "label", "labels"),
    "regression": Kind(
        ("mse", "mae", "r2"),
        "value",
        "values",
        why_not_smoothed="Numbers have no label smoothing: it mixes a label with the other classes.",
    ),
    "links": Kind(LINK_METRICS, "number of an embedding", "numbers of an embedding"),
}
HITS = (1, 3, 10, 20, 50, 100)
"""K of ``hits@K`` that is measured without being asked for."""
_NAMES: tuple[Metric, ...] = tuple(dict.fromkeys(metric for kind in KINDS.values() for metric in kind.metrics))
METRICS: tuple[str, ...] = tuple(
    name.replace("@K", f"@{k}") for name in _NAMES for k in (HITS if name.endswith("@K") else (0,))
)
OF_ANY_SIZE: tuple[Metric, ...] = KINDS["regression"].metrics
"""Metrics whose values may be of any size; those of others are shares."""
_ERRORS = ("mse", "mae", "mape", "loss", "error", "entropy", "deviance", "nll", "perplexity", "brier")
"""How metrics of which smaller values are better are called, or how their names end."""
BY_ORDER: tuple[Metric, ...] = ("rocauc", "ap")
"""Metrics of the order in which scores put rows: of classes, where there are two."""


def choose_metric(task: str, wanted: str | None, outputs: int) -> str:
    """The metric that is wanted, a name or the target of one's own, or else the task's first one.

    Raises ``ConfigError`` for one of another task, or of two classes where ``outputs``, the number of classes, is not two.
    """
    metrics = KINDS[task].metrics
    if wanted is not None and is_target(wanted):
        if metric_name(wanted) in METRICS:
            raise ConfigError(
                "A metric of your own has a name of its own.", given=f"metric={wanted}", allowed=f"none of {', '.join(METRICS)}"
            )
        return wanted
    if wanted is not None and wanted not in metrics:
        raise ConfigError(
            f"'{wanted}' is no metric of this dataset's task, {task}.",
            given=f"metric={wanted}",
            allowed=metrics,
            hint="metric=null takes the first of these",
        )
    if wanted in BY_ORDER and task == "classes" and outputs != 2:
        raise ConfigError(
            f"'{wanted}' of classes is by the probability of the second of two, and there are not two.",
            given=f"metric={wanted}, {outputs} class{'es' * (outputs != 1)}",
            allowed="two classes",
            hint="metric=accuracy",
        )
    return wanted or metrics[0]


def hits_of(metric: str) -> list[int]:
    """K of every ``hits@K`` that is measured, that of the metric among them."""
    asked = metric.rpartition("@")[2]
    return sorted({*HITS, *([int(asked)] if asked.isdigit() else [])})


def is_metric(name: str) -> bool:
    return is_among(name, _NAMES)


def metric_name(choice: str) -> str:
    """What files and tables call a metric: of a target its NAME."""
    return choice.rpartition(":")[2]


def smaller_is_better(metric: str) -> bool:
    """Of errors, and of one's own that is called so."""
    return metric.endswith(_ERRORS)


def is_better(metric: str, value: float, than: float) -> bool:
    """Strictly."""
    return value < than if smaller_is_better(metric) else value > than


def selected(select: str, metric: str, scores: Scores) -> tuple[float | None, str]:
    """What an evaluation is selected by, ``val_metric`` or ``val_loss``, and its name for ``is_better``."""
    return (scores.get("val_loss"), "val_loss") if select == "val_loss" else (scores.get("valid"), metric)


def best_of(metric: str, *values: float) -> float:
    return min(values) if smaller_is_better(metric) else max(values)


def in_split(split: Array, name: str) -> Array:
    """bool [N], from what says of each node which split it is in (uint8 [N])."""
    return split == SPLITS[name]  # type: ignore[return-value]


def make_split(num_nodes: int, training: slice | np.ndarray, rest: str | None = None) -> np.ndarray:
    """uint8 [N]: some nodes to train on, the others in the split ``rest``, or in none."""
    split = np.full(num_nodes, 0 if rest is None else SPLITS[rest], np.uint8)
    split[training] = SPLITS["train"]
    return split


def epoch_columns(task: str, metric: str, scores: Scores) -> dict[str, Any]:
    """What a line of ``metrics.jsonl`` says of an evaluation: the metric by split; accuracies also under their own names."""
    accuracies = scores if metric == "accuracy" else {}
    columns: dict[str, Any] = {f"{key}_acc": accuracies.get(split) for key, split in SPLIT_KEYS.items()}
    columns |= {"task": task, "metric": metric}
    columns |= {f"{key}_metric": scores[split] for key, split in SPLIT_KEYS.items()}
    return columns | ({"val_loss": scores["val_loss"]} if "val_loss" in scores else {})


def summary_columns(
    task: str,
    metric: str,
    scores: Mapping[str, float | None],
    best_val: float | None,
    test_at_best_val: float | None,
    smoothed: Mapping[str, float | None],
) -> dict[str, Any]:
    """The same for ``summary.json``, with the best evaluation and that after Correct & Smooth."""
    values = {f"{key}_{{}}": scores.get(split) for key, split in SPLIT_KEYS.items()}
    values |= {"best_val_{}": best_val, "test_{}_at_best_val": test_at_best_val}
    values |= {f"{key}_{{}}_smoothed": smoothed.get(SPLIT_KEYS[key]) for key in ("val", "test")}
    columns: dict[str, Any] = {"task": task, "metric": metric}
    for name, value in values.items():
        columns[name.format("metric")] = value
        columns[name.format("acc")] = value if metric == "accuracy" else None
    return columns
