"""How good written predictions are, by OGB's evaluators where these have the metric (``sargnn evaluate``).

Letters: N nodes or edges, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sargnn.comm.group import Group
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS, task_of
from sargnn.interop.ogb import accuracy, rocauc
from sargnn.tasks.base import Targets
from sargnn.tasks.kinds import LOGITS, OF_ANY_SIZE, PREDICTIONS, SMOOTHED, choose_metric, in_split, metric_name
from sargnn.tasks.metrics import as_several_labels, measure
from sargnn.tasks.nodes import LABELS

_ROWS = 1 << 16
"""Of logits that are read at once."""

Read = Callable[[str, tuple[int, ...]], np.ndarray]
"""Reads a file of predictions by its name; the array has this shape."""


@dataclass(frozen=True)
class Judged:
    """What predictions are compared with: labels [N] or [N, C] and split, uint8 [N], of ``unit``: nodes or edges."""

    dataset: str
    unit: str
    labels: np.ndarray
    split: np.ndarray
    outputs: int


def judged_of(dataset: Dataset, nodes: slice | None) -> Judged:
    """The nodes of a dataset that were predicted; None: its labelled edges were."""
    if nodes is None:
        pairs = dataset.pairs
        assert pairs is not None and pairs.labels is not None
        return Judged(dataset.name, "edges", np.asarray(pairs.labels), np.asarray(pairs.split), pairs.outputs)
    return Judged(
        dataset.name, "nodes", np.asarray(dataset.labels[nodes]), np.asarray(dataset.split[nodes]), dataset.num_classes
    )


def judge_predictions(judged: Judged, wanted: str | None, read: Read, written: Collection[str]) -> tuple[dict[str, Any], str]:
    """What ``evaluation.json`` holds, scores by split, and who has computed it, by the metric that is wanted or the first one.

    With Correct & Smooth there are scores of the model's own classes, too. ``written``: the files that there are.
    """
    labels, split, task = judged.labels, judged.split, task_of(judged.labels)
    metric, outputs = choose_metric(task, wanted, judged.outputs), (len(labels), judged.outputs)
    of_logits = metric not in ("accuracy", *OF_ANY_SIZE)
    predictions = {"predictions": read(LOGITS, outputs) if of_logits else read(PREDICTIONS, labels.shape)}
    if SMOOTHED in written and of_logits:
        predictions = {"model": predictions["predictions"], "smoothed": read(SMOOTHED, outputs)}
    elif SMOOTHED in written:
        logits = read(LOGITS, outputs)
        pieces = [logits[first : first + _ROWS].argmax(1) for first in range(0, len(logits), _ROWS)]
        predictions = {"model": np.concatenate(pieces), "smoothed": predictions["predictions"]}
    rows_of = {name: np.flatnonzero(in_split(split, name)) for name in SPLITS}
    scores = {
        what: {
            name: _score(metric, judged.dataset, labels[rows], np.asarray(predicted[rows])) if len(rows) else None
            for name, rows in rows_of.items()
        }
        for what, predicted in predictions.items()
    }
    accuracies = {"accuracy": scores} if metric == "accuracy" else {}
    counts = {name: len(rows) for name, rows in rows_of.items()}
    content = {**accuracies, "task": task, "metric": metric_name(metric), "scores": scores, judged.unit: counts}
    return content, "OGB's evaluator" if metric in ("accuracy", "rocauc") else "sargnn"


def _score(metric: str, dataset: str, labels: np.ndarray, predicted: np.ndarray) -> float | None:
    """Of classes int64 [N]; of logits [N, C], or shares, where the metric orders them; or of values [N, C]."""
    if metric == "accuracy":
        return accuracy(dataset, labels, predicted)
    if metric == "rocauc":
        scores, marks = as_several_labels(torch.from_numpy(predicted), torch.from_numpy(labels))
        return rocauc(marks.numpy(), scores.numpy())
    known = torch.from_numpy(labels)
    targets = Targets(known, {"test": torch.arange(len(labels))}, {"test": LABELS[task_of(labels)].count(known)})
    return measure(metric, torch.from_numpy(predicted), targets, Group.single())["test"]
