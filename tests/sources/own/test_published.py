"""Benchmark sets in the files in which they are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

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


def edges_of(reader: Any) -> list[tuple[int, int]]:
    pairs = np.concatenate([np.stack(piece[:2], 1) for piece in reader.edges(4)])
    return sorted(map(tuple, pairs.tolist()))


def test_both_directions_each_once_and_a_row_of_the_masks(tmp_path: Path) -> None:
    for column, split in ((0, [1, 1, 2, 3, 0]), (1, [3, 0, 1, 1, 2])):
        reader = reader_of(tmp_path, split_column=column)
        assert edges_of(reader) == [(0, 1), (0, 4), (1, 0), (1, 3), (2, 2), (3, 1), (4, 0)]
        assert np.array_equal(np.concatenate([*reader.features(2)]), FILE["node_features"])
        assert reader.labels().tolist() == FILE["node_labels"].tolist() and reader.split().tolist() == split


@pytest.mark.parametrize(
    ("changes", "settings", "words"),
    [
        ({}, {}, r"train_masks' holds 2 splits(.|\n)*dataset.split_column=0"),
        ({}, {"split_column": 2}, r"train_masks'.*2 splits"),
        ({}, {"split_column": 0, "add_inverse_edges": True}, "both directions(.|\n)*add_inverse_edges=false"),
        ({"edges": FILE["edges"].T}, {"split_column": 0}, r"edges' must have two columns(.|\n)*\[2, 6\]"),
        ({"edges": FILE["edges"] / 2}, {"split_column": 0}, "edges' .*whole numbers"),
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
    with pytest.raises(DataError, match=r"in edge 3 \(counted from 0\)(.|\n)*0 to 4"):
        list(reader_of(tmp_path, {"edges": edges}, split_column=0).edges(10))


def test_minesweeper(minesweeper: Path) -> None:
    reader = of_folder(minesweeper, split_column=9)
    assert reader.num_nodes == 10_000 and reader.num_rows == 2 * 39_402 and reader.num_features == 7
    reader.labels()
    assert np.bincount(reader.split()).tolist() == [0, 5000, 2500, 2500]


SPARSE: dict[str, Any] = {
    "adj_data": np.ones(5, np.float32),
    "adj_indices": np.array([1, 1, 2, 0, 3], np.int32),  # 0 -> 1, a loop at 1, 1 -> 2, 2 -> 0, 3 -> 3
    "adj_indptr": np.array([0, 1, 3, 4, 5], np.int32),
    "adj_shape": np.array([4, 4]),
    "attr_data": np.array([2.0, -1.0, 0.5], np.float32),
    "attr_indices": np.array([0, 2, 2], np.int32),
    "attr_indptr": np.array([0, 1, 2, 2, 3], np.int32),
    "attr_shape": np.array([4, 3]),
    "labels": np.array([0, 1, 1, 0]),
    "node_names": np.array(["a", "b", "c", "d"], object),
}


def sparse_file(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    np.savez(folder / "amazon_made.npz", **(SPARSE | (changes or {})))
    return folder / "amazon_made.npz"


def test_a_file_with_sparse_matrices_is_read_as_pyg_reads_it(tmp_path: Path) -> None:
    reader = of_folder(sparse_file(tmp_path), split=[0.5, 0.25, 0.25])
    assert edges_of(reader) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    features = np.concatenate([*reader.features(3)])
    assert features.tolist() == [[1, 0, 0], [0, 0, -1], [0, 0, 0], [0, 0, 1]] and reader.labels().tolist() == [0, 1, 1, 0]
    assert reader.name == "amazon_made" and (reader.split() > 0).all()


def test_masks_beside_sparse_matrices_are_the_split(tmp_path: Path) -> None:
    masks = {"train_mask": [1, 0, 0, 0], "val_mask": [0, 1, 0, 0], "test_mask": [0, 0, 1, 1]}
    reader = of_folder(sparse_file(tmp_path, {name: np.array(mask, bool) for name, mask in masks.items()}))
    reader.labels()
    assert reader.split().tolist() == [1, 2, 3, 3]


def test_files_of_pyg_s_amazon(tmp_path: Path) -> None:
    """A larger graph, beside PyG's own reading of the same file."""
    io = pytest.importorskip("torch_geometric.io")
    random = np.random.default_rng(0)
    matrices = {
        "adj": sparse.random_array((60, 60), density=0.05, format="csr", rng=random),
        "attr": sparse.random_array((60, 12), density=0.2, format="csr", rng=random, dtype=np.float32),
    }
    arrays = {
        f"{name}_{part}": getattr(matrix, part)
        for name, matrix in matrices.items()
        for part in ("data", "indices", "indptr", "shape")
    }
    path = sparse_file(tmp_path, arrays | {"labels": random.integers(0, 3, 60)})
    data, reader = io.read_npz(str(path)), of_folder(path, split=[0.6, 0.2, 0.2])
    assert edges_of(reader) == sorted(map(tuple, data.edge_index.T.tolist()))
    assert np.array_equal(np.concatenate([*reader.features(7)]), data.x) and np.array_equal(reader.labels(), data.y)


@pytest.mark.parametrize(
    ("changes", "settings", "words"),
    [
        ({}, {}, r"lacks train_mask.npy(.|\n)*dataset.split"),
        ({}, {"split": [0.5, 0.5, 0], "add_inverse_edges": True}, "both directions"),
        ({"adj_indptr": np.array([0, 1, 3, 4, 9])}, {"split": [1, 0, 0]}, r"damaged: 'adj_indptr'(.|\n)*\[4, 4\], 5 entries"),
        ({"attr_indices": np.array([0, 2, 3])}, {"split": [1, 0, 0]}, "damaged: 'attr_indptr'"),
        ({"attr_data": np.array([1, np.nan, 1])}, {"split": [1, 0, 0]}, "'attr_data' .*finite"),
        ({"attr_data": np.array(["a", "b", "c"])}, {"split": [1, 0, 0]}, "'attr_data' .*finite"),
        ({"adj_shape": np.array([4, 9])}, {"split": [1, 0, 0]}, r"adj_shape(.|\n)*\[4, 9\](.|\n)*\[4, 4\]"),
        ({"labels": np.array([0, 1])}, {"split": [1, 0, 0]}, "labels' has 2 rows"),
    ],
)
def test_mistakes_in_sparse_matrices(changes: dict[str, Any], settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        of_folder(sparse_file(tmp_path, changes), **settings)


WIKICS: dict[str, Any] = {
    "features": [[0.5, -1.0], [0.0, 2.0], [1.0, 1.0], [0.25, 0.0], [3.0, 1.0]],
    "labels": [0, 1, 0, 1, 0],
    "links": [[1, 2], [0], [2], [], [3]],
    "train_masks": [[True, False, False, False, False], [False, True, False, False, False]],
    "val_masks": [[False, True, False, False, False], [True, False, False, False, False]],
    "stopping_masks": [[False, False, True, False, False]] * 2,
    "test_mask": [False, False, False, True, True],
}


def wikics_file(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    path = folder / "raw" / "data.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: value for name, value in (WIKICS | (changes or {})).items() if value is not None}))
    return path


def test_wikics(tmp_path: Path) -> None:
    datasets = pytest.importorskip("torch_geometric.datasets")
    path = wikics_file(tmp_path)
    data = datasets.WikiCS(str(tmp_path), is_undirected=True)[0]
    for column, split in ((0, [1, 2, 2, 3, 3]), (1, [2, 1, 2, 3, 3])):
        reader = of_folder(path, split_column=column)
        assert np.array_equal(np.concatenate([*reader.features(2)]), data.x) and np.array_equal(reader.labels(), data.y)
        assert edges_of(reader) == sorted(map(tuple, data.edge_index.T.tolist())) and (2, 2) in edges_of(reader)
        assert reader.split().tolist() == split and reader.name == "wikics"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"links": None, "labels": None}, "data.json.* labels, links"),
        ({"links": [[1], [0], 3, [], []]}, "'links' .*node 2"),
        ({"links": [[1], ["a"], [], [], []]}, "'links' .*numbers"),
        ({"links": [[1], [7], [], [], []]}, r"source .*in edge 1 \(counted from 0\)"),
        ({"features": [[1.0], [1.0, 2.0]] * 2}, "'features' .*one length"),
        ({"train_masks": [[1, 0, 0, 0, 0]] * 2}, "'train_masks' .*true and false"),
        ({"stopping_masks": [[False] * 5]}, "'val_masks' and 'stopping_masks' .*shapes"),
        ({"labels": [0, 1]}, "labels' has 2 rows"),
    ],
)
def test_mistakes_in_wikics(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        list(of_folder(wikics_file(tmp_path, changes), split_column=0).edges(10))


def test_a_json_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    for content, words in (("{", "cannot be read"), ("[1]", "lacks a mapping")):
        path.write_text(content)
        with pytest.raises(DataError, match=words):
            of_folder(path)
