"""Reddit's two archives: the same graph as by hand, in any buffer; what does not fit is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset
from sargnn.sources.classic.reddit import Reddit
from sargnn.sources.settings import RedditConfig
from tests.in_process import sargnn_here
from tests.sources.classic_files import write_reddit
from tests.sources.stores import write_and_read

N, F = 60, 5


def config(root: Path, **changes: Any) -> RedditConfig:
    plain: dict[str, Any] = {"root": str(root), "normalize_features": False}
    return RedditConfig("reddit", **(plain | changes))


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "feature": rng.standard_normal((N, F)).astype(np.float32),
        "node_types": np.concatenate([[1, 2, 3], rng.integers(1, 4, N - 3)]),
        "label": np.concatenate([np.arange(4), rng.integers(0, 4, N - 4)]),
        "node_ids": np.arange(N),
    }


def adjacency(seed: int = 0) -> Any:
    """Edges in any order, one twice, one self-loop."""
    rng = np.random.default_rng(seed)
    row, col = rng.integers(0, N, (2, 400))
    row, col = np.append(row, [row[0], 7]), np.append(col, [col[0], 7])
    return sparse.coo_matrix((np.ones(len(row)), (row, col)), shape=(N, N))


@pytest.mark.parametrize("buffer_bytes", [32 * 50, 10**9])
def test_equals_the_arrays(tmp_path: Path, buffer_bytes: int) -> None:
    """Each entry an edge from row to column; repeated ones stay, as in DGL's graph."""
    write_reddit(tmp_path, arrays(), adjacency())
    found, given = write_and_read(Reddit(config(tmp_path)), buffer_bytes), arrays()
    assert np.array_equal(found.features[0], given["feature"]) and np.array_equal(found.labels, given["label"])
    assert np.array_equal(found.split, given["node_types"]) and found.num_classes == 4
    counts = np.zeros((N, N), int)
    np.add.at(counts, (found.indices, np.repeat(np.arange(N), np.diff(found.indptr))), 1)
    wanted = np.zeros((N, N), int)
    np.add.at(wanted, (adjacency().row, adjacency().col), 1)
    assert np.array_equal(counts, wanted) and found.columns.weight is None


@pytest.mark.parametrize("place", ["raw", "Reddit/raw", "reddit"])
def test_folders_of_others_are_found(tmp_path: Path, place: str) -> None:
    write_reddit(tmp_path / place, arrays(), adjacency())
    assert config(tmp_path).is_here(tmp_path) and write_and_read(Reddit(config(tmp_path))).num_nodes == N


def test_forms_of_the_same(tmp_path: Path) -> None:
    """Not compressed, in Fortran's order, other integers: the same content."""
    write_reddit(tmp_path / "a", arrays(), adjacency())
    given = arrays()
    given |= {"feature": np.asfortranarray(given["feature"]), "node_types": given["node_types"].astype(np.uint8)}
    write_reddit(tmp_path / "b", given, adjacency())
    sparse.save_npz(tmp_path / "b" / "reddit_graph.npz", adjacency(), compressed=False)
    hashes = {write_and_read(Reddit(config(tmp_path / one))).content_hash for one in "ab"}
    assert len(hashes) == 1


def read_of(folder: Path, given: dict[str, np.ndarray], matrix: Any) -> Dataset:
    write_reddit(folder, given, matrix)
    return write_and_read(Reddit(config(folder)))


def wide(matrix: Any) -> Any:
    return sparse.coo_matrix((matrix.data, (matrix.row, matrix.col)), shape=(N, N + 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"feature": None}, ["reddit_data.npz", "no array 'feature'"]),
        ({"label": np.zeros(N - 1, int)}, ["reddit_data.npz", "'label'", f"[{N - 1}]", f"[{N}]"]),
        ({"node_types": np.zeros((N, 2), int)}, ["'node_types'", f"[{N}, 2]"]),
        ({"node_types": np.full(N, 4)}, ["'node_types'", "node 0", "4"]),
        ({"feature": np.full((N, F), np.inf)}, ["reddit_data.npz: feature", "finite in row 1"]),
        ({"label": np.full(N, -3)}, ["'label'", "not a class", "-3"]),
        ({"feature": np.zeros(N)}, ["'feature'", f"[{N}]"]),
        ({"label": np.array([{}] * N)}, ["'label'", "Python objects"]),
    ],
)
def test_wrong_arrays(tmp_path: Path, change: dict[str, Any], words: list[str]) -> None:
    given = {name: value for name, value in (arrays() | change).items() if value is not None}
    with pytest.raises(DataError) as caught:
        read_of(tmp_path, given, adjacency())
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_wrong_matrices(tmp_path: Path) -> None:
    for matrix, words in (
        (adjacency().tocsr(), "(?s)another format.*csr.*coo"),
        (wide(adjacency()), f"(?s)a row and a column.*{N + 1}"),
    ):
        with pytest.raises(DataError, match=words):
            read_of(tmp_path, arrays(), matrix)
    write_reddit(tmp_path, arrays(), adjacency())
    path = tmp_path / "reddit_graph.npz"
    held = dict(np.load(path))
    for name, value, words in (("row", N, "not exist in row 13"), ("col", -1, "not exist in row 13")):
        wrong = held[name].copy()
        wrong[12] = value
        np.savez(path, **(held | {name: wrong}))
        with pytest.raises(DataError, match=f"reddit_graph.npz.*{words}"):
            write_and_read(Reddit(config(tmp_path)))
    np.savez(path, **(held | {"col": held["col"][:-1]}))
    with pytest.raises(DataError, match="does not hold 'col'"):
        write_and_read(Reddit(config(tmp_path)))


@pytest.mark.parametrize("name", ["reddit_data.npz", "reddit_graph.npz"])
def test_damage(tmp_path: Path, name: str) -> None:
    """Cut off, or with a byte changed in the middle of what is read."""
    write_reddit(tmp_path, arrays(), adjacency())
    path = tmp_path / name
    whole = path.read_bytes()
    for content in (whole[:-100], whole[:200] + bytes([whole[200] ^ 255]) + whole[201:], b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match=name):
            write_and_read(Reddit(config(tmp_path)))


def test_commands(tmp_path: Path) -> None:
    """Missing files are named; with them one command trains."""
    words = ("dataset=reddit", "dataset.root=files")
    done = sargnn_here(tmp_path, "prepare", *words)
    assert done.returncode == 1 and "reddit_data.npz" in done.stderr and "DGL" in done.stderr, done.stderr
    write_reddit(tmp_path / "files", arrays(), adjacency())
    (tmp_path / "files/reddit_graph.npz").rename(tmp_path / "graph")
    done = sargnn_here(tmp_path, "train", *words)
    assert done.returncode == 1 and "lacks reddit_graph.npz." in done.stderr, done.stderr
    (tmp_path / "graph").rename(tmp_path / "files/reddit_graph.npz")
    done = sargnn_here(tmp_path, "train", *words, "world=2", "epochs=1", "model.hidden=8", "tracking=none")
    assert done.returncode == 0 and "reddit" in done.stdout, done.stderr
