"""Masks of several splits side by side, [N, k]: ``dataset.split_column`` takes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.errors import DataError
from sargnn.sources.prepare import key_of
from sargnn.sources.settings import ArraysConfig, OwnGraphConfig
from tests.sources.own import given
from tests.sources.own.small import GRAPH, SETTINGS, N, changed, of_folder, of_object

SPLITS = 3
MASKS = {name: np.stack([np.roll(GRAPH[name], k) & (GRAPH["y"] >= 0) for k in range(SPLITS)], 1) for name in given.MASKS}
MANY = changed(**MASKS)
"""The masks of column k are those of the graph, moved by k nodes."""


def split_of(reader: Any) -> np.ndarray:
    reader.labels()
    split: np.ndarray = reader.split()
    return split


def typed(arrays: given.Arrays) -> given.Arrays:
    """The nodes' arrays of one type, and edges from another one to it."""
    nodes = {name: {"a": value} for name, value in arrays.items() if name != "edge_index"}
    return nodes | {"edge_index": {("b", "to", "a"): arrays["edge_index"]}}


FORMS: dict[str, Callable[[Path, given.Arrays], Callable[..., Any]]] = {
    "a folder": lambda folder, arrays: lambda **changes: of_folder(given.save_arrays(folder, arrays), **changes),
    "an archive": lambda folder, arrays: lambda **changes: of_folder(given.write_npz(folder, arrays, np.savez), **changes),
    "a mapping": lambda folder, arrays: lambda **changes: of_object(arrays, **changes),
    "a DGLGraph": lambda folder, arrays: lambda **changes: of_object(given.as_dgl(arrays), **changes),
    "PyG's Data": lambda folder, arrays: lambda **changes: of_object(given.as_pyg(arrays), **changes),
    "networkx": lambda folder, arrays: lambda **changes: of_object(given.as_networkx(arrays), **changes),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("form", FORMS)
def test_a_column_is_taken_in_every_form(form: str, tmp_path: Path) -> None:
    make = FORMS[form](tmp_path / "given", MANY)
    for column in range(SPLITS):
        wanted = split_of(of_object(changed(**{name: mask[:, column] for name, mask in MASKS.items()})))
        assert np.array_equal(split_of(make(split_column=column)), wanted) and set(wanted) == {0, 1, 2, 3}
    with pytest.raises(DataError, match=r"train_mask.* holds 3 splits(.|\n)*dataset.split_column=0.* up to 2"):
        make()
    with pytest.raises(DataError, match=r"train_mask.* holds 3 splits(.|\n)*split_column=3(.|\n)*0 to 2"):
        make(split_column=3)


def test_a_typed_graph() -> None:
    reader = of_object(typed(MANY), split_column=1)
    wanted = split_of(of_object(changed(**{name: mask[:, 1] for name, mask in MASKS.items()})))
    assert np.array_equal(reader.read().split[:N], wanted)
    with pytest.raises(DataError, match="split_column"):
        of_object(typed(MANY))


def test_another_column_is_another_dataset() -> None:
    keys = {key_of(of_object(MANY, split_column=column).identity()) for column in range(SPLITS)}
    assert len(keys) == SPLITS
    assert "split_column" not in of_object(GRAPH).identity()  # stores from before keep their keys


def test_node_numbers_of_several_splits() -> None:
    numbers = {
        name.replace("mask", "idx"): np.array([np.flatnonzero(mask[:, k])[:1] for k in (0, 1)]).T
        for name, mask in MASKS.items()
    }
    numbers = {name: np.concatenate([value, value]) for name, value in numbers.items()}  # two rows of them
    arrays = {name: value for name, value in GRAPH.items() if name not in MASKS} | numbers
    assert np.flatnonzero(split_of(of_object(arrays, split_column=1)) == 1).tolist() == [1]
    with pytest.raises(DataError, match="train_idx.* holds 2 splits"):
        of_object(arrays)


def test_a_mask_that_all_splits_share() -> None:
    """Such as the test nodes of WikiCS."""
    arrays = MANY | {"test_mask": np.arange(N) == 4}
    assert split_of(of_object(arrays, split_column=0)).tolist() == [1, 1, 2, 0, 3, 0]


@pytest.mark.parametrize(
    ("arrays", "changes", "words"),
    [
        (GRAPH, {"split_column": 1}, r"train_mask.* holds 1 split\.(.|\n)*split_column=1(.|\n)*leave it out"),
        (MANY, {"split_column": 1, "split": [0.5, 0.2, 0.3]}, "is drawn(.|\n)*split_column=1(.|\n)*leave one out"),
        (changed(train_mask=np.zeros((N, 2, 2), bool)), {"split_column": 1}, r"train_mask.* neither a mask(.|\n)*\[6, 2, 2\]"),
    ],
)
def test_a_column_that_is_not_there(arrays: given.Arrays, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        of_object(arrays, **changes)


def test_a_drawn_split_needs_no_column() -> None:
    assert set(split_of(of_object(MANY, split=[0.5, 0.2, 0.3]))) <= {0, 1, 2, 3}


def test_settings_of_before_have_no_column() -> None:
    assert issubclass(ArraysConfig, OwnGraphConfig) and ArraysConfig("arrays", **SETTINGS, root="x").split_column is None
