"""A dataset looked over before training: nodes, edges, labels, features and sizes, in numbers. ``remarks`` says what they mean.

Letters: N nodes, E directed edges, F features, C outputs of the model (classes, labels or values).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sargnn.config.choices import Task
from sargnn.graph.check import weight_range
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR
from sargnn.graph.examine_edges import EdgeFindings, Homophily, NodeFindings, examine_edges
from sargnn.graph.pairs import Pairs
from sargnn.graph.schema import SPLITS, has_label, known_entries, task_of
from sargnn.steps import step

HIDDEN = 256
"""Of the layer whose size is told."""
_LARGEST_PIECE_BYTES = 1 << 26
_PIECE, _ROWS = 1 << 22, 1 << 20


@dataclass(frozen=True)
class FeatureFindings:
    """The features of a type's nodes, or of all edges: F, constant columns, rows of zeros, the largest number in size.

    ``smallest_column`` and ``largest_column`` are by the largest number in size that each column holds, with that number;
    columns of zeros left out, None where there are no others.
    """

    width: int
    constant: list[int]
    zero_rows: int
    largest: float
    smallest_column: tuple[int, float] | None
    largest_column: tuple[int, float] | None


@dataclass(frozen=True)
class WeightFindings:
    """How many edges have a weight of 0, and a negative one."""

    smallest: float
    largest: float
    zeros: int
    negative: int


@dataclass(frozen=True)
class PairFindings:
    """Links or edges to predict.

    Attributes:
        split: how many, by name.
        labelled: of edges, how many labels are known, and of what task; None: they are links.
        both_ways: a link is the same as its inverse.
        negatives: of a split that has some, pairs that all of its links are measured against.
        candidates: of a split that has some, tails that each of its links is measured against.
    """

    split: dict[str, int]
    both_ways: bool
    weighted: bool
    negatives: dict[str, int]
    candidates: dict[str, int]
    labelled: tuple[int, str] | None = None


@dataclass(frozen=True)
class Sizes:
    """In bytes: features, edges, the store on disk, and one layer of ``HIDDEN`` outputs for all nodes in fp32."""

    features_bytes: int
    edges_bytes: int
    store_bytes: int
    hidden_bytes: int


@dataclass(frozen=True)
class Findings:
    """What there is to know of a dataset; nodes and features by type, edges by relation."""

    name: str
    nodes: dict[str, NodeFindings]
    edges: list[EdgeFindings]
    homophily: Homophily | None
    labels: LabelFindings
    features: dict[str, FeatureFindings]
    sizes: Sizes
    weights: WeightFindings | None = None
    edge_features: FeatureFindings | None = None
    pairs: PairFindings | None = None

    @property
    def typed(self) -> bool:
        return len(self.nodes) > 1 or len(self.edges) > 1


def examine(dataset: Dataset, store: Path, buffer_bytes: int) -> Findings:
    """Look over a dataset, in range, of a store in a folder; takes about ``buffer_bytes`` beside a few numbers per node."""
    nodes, edges, homophily = examine_edges(dataset, buffer_bytes)
    piece = min(buffer_bytes // 16, _LARGEST_PIECE_BYTES)
    names = dataset.schema.node_types
    graph = [dataset.indptr, dataset.indices, *([] if dataset.relation is None else [dataset.relation])]
    return Findings(
        name=dataset.name,
        nodes=nodes,
        edges=edges,
        homophily=homophily,
        labels=examine_labels(dataset),
        features={name: examine_features(rows, piece) for name, rows in zip(names, dataset.features, strict=True)},
        sizes=Sizes(
            features_bytes=sum(rows.nbytes for rows in dataset.features),
            edges_bytes=sum(array.nbytes for array in graph) + dataset.num_edges * dataset.columns.edge_bytes,
            store_bytes=sum(file.stat().st_size for file in store.rglob("*") if file.is_file()),
            hidden_bytes=dataset.num_nodes * HIDDEN * 4,
        ),
        weights=_examine_weights(dataset),
        edge_features=examine_features(np.asarray(dataset.columns[ATTR]), piece) if ATTR in dataset.columns else None,
        pairs=None if dataset.pairs is None else _examine_pairs(dataset.pairs),
    )


def _examine_pairs(pairs: Pairs) -> PairFindings:
    labels = None if pairs.labels is None else np.asarray(pairs.labels)
    return PairFindings(
        split={name: pairs.count(name) for name in SPLITS},
        both_ways=pairs.both_ways,
        weighted=pairs.weights is not None,
        negatives={split: len(ends) for split, ends in pairs.negatives.items()},
        candidates={split: tails.shape[1] for split, tails in pairs.candidates.items()},
        labelled=None if labels is None else (int(has_label(labels).sum()), task_of(labels)),
    )


def _examine_weights(dataset: Dataset) -> WeightFindings | None:
    weights, extremes = dataset.columns.weight, weight_range(dataset)
    if weights is None or extremes is None:
        return None
    zeros = negative = 0
    for first in range(0, len(weights), _PIECE):
        piece = np.asarray(weights[first : first + _PIECE])
        zeros, negative = zeros + int((piece == 0).sum()), negative + int((piece < 0).sum())
    return WeightFindings(*extremes, zeros, negative)


def examine_features(features: np.ndarray, piece_bytes: int) -> FeatureFindings:
    """Look at float32 [N, F], which may be mapped, in pieces."""
    count, width = features.shape
    if not features.size:
        return FeatureFindings(width, [], 0, 0.0, None, None)
    low, high, zero_rows = np.full(width, np.inf), np.full(width, -np.inf), 0
    size = max(1, piece_bytes // (4 * width))
    for first in range(0, count, size):
        step("looking at features", first, count)
        rows = np.asarray(features[first : first + size])
        np.minimum(low, rows.min(0), out=low)
        np.maximum(high, rows.max(0), out=high)
        zero_rows += int((~rows.any(1)).sum())
    scale = np.maximum(np.abs(low), np.abs(high))
    used = np.flatnonzero(scale)
    small, large = (int(used[pick(scale[used])]) if len(used) else None for pick in (np.argmin, np.argmax))
    return FeatureFindings(
        width=width,
        constant=np.flatnonzero(low == high).tolist(),
        zero_rows=zero_rows,
        largest=float(scale.max()),
        smallest_column=None if small is None else (small, float(scale[small])),
        largest_column=None if large is None else (large, float(scale[large])),
    )


@dataclass(frozen=True)
class ClassFindings:
    """Of C classes, how many nodes each has, in all, in training, in validation and test together. ``largest``: the class with
    the most training nodes, and its shares, None without such nodes.
    """

    nodes: list[int]
    training: list[int]
    evaluated: list[int]
    largest: int
    of_training: float | None
    of_test: float | None

    @property
    def without_nodes(self) -> list[int]:
        return [number for number, count in enumerate(self.nodes) if not count]

    @property
    def without_training(self) -> list[int]:
        """Classes that have nodes, none of them for training."""
        return [number for number, count in enumerate(self.nodes) if count and not self.training[number]]


@dataclass(frozen=True)
class ColumnFindings:
    """One of several labels, or one of the numbers to be predicted, among training nodes: of how many it is known, and how many
    have it (multilabel), or the numbers' mean and deviation (regression).
    """

    known: int
    positives: int | None = None
    mean: float | None = None
    deviation: float | None = None


@dataclass(frozen=True)
class LabelFindings:
    """Labels and split: nodes with a label, of several with one at least; sizes by split; of a classification its classes, of
    another task a column for each output.
    """

    task: Task
    labelled: int
    split: dict[str, int]
    classes: ClassFindings | None
    columns: list[ColumnFindings]


def examine_labels(dataset: Dataset) -> LabelFindings:
    labelled, counts = 0, np.zeros(max(SPLITS.values()) + 1, np.int64)
    for labels, split in _pieces(dataset):
        labelled += int(has_label(labels).sum())
        counts += np.bincount(split, minlength=len(counts))
    sizes = {name: int(counts[value]) for name, value in SPLITS.items()}
    if dataset.task == "classes":
        return LabelFindings(dataset.task, labelled, sizes, _examine_classes(dataset), [])
    return LabelFindings(dataset.task, labelled, sizes, None, _examine_columns(dataset))


def _pieces(dataset: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
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
