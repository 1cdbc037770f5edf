"""Labels and splits as a user gives them, in the form of a store.

Letters: N nodes, C columns of labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sargnn.config.run import Task
from sargnn.errors import DataError
from sargnn.graph.schema import LABEL_DTYPES, SPLITS, UNLABELLED
from sargnn.sources.own.given import GivenArray

if TYPE_CHECKING:
    from sargnn.sources.own.graph import Nodes

_LARGEST_CLASS = 2**31 - 1
_PIECE_NUMBERS = 1 << 20
_SETTING = {"node": "task", "edge": "dataset.task"}
"""What says of which kind labels of nodes, or of edges, are."""


def read_labels(given: GivenArray, task: Task | None, unit: str = "node") -> np.ndarray:
    """Labels as ``sargnn.graph.schema`` has them, read piece by piece.

    Args:
        given: numbers [N] or [N, C].
        task: what they are; None: classes, which is refused where they do not look like it.
        unit: what has them.

    Raises:
        DataError: they are none of the task; the array and the node are named.
    """
    if len(given.shape) not in (1, 2) or 0 in given.shape[1:]:
        raise DataError(
            f"{given.name} must have a row for each {unit}.", given=f"shape {list(given.shape)}", allowed="[N] or [N, C]"
        )
    columns, setting = given.shape[1] if len(given.shape) == 2 else 1, _SETTING[unit]
    if task in (None, "classes") and columns > 1:
        raise DataError(
            f"{given.name} holds several numbers for each {unit}, and nothing says what they are.",
            given=f"shape {list(given.shape)}",
            hint=f"{setting}=multilabel for labels 0 and 1, {setting}=regression for values; y.argmax(1) of one-hot rows",
        )
    labels = np.empty((given.shape[0], columns), LABEL_DTYPES[task or "classes"])
    first = 0
    for piece in given.pieces(max(1, _PIECE_NUMBERS // columns)):
        labels[first : first + len(piece)] = _convert(task, given, piece.reshape(len(piece), -1), first, unit)
        first += len(piece)
    return labels if task in ("multilabel", "regression") else labels[:, 0]


def _convert(task: Task | None, given: GivenArray, table: np.ndarray, first: int, unit: str) -> np.ndarray:
    """Some labels [n, C] in the dtype of their task. ``first``: the number of the first. Raises ``DataError``."""
    fractions, hint = table.dtype.kind == "f", None
    missing = np.isnan(table) if fractions else np.zeros(table.shape, bool)
    known = np.where(missing, UNLABELLED, table)
    if task == "regression":
        known, wrong = table, np.isinf(table).any(1) if fractions else np.zeros(len(table), bool)
        what, allowed = "a value that is not finite", "numbers; nan where one is not known"
    elif task == "multilabel":
        wrong = ~np.isin(known, (UNLABELLED, 0, 1)).all(1)
        what, allowed = "a label that is neither 0 nor 1", f"0, 1; {UNLABELLED} or nan where one is not known"
    else:
        whole = known == np.floor(known) if fractions else np.ones(table.shape, bool)
        wrong = (~whole | (known < UNLABELLED) | (known > _LARGEST_CLASS))[:, 0]
        hint = f"{_SETTING[unit]}=regression, if these are values" if task is None and not whole.all() else None
        what, article = "a label that is not a class", "an" if unit == "edge" else "a"
        allowed = f"whole numbers from 0 to {_LARGEST_CLASS}; {UNLABELLED} or nan for {article} {unit} without a label"
    if wrong.any():
        row = int(wrong.argmax())
        shown = ", ".join(str(label) for label in table[row][:5]) + (", ..." if table.shape[1] > 5 else "")
        raise DataError(
            f"{given.name} holds {what}, at {given.place(first + row, unit)}.", given=shown, allowed=allowed, hint=hint
        )
    return known.astype(LABEL_DTYPES[task or "classes"])


def check_split_column(nodes: Nodes, column: int | None) -> None:
    """Masks and node numbers that hold several splits side by side have the one that is asked for.

    Args:
        column: of the split, from 0; None: nothing is asked for.

    Raises:
        DataError: they have fewer, or nothing says which one; or one is asked for and none has several.
    """
    given = [of[name] for name in SPLITS for of in (nodes.masks, nodes.numbers) if name in of]
    for array in given:
        if len(array.shape) > 2:
            raise DataError(
                f"{array.name} is neither a mask nor a list of nodes.",
                given=f"shape {list(array.shape)}",
                allowed="[N], or [N, k] for k splits",
            )
    several = [array for array in given if _num_splits(array) > 1]
    if column is None and several:
        last = _num_splits(several[0]) - 1
        raise DataError(
            f"{several[0].name} holds {last + 1} splits side by side, one a column.",
            given=f"shape {list(several[0].shape)}",
            hint=f"dataset.split_column=0 takes the first; up to {last}",
        )
    if column is not None:
        for array in several or given[:1]:
            if column >= _num_splits(array):
                count = _num_splits(array)
                raise DataError(
                    f"{array.name} has no such column: it holds {count} split{'s' * (count > 1)}.",
                    given=f"dataset.split_column={column}, shape {list(array.shape)}",
                    allowed=f"0 to {count - 1}" if count > 1 else "0, or leave it out",
                )


def _num_splits(given: GivenArray) -> int:
    """How many splits a mask, or a list of node numbers, holds side by side. One row alone is one split."""
    return given.shape[1] if len(given.shape) == 2 and given.shape[0] != 1 else 1


def _of_split(given: GivenArray, column: int | None) -> np.ndarray:
    """One split's mask or node numbers, flat, in a copy that has no other split."""
    count = _num_splits(given)
    if count == 1:
        return given.whole().reshape(-1)
    assert column is not None
    pieces = given.pieces(max(1, _PIECE_NUMBERS // count))
    return np.concatenate([np.array(piece[:, column]) for piece in pieces])


def read_split(nodes: Nodes, whole: str, column: int | None = None) -> np.ndarray:
    """uint8 [N] from masks and node numbers.

    Args:
        column: of arrays that hold several splits, from 0.

    Raises:
        DataError: none is given, one has another length or other values, or two overlap; arrays and node are named.
    """
    check_split_column(nodes, column)
    if not {"train"} & {*nodes.masks, *nodes.numbers}:
        raise DataError(
            f"{whole} does not say which nodes to train on.",
            given=", ".join(sorted({*nodes.masks, *nodes.numbers})) or "neither masks nor node numbers",
            hint="'train_mask', 'val_mask', 'test_mask'; or dataset.split=[0.6,0.2,0.2] draws them",
        )
    split = np.zeros(nodes.count, np.uint8)
    owner: dict[int, str] = {}
    for name, value in SPLITS.items():
        if name in nodes.masks:
            given, rows = nodes.masks[name], _mask(nodes.masks[name], column)
        elif name in nodes.numbers:
            given, rows = nodes.numbers[name], _numbers(nodes.numbers[name], nodes.count, column)
        else:
            continue
        taken = split[rows] > 0
        if taken.any():
            row = int((np.flatnonzero(rows) if rows.dtype == bool else rows)[taken.argmax()])
            raise DataError(
                f"{owner[int(split[row])]} and {given.name} overlap.",
                given=f"node {row} (counted from 0), {int(taken.sum())} in all",
                allowed="each node in one split at most",
            )
        split[rows] = value
        owner[value] = given.name
    return split


def _mask(given: GivenArray, column: int | None) -> np.ndarray:
    flat = _of_split(given, column)
    if flat.dtype == bool:
        return flat
    wrong = ~np.isin(flat, (0, 1))
    if wrong.any():
        row = int(wrong.argmax())
        hint = "name node numbers train_idx, val_idx and test_idx" if flat.dtype.kind in "iu" else None
        raise DataError(
            f"{given.name} is no mask: node {row} (counted from 0) has a value that is neither true nor false.",
            given=flat[row],
            allowed="true or false, or 1 and 0",
            hint=hint,
        )
    return flat.astype(bool)


def _numbers(given: GivenArray, count: int, column: int | None) -> np.ndarray:
    raw = _of_split(given, column)
    if raw.dtype.kind not in "iu" and raw.size:
        hint = "name a mask train_mask, val_mask or test_mask" if raw.dtype.kind == "b" else None
        raise DataError(f"{given.name} does not hold node numbers.", given=raw.dtype.name, allowed="whole numbers", hint=hint)
    wrong = (raw < 0) | (raw >= count)
    if wrong.any():
        place = int(wrong.argmax())
        raise DataError(
            f"{given.name} names a node that does not exist, in entry {place} (counted from 0).",
            given=raw[place],
            allowed=f"0 to {count - 1}",
        )
    return np.unique(raw.astype(np.int64))


def check_fractions(fractions: Sequence[float]) -> None:
    """They are shares of training, validation and test nodes. Raises ``DataError``."""
    if len(fractions) != 3 or min(fractions) < 0 or sum(fractions) > 1 + 1e-9 or not fractions[0]:
        raise DataError(
            "'dataset.split' are no shares of training, validation and test nodes.",
            given=list(fractions),
            allowed="three numbers from 0 to 1 that add up to at most 1, the first above 0, such as [0.6,0.2,0.2]",
        )


def draw_split(labelled: np.ndarray, fractions: Sequence[float], seed: int) -> np.ndarray:
    """uint8 [N]: a draw for each node with a label, by its number, so that it does not depend on which other nodes there are.

    The shares are met as far as independent draws do.

    Args:
        labelled: bool [N].
        fractions: of training, validation and test nodes.
        seed: of the draw.

    Raises:
        DataError: too many nodes to be drawn for.
    """
    from sargnn.rng import MAX_ID, Purpose, draw_words  # which loads torch

    check_fractions(fractions)
    if len(labelled) > MAX_ID:
        raise DataError("A split cannot be drawn for so many nodes.", given=len(labelled), allowed=f"at most {MAX_ID}")
    split = np.zeros(len(labelled), np.uint8)
    ends = np.round(np.minimum(np.cumsum(fractions), 1.0) * 2.0**32)
    rows = np.flatnonzero(labelled)
    for start in range(0, len(rows), 1 << 20):
        piece = rows[start : start + (1 << 20)]
        words = draw_words(piece, seed, Purpose.SPLIT)
        number = np.searchsorted(ends, words, side="right")
        split[piece] = np.array([*SPLITS.values(), 0], np.uint8)[number]
    return split


def labelled_type(nodes: Mapping[str, Nodes], whole: str, *, for_links: bool = False) -> str:
    """The one node type that has labels. Raises ``DataError`` where there is none, or several.

    ``for_links``: none needs any; then it is the first.
    """
    labelled = [name for name, type_nodes in nodes.items() if type_nodes.labels is not None]
    if not labelled and for_links:
        return next(iter(nodes))
    if not labelled:
        raise DataError(f"{whole} has no labels.", hint="'y', a class for each node; -1 for a node without one")
    if len(labelled) > 1:
        raise DataError(f"{whole} has labels on several node types.", given=", ".join(labelled), allowed="one type")
    for name, type_nodes in nodes.items():
        if name != labelled[0] and (type_nodes.masks or type_nodes.numbers):
            given = next(iter((type_nodes.masks or type_nodes.numbers).values()))
            raise DataError(
                f"{given.name} splits nodes of type '{name}', and '{labelled[0]}' has the labels.", hint="leave it out"
            )
    return labelled[0]
