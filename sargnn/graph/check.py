"""What holds for every dataset, whichever reader made it: features, weights, labels, split and edges can be trained on.

Letters: N nodes, E directed edges, F features, C classes, R relations.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.edge_columns import ATTR, FIXED_FORMS, WEIGHT, EdgeColumns, attr_form, file_of
from sargnn.graph.schema import LABEL_DTYPES, SPLITS, UNLABELLED, Schema, has_label, relation_dtype, task_of

if TYPE_CHECKING:
    from sargnn.graph.dataset import Dataset

LARGEST_FEATURE = 1.8e19
"""The square of anything larger is no fp32 number, so variances and products of features, and sums of a row, are infinite."""
LARGE_FEATURE = 1e6
"""From here on one rounding of an fp32 attention score, 6e-8 of it, changes its weight by several per cent: losses depend
visibly on the order in which things are added.
"""
LARGEST_WEIGHT = 1e30
"""In size: sums of a hundred million of them are still fp32 numbers."""
LARGEST_WHOLE = 2**24
"""In size, of an edge's feature that is a whole number: single precision holds every one up to here."""
_LARGEST_LABEL = 1e15
"""Of a regression: the squares of a hundred million of them still have a sum in fp32."""
_FEW_CLASSES = 1000
_CHUNK = 1 << 22

Range = tuple[float, float]
"""The smallest and the largest weight."""


def edge_place(position: int) -> str:
    return f"edge {position} (counted from 0)"


class FeatureCheck:
    """Takes a table's rows in order, refuses what cannot be trained on, and warns at the end of what rounding will blur.

    Args:
        source: where the rows come from, for errors.
        unit: what a row is called there.
        first: the number of the first.
    """

    _what, _advice = "a feature", "Scale the columns, or use dataset.normalize_features=true."

    def __init__(self, source: str, *, unit: str = "row", first: int = 1) -> None:
        self._source, self._unit, self._row = source, unit, first
        self._largest, self._where = LARGE_FEATURE, ""

    def to_float32(self, rows: np.ndarray, *, normalize: bool = False) -> np.ndarray:
        """The next rows, float [rows, F], in fp32; with ``normalize`` each divided by its L1 norm.

        Raises ``DataError`` with place and value of a number that is not finite, or above ``LARGEST_FEATURE`` in size.
        """
        if not rows.size:
            return rows.astype(np.float32, copy=False)
        with np.errstate(invalid="ignore"):
            low, high = float(rows.min()), float(rows.max())
        if not (-LARGEST_FEATURE <= low and high <= LARGEST_FEATURE):  # also where they are nan
            row, column = divmod(_first_beyond(rows, LARGEST_FEATURE), rows.shape[1])
            what = "too large" if np.isfinite(rows[row, column]) else "not finite"
            raise DataError(
                f"'{self._source}' holds {self._what} that is {what} in {self._place(row, column)}.",
                given=str(rows[row, column]),
                allowed=f"numbers from {-LARGEST_FEATURE:g} to {LARGEST_FEATURE:g}, whose squares single precision can hold",
            )
        taken = rows.astype(np.float32, copy=False)
        if normalize:
            taken = taken / np.maximum(np.abs(taken).sum(1, keepdims=True), 1e-12)
        elif max(-low, high) > self._largest:
            flat = int(rows.argmin() if -low > high else rows.argmax())
            self._largest, self._where = max(-low, high), self._place(*divmod(flat, rows.shape[1]))
        self._row += len(rows)
        return taken

    def finish(self) -> None:
        """All rows were given: warn if any of them holds a number above ``LARGE_FEATURE`` in size."""
        if self._where:
            logging.getLogger(__name__).warning(
                f"warning: '{self._source}' holds {self._what.partition(' ')[2]}s up to {self._largest:.3g} in size "
                f"({self._where}): rounding will show in the losses. {self._advice}"
            )

    def _place(self, row: int, column: int) -> str:
        return f"{self._unit} {self._row + row}, column {column + 1}"


class EdgeFeatureCheck(FeatureCheck):
    """The same for features of edges, in the edges' order. ``place``: what an edge's place is called, from its position."""

    _what, _advice = "an edge feature", "Scale the columns."

    def __init__(self, source: str, place: Callable[[int], str] = edge_place, categories: Sequence[int] = ()) -> None:
        super().__init__(source, first=0)
        self._place_of, self._categories = place, categories

    def to_float32(self, rows: np.ndarray, *, normalize: bool = False) -> np.ndarray:
        """The next rows, numbers or bool [rows, D], in fp32: [rows, D], or wider where columns are categories.

        Raises ``DataError`` as for nodes; for a whole number above ``LARGEST_WHOLE`` in size; for what is no category.
        """
        expect_held(self._source, rows, self._place)
        first, numbers = self._row, super().to_float32(rows, normalize=normalize)
        if not any(self._categories):
            return numbers
        blocks: list[np.ndarray] = []
        for column, (count, values) in enumerate(zip(self._categories, numbers.T, strict=True)):
            wrong = (values < 0) | (values >= count) | (values != np.floor(values))
            if count and wrong.any():
                row = int(wrong.argmax())
                raise DataError(
                    f"'{self._source}' holds an edge feature that is no category, in "
                    f"{self._place_of(first + row)}, feature {column + 1}.",
                    given=str(rows[row, column]),
                    allowed=f"0 to {count - 1}, whole numbers",
                    hint="dataset.edge_categories has each column's number of categories, 0 for numbers that stay as they are",
                )
            blocks.append(values[:, None] == np.arange(count) if count else values[:, None])
        return np.concatenate(blocks, 1, dtype=np.float32)

    def _place(self, row: int, column: int) -> str:
        return f"{self._place_of(self._row + row)}, feature {column + 1}"


def expanded_width(width: int, categories: Sequence[int], source: str) -> int:
    """How many columns of edge features a store has: a column of categories becomes one for each, 1 in that of the edge's own.

    A learned linear map of them adds a learned row for each category: an embedding. They are expanded when a store is made,
    since kernels read features where they lie, mapped from there: more on the disk, and nothing more in memory.

    ``categories``: of each of the D columns their number, 0 for numbers that stay as they are; empty: no column has any. Raises
    ``DataError`` where there are not as many columns.
    """
    if categories and len(categories) != width:
        raise DataError(
            f"{source} does not have as many columns of edge features as dataset.edge_categories says.",
            given=f"{list(categories)}, {len(categories)} columns",
            allowed=f"{width} entries, the number of categories of each column, 0 for numbers"
            if width
            else "null: it has none",
        )
    return sum(count or 1 for count in categories) if categories else width


def expect_held(source: str, numbers: np.ndarray, place: Callable[[int, int], str]) -> None:
    """Raises ``DataError`` where a whole number of edge features [rows, D] is above ``LARGEST_WHOLE`` in size, with its value
    and what ``place`` calls it, from its row and column.
    """
    if numbers.dtype.kind not in "iu" or not numbers.size:
        return
    if numbers.max() > LARGEST_WHOLE or numbers.min() < -LARGEST_WHOLE:
        row, column = divmod(_first_beyond(numbers, LARGEST_WHOLE), numbers.shape[1])
        raise DataError(
            f"'{source}' holds an edge feature that single precision cannot hold, in {place(row, column)}.",
            given=str(numbers[row, column]),
            allowed=f"whole numbers from {-LARGEST_WHOLE} to {LARGEST_WHOLE}",
            hint="of times subtract the first, of ids number those that occur; fractions are rounded",
        )


class WeightCheck:
    """Takes the weights of edges in their order, refuses what no weight can be, and remembers the range."""

    def __init__(self, source: str, place: Callable[[int], str] = edge_place) -> None:
        self._source, self._place = source, place
        self._edge = 0
        self._low, self._high = np.inf, -np.inf

    def to_float32(self, weights: np.ndarray) -> np.ndarray:
        """The next weights, numbers or bool [E], in fp32.

        Raises ``DataError`` for one that is not finite, or above ``LARGEST_WEIGHT`` in size, with its place and value.
        """
        if not len(weights):
            return weights.astype(np.float32)
        low, high = float(weights.min()), float(weights.max())
        if not (-LARGEST_WEIGHT <= low and high <= LARGEST_WEIGHT):  # also where they are nan
            row = _first_beyond(weights, LARGEST_WEIGHT)
            what = "too large" if np.isfinite(np.float64(weights[row])) else "not finite"
            raise DataError(
                f"{self._source} holds an edge weight that is {what}, of {self._place(self._edge + row)}.",
                given=str(weights[row]),
                allowed=f"numbers from {-LARGEST_WEIGHT:g} to {LARGEST_WEIGHT:g}",
                hint="leave such edges out, or give them a weight; 0 keeps an edge and silences it",
            )
        taken = weights.astype(np.float32, copy=False)
        self._low, self._high = min(self._low, float(taken.min())), max(self._high, float(taken.max()))
        self._edge += len(weights)
        return taken

    @property
    def range(self) -> Range:
        """Of all weights so far; 0 to 0 where there was none."""
        return (self._low, self._high) if self._edge else (0.0, 0.0)


class EdgeCheck:
    """Takes what edges carry, in the edges' order, and gives it back as a store has it: weights and features in fp32."""

    def __init__(
        self, weights: str, features: str, place: Callable[[int], str] = edge_place, categories: Sequence[int] = ()
    ) -> None:
        self._weights, self._features = WeightCheck(weights, place), EdgeFeatureCheck(features, place, categories)

    def checked(self, columns: EdgeColumns) -> EdgeColumns:
        """The next edges' columns. Raises ``DataError`` for what cannot be trained on; its place and value are named."""
        if (weights := columns.weight) is not None:
            columns = columns.put(WEIGHT, self._weights.to_float32(weights))
        if ATTR in columns:
            columns = columns.put(ATTR, self._features.to_float32(np.asarray(columns[ATTR])))
        return columns

    def finish(self) -> Range:
        """All edges were given: the range of their weights. Warns as ``FeatureCheck``."""
        self._features.finish()
        return self._weights.range


def check_widths(title: str, widths: Mapping[str, int]) -> None:
    """Raises ``DataError`` where relations' edges that have features, D by relation, have not as many."""
    if len(set(widths.values())) > 1:
        raise DataError(
            f"{title} has edge features of different widths, and one table holds those of all relations.",
            given=", ".join(f"{relation}: {width}" for relation, width in widths.items()),
            allowed="as many columns in every relation that has some",
            hint="fill up with columns of zeros; relations without features get zeros",
        )


def _first_beyond(numbers: np.ndarray, largest: float) -> int:
    """Where the first number stands, in flat order, that is above ``largest`` in size or nan."""
    wide = numbers.astype(np.float64, copy=False)
    return int((~((wide >= -largest) & (wide <= largest))).argmax())


def check_weights(dataset: Dataset) -> Range | None:
    """The range of a dataset's weights, which can all be used, in one pass; None without weights. Raises ``DataError``."""
    weights = dataset.columns.weight
    if weights is None:
        return None
    check = WeightCheck(f"The dataset '{dataset.name}'")
    for _, piece in _pieces(weights):
        check.to_float32(piece)
    return check.range


def weight_range(dataset: Dataset) -> Range | None:
    """As the store says, else found by reading them. None without weights."""
    if WEIGHT in dataset.columns and dataset.stored_weights is not None:
        return dataset.stored_weights
    return check_weights(dataset)


def range_to_json(weights: Range) -> dict[str, Any]:
    return {"smallest": weights[0], "largest": weights[1]}


def range_from_json(content: Any) -> Range:
    """Raises ``TypeError``, ``KeyError`` or ``ValueError`` for something else."""
    low, high = content["smallest"], content["largest"]
    if type(low) is not float or type(high) is not float or not low <= high:
        raise TypeError("no range of numbers")
    return low, high


def count_classes(labels: np.ndarray, source: str) -> int:
    """C, the largest label + 1, or of another task the columns; 1 where there is no label. Errors of ``check_labels``."""
    num_classes = max(int(labels.max(initial=UNLABELLED)) + 1, 1) if labels.ndim == 1 else labels.shape[1]
    check_labels(labels, num_classes, source)
    return num_classes


def check_labels(labels: np.ndarray, num_classes: int, source: str, *, unit: str = "row", first: int = 1) -> None:
    """Check labels: classes by ``check_classes``, several to be 0, 1 or -1, a regression's to be nan or to have fp32 squares.

    Raises ``DataError`` with the source and the place of the first wrong label: ``unit`` and its number, counted from
    ``first``.
    """
    if task_of(labels) == "classes":
        return check_classes(np.asarray(labels), num_classes, source, unit=unit, first=first)
    if not labels.shape[1]:
        raise DataError(f"'{source}' has labels of no column.", given=list(labels.shape), allowed="at least 1 column")
    for start, piece in _pieces(labels):
        if piece.dtype.kind == "f":
            wrong, allowed = ~((np.abs(piece) <= _LARGEST_LABEL) | np.isnan(piece)), "-1e15 to 1e15, or nan: unknown"
        else:
            wrong, allowed = (piece < UNLABELLED) | (piece > 1), "0, 1, or -1: unknown"
        if wrong.any():
            row, column = (int(indices[0]) for indices in np.nonzero(wrong))
            raise DataError(
                f"'{source}' holds a label that is none in {unit} {first + start + row}, column {first + column}.",
                given=piece[row, column],
                allowed=allowed,
            )


def check_classes(labels: np.ndarray, num_classes: int, source: str, *, unit: str, first: int) -> None:
    """The labels, int64 [N], belong to C classes, and C is no accident.

    Every class is an output of the model and a column of the logits [N, C]. So above a thousand classes at least half must
    occur: one label of a billion would otherwise ask for gigabytes. Arguments and errors are those of ``check_labels``.
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


def check_split(name: str, labels: np.ndarray, split: np.ndarray, schema: Schema, *, is_trained_on: bool = True) -> None:
    """Labels [N] or [N, C] and split uint8 [N] can be trained on, or there are none at all. Raises ``DataError``."""
    if is_trained_on and not (split == SPLITS["train"]).any():
        if not split.any() and not any(has_label(np.asarray(piece)).any() for _, piece in _pieces(labels)):
            return
        raise DataError(f"The dataset '{name}' has no training nodes.")
    for start in range(0, len(split), _CHUNK // 16):
        piece = slice(start, start + _CHUNK // 16)
        blank = (np.asarray(split[piece]) > 0) & ~has_label(np.asarray(labels[piece]))
        if blank.any():
            raise DataError(f"Node {start + int(np.argmax(blank))} of '{name}' is in the split but has no label.")
    if schema.typed and len(np.unique(schema.types_of(np.flatnonzero(split)))) > 1:
        raise DataError(f"The split of '{name}' holds nodes of more than one type.")


def check_form(dataset: Dataset) -> None:
    """Shapes and dtypes are those that ``Dataset`` promises. Raises ``DataError`` naming the array."""
    n, e, title = dataset.schema.num_nodes, len(dataset.indices), f"The dataset '{dataset.name}'"
    if dataset.labels.dtype not in LABEL_DTYPES.values():
        raise DataError(
            f"{title} has labels of a dtype that says no task.",
            given=dataset.labels.dtype.name,
            allowed=[f"{dtype.name} ({task})" for task, dtype in LABEL_DTYPES.items()],
        )
    if len(dataset.features) != len(dataset.schema.node_types):
        raise DataError(f"{title} must have a table of features for each of its node types.")
    wanted: list[tuple[str, np.ndarray, type | np.dtype, tuple[int, ...]]] = [
        ("labels", dataset.labels, dataset.labels.dtype, (n,) if dataset.task == "classes" else (n, dataset.num_classes)),
        ("split", dataset.split, np.uint8, (n,)),
        ("indptr", dataset.indptr, np.int64, (n + 1,)),
        ("indices", dataset.indices, index_dtype(n), (e,)),
    ]
    if dataset.relation is not None:
        wanted.append(("relation", dataset.relation, relation_dtype(len(dataset.schema.relations)), (e,)))
    for name, column in dataset.columns.columns.items():
        form = FIXED_FORMS.get(name, column.form)
        if name == ATTR:
            form = attr_form(column.form.shape[0] if len(column.form.shape) == 1 else 1)
        if column.form != form or len(column) != e:
            raise DataError(
                f"{title} has {file_of(name)} of a wrong form.",
                given=f"{column.form.base.name} {[len(column), *column.form.shape]}",
                allowed=f"{form.base.name} {[e, *form.shape]}",
            )
    for node_type, rows in enumerate(dataset.features):
        width = rows.shape[1] if rows.ndim == 2 else 1
        wanted.append((f"features[{node_type}]", rows, np.float32, (dataset.schema.count(node_type), width)))
    for name, array, dtype, shape in wanted:
        if array.dtype != dtype or array.shape != shape:
            raise DataError(
                f"{title} has {name} of a wrong form.",
                given=f"{array.dtype.name} {list(array.shape)}",
                allowed=f"{np.dtype(dtype).name} {list(shape)}",
            )
    if (dataset.relation is None) != (len(dataset.schema.relations) == 1):
        raise DataError(f"{title} must say each edge's relation where there are several, and only there.")


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
    """Every feature, of edges too, can be trained on; one pass over all of them. Raises ``DataError``."""
    if ATTR in dataset.columns:
        of_edges, numbers = EdgeFeatureCheck(dataset.name), np.asarray(dataset.columns[ATTR])
        for _, piece in _pieces(numbers):
            of_edges.to_float32(piece)
        of_edges.finish()
    for node_type, rows in zip(dataset.schema.node_types, dataset.features, strict=True):
        source = dataset.name if len(dataset.features) == 1 else f"{dataset.name}, {node_type}"
        check = FeatureCheck(source, unit="node", first=0)
        for _, piece in _pieces(rows):
            check.to_float32(piece)
        check.finish()


def in_range(array: np.ndarray, low: int, high: int) -> bool:
    """Whether all entries of a flat array, which may be mapped, lie in [low, high)."""
    return all(piece.min() >= low and piece.max() < high for _, piece in _pieces(array))


def all_finite(numbers: np.ndarray) -> bool:
    """Of flat floats, which may be mapped."""
    return all(bool(np.isfinite(piece).all()) for _, piece in _pieces(numbers))


def _pieces(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Rows of an array, which may be mapped, some million numbers at a time, each time with the number of the first row."""
    size = max(1, _CHUNK // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), size):
        yield start, np.asarray(array[start : start + size])


def index_dtype(num_nodes: int) -> np.dtype:
    """Of the sources of edges."""
    return np.dtype(np.int32 if num_nodes < 2**31 else np.int64)
