"""What holds for every dataset, whichever reader made it: labels, split and edges can be trained on.

Letters: N nodes, E directed edges, C classes, R relations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.edge_columns import FIXED_FORMS, file_of
from sargnn.graph.features import FeatureCheck
from sargnn.graph.labels import LABEL_DTYPES, has_label, task_of
from sargnn.graph.schema import SPLITS, UNLABELLED, Schema

if TYPE_CHECKING:
    from sargnn.graph.dataset import Dataset

_FEW_CLASSES = 1000
_LARGEST_VALUE = 1e15
"""Of a regression's labels: the squares of a hundred million of them still have a sum in fp32."""
_CHUNK = 1 << 22


def count_classes(labels: np.ndarray, source: str) -> int:
    """C, the largest label + 1, or of another task than classes the columns; the arguments and errors of ``check_labels``."""
    num_classes = int(labels.max(initial=UNLABELLED)) + 1 if labels.ndim == 1 else labels.shape[1]
    check_labels(labels, num_classes, source)
    return num_classes


def check_labels(labels: np.ndarray, num_classes: int, source: str, *, unit: str = "row", first: int = 1) -> None:
    """Labels of any task can be trained on: classes as ``check_classes`` says, 0, 1 or -1 of several labels, finite numbers or
    nan that have squares in fp32. Its arguments.

    Raises:
        DataError: the source and the place of the first wrong label are named.
    """
    if task_of(labels.dtype) == "classes":
        return check_classes(np.asarray(labels), num_classes, source, unit=unit, first=first)
    if not labels.shape[1]:
        raise DataError(f"'{source}' has labels of no column.", given=list(labels.shape), allowed="at least 1 column")
    size = max(1, _CHUNK // labels.shape[1])
    for start in range(0, len(labels), size):
        piece = np.asarray(labels[start : start + size])
        if piece.dtype.kind == "f":
            wrong, allowed = ~((np.abs(piece) <= _LARGEST_VALUE) | np.isnan(piece)), "-1e15 to 1e15, or nan: unknown"
        else:
            wrong, allowed = (piece < UNLABELLED) | (piece > 1), "0, 1, or -1: unknown"
        if wrong.any():
            row, column = (int(indices[0]) for indices in np.nonzero(wrong))
            raise DataError(
                f"'{source}' holds a label that is none in {unit} {first + start + row}, column {first + column}.",
                given=piece[row, column],
                allowed=allowed,
            )


def check_classes(labels: np.ndarray, num_classes: int, source: str, *, unit: str = "row", first: int = 1) -> None:
    """The labels belong to C classes, and C is no accident.

    Every class is an output of the model and a column of the logits [N, C]. So above a thousand classes at least half must
    occur: one label of a billion would otherwise ask for gigabytes.

    Args:
        labels: int64 [N], ``UNLABELLED`` where there is none.
        source: where they come from. unit, first: what a label's place is called there, and the number of the first.

    Raises:
        DataError: the source and the place of the largest label are named.
    """
    if not len(labels):
        return
    place = int(labels.argmax())
    largest = int(labels[place])
    if largest >= num_classes:
        raise DataError(
            f"'{source}' holds a label that is no class in {unit} {first + place}.",
            given=largest,
            allowed=f"0 to {num_classes - 1}",
        )
    if num_classes <= _FEW_CLASSES:
        return
    occurring = len(np.unique(labels[labels >= 0]))
    if num_classes > 2 * occurring:
        raise DataError(
            f"'{source}' names far more classes than occur; its largest label is in {unit} {first + place}.",
            given=f"label {largest}; {num_classes} classes, of which {occurring} occur",
            allowed=f"at most {_FEW_CLASSES} classes, or twice as many as occur",
            hint="number the classes from 0 without gaps",
        )


def check_split(name: str, labels: np.ndarray, split: np.ndarray, schema: Schema) -> None:
    """Labels [N] or [N, C] and split uint8 [N] can be trained on. Raises ``DataError``."""
    if not (split == SPLITS["train"]).any():
        raise DataError(f"The dataset '{name}' has no training nodes.")
    for start in range(0, len(split), _CHUNK // 16):
        piece = slice(start, start + _CHUNK // 16)
        blank = (np.asarray(split[piece]) > 0) & ~has_label(np.asarray(labels[piece]))
        if blank.any():
            raise DataError(f"Node {start + int(np.argmax(blank))} of '{name}' is in the split but has no label.")
    if len(np.unique(schema.types_of(np.flatnonzero(split)))) > 1:
        raise DataError(f"The split of '{name}' holds nodes of more than one type.")


def check_form(dataset: Dataset) -> None:
    """Shapes and dtypes are those that ``Dataset`` promises. Raises ``DataError`` naming the array."""
    n, e = dataset.schema.num_nodes, len(dataset.indices)
    if dataset.labels.dtype not in LABEL_DTYPES.values():
        raise DataError(
            f"The dataset '{dataset.name}' has labels of a dtype that says no task.",
            given=dataset.labels.dtype.name,
            allowed=[f"{dtype.name} ({task})" for task, dtype in LABEL_DTYPES.items()],
        )
    if len(dataset.features) != len(dataset.schema.node_types):
        raise DataError(f"The dataset '{dataset.name}' must have a table of features for each of its node types.")
    wanted: list[tuple[str, np.ndarray, type | np.dtype, tuple[int, ...]]] = [
        ("labels", dataset.labels, dataset.labels.dtype, (n,) if dataset.task == "classes" else (n, dataset.num_classes)),
        ("split", dataset.split, np.uint8, (n,)),
        ("indptr", dataset.indptr, np.int64, (n + 1,)),
        ("indices", dataset.indices, index_dtype(n), (e,)),
    ]
    if dataset.relation is not None:
        wanted.append(("relation", dataset.relation, np.uint8, (e,)))
    for name, column in dataset.columns.columns.items():
        form = FIXED_FORMS.get(name, column.form)
        if column.form != form or len(column) != e:
            raise DataError(
                f"The dataset '{dataset.name}' has {file_of(name)} of a wrong form.",
                given=f"{column.form.base.name} {[len(column), *column.form.shape]}",
                allowed=f"{form.base.name} {[e, *form.shape]}",
            )
    for node_type, rows in enumerate(dataset.features):
        width = rows.shape[1] if rows.ndim == 2 else 1
        wanted.append((f"features[{node_type}]", rows, np.float32, (dataset.schema.count(node_type), width)))
    for name, array, dtype, shape in wanted:
        if array.dtype != dtype or array.shape != shape:
            raise DataError(
                f"The dataset '{dataset.name}' has {name} of a wrong form.",
                given=f"{array.dtype.name} {list(array.shape)}",
                allowed=f"{np.dtype(dtype).name} {list(shape)}",
            )
    if (dataset.relation is None) != (len(dataset.schema.relations) == 1):
        raise DataError(f"The dataset '{dataset.name}' must say each edge's relation where there are several, and only there.")


def check_content(dataset: Dataset) -> None:
    """Every number of the graph, the labels and the split is in its range; one pass over the edges. Raises ``DataError``."""
    name, n = f"The dataset '{dataset.name}'", dataset.num_nodes
    indptr = np.asarray(dataset.indptr)
    if indptr[0] != 0 or indptr[-1] != dataset.num_edges or (indptr[1:] < indptr[:-1]).any():
        raise DataError(f"{name} has an indptr that does not ascend from 0 to the number of edges.")
    if not in_range(dataset.indices, 0, n):
        raise DataError(f"{name} has an edge from a node that does not exist.", allowed=f"0 to {n - 1}")
    if dataset.relation is not None and not in_range(dataset.relation, 0, len(dataset.schema.relations)):
        raise DataError(f"{name} has an edge of a relation that does not exist.")
    numbers = dataset.task != "classes" or in_range(dataset.labels, UNLABELLED, 2**31)
    if not numbers or not in_range(dataset.split, 0, max(SPLITS.values()) + 1):
        raise DataError(f"{name} has a label or a split that is none.")
    check_labels(dataset.labels, dataset.num_classes, dataset.name, unit="node", first=0)


def check_features(dataset: Dataset) -> None:
    """Every feature can be trained on; one pass over all of them. Raises ``DataError``."""
    for node_type, rows in zip(dataset.schema.node_types, dataset.features, strict=True):
        source = dataset.name if len(dataset.features) == 1 else f"{dataset.name}, {node_type}"
        check = FeatureCheck(source, unit="node", first=0)
        size = max(1, _CHUNK // max(1, rows.shape[1]))
        for start in range(0, len(rows), size):
            check.to_float32(np.asarray(rows[start : start + size]))
        check.finish()


def in_range(array: np.ndarray, low: int, high: int) -> bool:
    """All entries of a flat array, which may be mapped, lie in [low, high)."""
    for start in range(0, len(array), _CHUNK):
        piece = np.asarray(array[start : start + _CHUNK])
        if piece.min() < low or piece.max() >= high:
            return False
    return True


def index_dtype(num_nodes: int) -> np.dtype:
    """Of the sources of edges."""
    return np.dtype(np.int32 if num_nodes < 2**31 else np.int64)
