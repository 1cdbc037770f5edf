"""The ``.npz`` files of the heterophilous benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.errors import DataError
from tests.sources.own.small import of_folder

N, SPLITS = 5, 2
FILE: dict[str, Any] = {
    "node_features": np.arange(10, dtype=np.float32).reshape(N, 2),
    "node_labels": np.array([0, 1, 0, 1, 0]),
    "edges": np.array([[3, 1], [0, 1], [2, 2], [1, 3], [0, 1], [4, 0]]),  # one in both directions, one twice, a self-loop
    "train_masks": np.array([[1, 1, 0, 0, 0], [0, 0, 1, 1, 0]], bool),
    "val_masks": np.array([[0, 0, 1, 0, 0], [0, 0, 0, 0, 1]], bool),
    "test_masks": np.array([[0, 0, 0, 1, 0], [1, 0, 0, 0, 0]], bool),
}


def reader_of(folder: Path, changes: dict[str, Any] | None = None, **settings: Any) -> Any:
    """None: without that array."""
    path = folder / "made.npz"
    np.savez(path, **{name: value for name, value in (FILE | (changes or {})).items() if value is not None})
    return of_folder(path, **settings)


def test_both_directions_each_once_and_a_row_of_the_masks(tmp_path: Path) -> None:
    for column, split in ((0, [1, 1, 2, 3, 0]), (1, [3, 0, 1, 1, 2])):
        reader = reader_of(tmp_path, split_column=column)
        pairs = np.concatenate([np.stack(piece[:2], 1) for piece in reader.edges(4)])
        assert sorted(map(tuple, pairs.tolist())) == [(0, 1), (0, 4), (1, 0), (1, 3), (2, 2), (3, 1), (4, 0)]
        assert np.array_equal(np.concatenate([*reader.features(2)]), FILE["node_features"])
        assert reader.labels().tolist() == FILE["node_labels"].tolist() and reader.split().tolist() == split


@pytest.mark.parametrize(
    ("changes", "settings", "words"),
    [
        ({}, {}, r"train_masks' holds 2 splits(.|\n)*dataset.split_column=0"),
        ({}, {"split_column": 2}, r"train_masks' has no such column: it holds 2 splits"),
        ({}, {"split_column": 0, "add_inverse_edges": True}, "read in both directions(.|\n)*add_inverse_edges=false"),
        ({"edges": FILE["edges"].T}, {"split_column": 0}, r"edges' must have two columns(.|\n)*\[2, 6\]"),
        ({"edges": FILE["edges"] / 2}, {"split_column": 0}, "edges' does not hold whole numbers"),
        ({"node_labels": None}, {"split_column": 0}, r"lacks y.npy"),
        ({"val_masks": np.zeros((2, 4), bool)}, {"split_column": 0}, r"val_masks' has 2 rows"),
    ],
)
def test_mistakes(changes: dict[str, Any], settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        reader_of(tmp_path, changes, **settings)


def test_a_node_that_is_not_there_is_named_by_its_row_in_the_file(tmp_path: Path) -> None:
    edges = FILE["edges"].copy()
    edges[3, 0] = 5
    with pytest.raises(DataError, match=r"that does not exist, in edge 3 \(counted from 0\)(.|\n)*0 to 4"):
        list(reader_of(tmp_path, {"edges": edges}, split_column=0).edges(10))


def test_minesweeper(minesweeper: Path) -> None:
    reader = of_folder(minesweeper, split_column=9)
    assert reader.num_nodes == 10_000 and reader.num_rows == 2 * 39_402 and reader.num_features == 7
    reader.labels()
    assert np.bincount(reader.split()).tolist() == [0, 5000, 2500, 2500]
