"""A dataset's labels and split looked over, in pieces.

Letters: N nodes, C outputs of the model (classes, labels or values).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sargnn.config.run import Task
from sargnn.graph.dataset import Dataset
from sargnn.graph.labels import has_label, known_entries
from sargnn.graph.schema import SPLITS

_ROWS = 1 << 20


@dataclass(frozen=True)
class ClassFindings:
    """Classes.

    Attributes:
        nodes, training: how many nodes each class has, in all and in training, C numbers.
        evaluated: the same in validation and test together.
        largest: the class with the most training nodes. of_training, of_test: its share, None without such nodes.
    """

    nodes: list[int]
    training: list[int]
    evaluated: list[int]
    largest: int
    of_training: float | None
    of_test: float | None

    @property
    def without_nodes(self) -> list[int]:
        """Classes that no node has."""
        return [number for number, count in enumerate(self.nodes) if not count]

    @property
    def without_training(self) -> list[int]:
        """Classes that have nodes, none of them for training."""
        return [number for number, count in enumerate(self.nodes) if count and not self.training[number]]


@dataclass(frozen=True)
class ColumnFindings:
    """One of several labels, or one of the numbers to be predicted, among training nodes.

    Attributes:
        known: training nodes of which it is known.
        positives: those that have it (multilabel). mean, deviation: of the numbers (regression).
    """

    known: int
    positives: int | None = None
    mean: float | None = None
    deviation: float | None = None


@dataclass(frozen=True)
class LabelFindings:
    """Labels and split.

    Attributes:
        task: what is predicted. labelled: nodes with a label; of several, with one at least. split: sizes by name.
        classes: of a classification. columns: of another task, one for each output.
    """

    task: Task
    labelled: int
    split: dict[str, int]
    classes: ClassFindings | None
    columns: list[ColumnFindings]


def examine_labels(dataset: Dataset) -> LabelFindings:
    """Look at labels and split."""
    labelled, counts = 0, np.zeros(max(SPLITS.values()) + 1, np.int64)
    for labels, split in _pieces(dataset):
        labelled += int(has_label(labels).sum())
        counts += np.bincount(split, minlength=len(counts))
    sizes = {name: int(counts[value]) for name, value in SPLITS.items()}
    if dataset.task == "classes":
        return LabelFindings(dataset.task, labelled, sizes, _examine_classes(dataset), [])
    return LabelFindings(dataset.task, labelled, sizes, None, _examine_columns(dataset))


def _pieces(dataset: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Labels and split of some nodes."""
    for first in range(0, dataset.num_nodes, _ROWS):
        rows = slice(first, first + _ROWS)
        yield np.asarray(dataset.labels[rows]), np.asarray(dataset.split[rows])


def _examine_classes(dataset: Dataset) -> ClassFindings:
    counts = np.zeros((max(SPLITS.values()) + 1, dataset.num_classes), np.int64)
    for labels, split in _pieces(dataset):
        for value in range(len(counts)):
            counts[value] += np.bincount(labels[(split == value) & (labels >= 0)], minlength=dataset.num_classes)
    training, test = counts[SPLITS["train"]], counts[SPLITS["test"]]
    largest = int(training.argmax())
    return ClassFindings(
        nodes=counts.sum(0).tolist(),
        training=training.tolist(),
        evaluated=(counts[SPLITS["valid"]] + test).tolist(),
        largest=largest,
        of_training=float(training[largest] / training.sum()) if training.any() else None,
        of_test=float(test[largest] / test.sum()) if test.any() else None,
    )


def _examine_columns(dataset: Dataset) -> list[ColumnFindings]:
    known, sums, squares = (np.zeros(dataset.num_classes, kind) for kind in (np.int64, np.float64, np.float64))

    def training() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Labels of training nodes, 0 where they are not known, and which are."""
        for labels, split in _pieces(dataset):
            rows = labels[split == SPLITS["train"]]
            there = known_entries(rows)
            yield np.where(there, rows, 0).astype(np.float64), there

    for rows, there in training():
        known += there.sum(0)
        sums += rows.sum(0)
    if dataset.task == "multilabel":
        return [ColumnFindings(int(n), positives=int(positives)) for n, positives in zip(known, sums, strict=True)]
    means = sums / np.maximum(known, 1)
    for rows, there in training():
        squares += (np.where(there, rows - means, 0) ** 2).sum(0)
    deviations = np.sqrt(squares / np.maximum(known, 1))
    figures = zip(known, means, deviations, strict=True)
    return [ColumnFindings(int(n), mean=float(m), deviation=float(d)) for n, m, d in figures]
