"""Planetoid's files: the graph that the field reads from them; damaged files, and pickles that would run something."""

from __future__ import annotations

import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS
from sargnn.sources.classic.pickles import load_array
from sargnn.sources.classic.planetoid import Planetoid
from sargnn.sources.ogb.named import ogb_dir
from sargnn.sources.prepare import key_of
from sargnn.sources.settings import OgbDirConfig, PlanetoidConfig
from tests.in_process import sargnn_here
from tests.sources.classic_files import Citations, dump
from tests.sources.stores import write_and_read

TRAIN, FIRST, LAST = 6, 520, 531
"""Training nodes; the first number that is free for test nodes, and the last that one has."""


def config(root: Path, name: str = "citeseer", **changes: Any) -> PlanetoidConfig:
    plain: dict[str, Any] = {"root": str(root), "normalize_features": False}
    return PlanetoidConfig(name, **(plain | changes))


def read(root: Path, name: str = "citeseer", **changes: Any) -> Dataset:
    return write_and_read(Planetoid(config(root, name, **changes)))


def citations(seed: int = 0) -> Citations:
    """Test nodes out of order, two numbers left out; an edge listed at one end only, one listed twice, a self-loop."""
    rng = np.random.default_rng(seed)
    n = LAST + 1
    features = rng.integers(0, 2, (n, 7)) * rng.random((n, 7)).round(2)
    features[[524, 529]] = 0
    classes = rng.integers(0, 3, n)
    classes[[0, 1, 2]] = [0, 1, 2]
    classes[[524, 529, 515, 526]] = -1  # left out; in no split; a test node
    lists: dict[int, list[int]] = {node: [] for node in range(n)}
    for a, b in rng.integers(0, FIRST + 4, (900, 2)).tolist():
        if a != b:
            lists[a].append(b)
            lists[b].append(a)
    lists[3].append(530)  # not listed at 530
    lists[5] += [531, 531]
    lists[531] += [5, 531]  # and a self-loop
    test = [527, 520, 531, 522, 521, 530, 523, 528, 525, 526]
    return Citations(features, classes, lists, TRAIN, FIRST, test)


def dense(graph: Citations) -> tuple[np.ndarray, np.ndarray]:
    """Adjacency matrix [N, N] and split [N], by hand."""
    n = len(graph.features)
    matrix = np.zeros((n, n), bool)
    for node, those in graph.lists.items():
        for other in those:
            matrix[node, other] = matrix[other, node] = node != other
    split = np.zeros(n, np.uint8)
    split[: graph.train] = SPLITS["train"]
    split[graph.train : graph.train + 500] = SPLITS["valid"]
    split[graph.test] = SPLITS["test"]
    return matrix, split


@pytest.mark.parametrize("python", [2, 3])
def test_equals_a_dense_graph(tmp_path: Path, python: int) -> None:
    """Nodes in the order of their numbers; those that are left out have neither features nor label nor split."""
    graph = citations()
    graph.write(tmp_path, "citeseer", python=python)
    found = read(tmp_path)
    matrix, split = dense(graph)
    own = np.zeros_like(matrix)
    own[np.repeat(np.arange(found.num_nodes), np.diff(found.indptr)), found.indices] = True
    assert np.array_equal(own, matrix) and found.num_edges == matrix.sum()  # no edge twice
    assert np.array_equal(found.features[0], graph.features.astype(np.float32))
    assert np.array_equal(found.split, split) and not found.split[[524, 529, 515]].any()
    classes = graph.classes.copy()
    classes[526] = 0  # a row of zeros in a split
    assert np.array_equal(found.labels, classes) and found.num_classes == 3 and found.name == "citeseer"


def test_rows_are_normalised_where_that_is_asked_for(tmp_path: Path) -> None:
    graph = citations()
    graph.write(tmp_path, "citeseer")
    sums = graph.features.sum(1, keepdims=True)
    wanted = np.divide(graph.features, sums, out=np.zeros_like(graph.features), where=sums > 0)
    assert np.allclose(read(tmp_path, normalize_features=True).features[0], wanted, atol=1e-6)


@pytest.mark.parametrize("place", ["", "raw", "CiteSeer/raw", "citeseer", "Citeseer"])
def test_folders_of_others_are_found(tmp_path: Path, place: str) -> None:
    citations().write(tmp_path / place, "citeseer")
    settings = config(tmp_path)
    settings.check_files()
    assert settings.is_here(tmp_path) and read(tmp_path).num_nodes == LAST + 1


def test_the_store_goes_by_the_files_content(tmp_path: Path) -> None:
    """A copy elsewhere holds the same graph; another graph, or another normalisation, has another key."""
    citations().write(tmp_path / "a", "citeseer")
    citations(seed=1).write(tmp_path / "b", "citeseer")
    plain, other = (Planetoid(config(tmp_path / one)) for one in "ab")
    keys = {key_of(one.identity()) for one in (plain, other, Planetoid(config(tmp_path / "a", normalize_features=True)))}
    assert len(keys) == 3
    citations().write(tmp_path / "b", "citeseer", python=3)
    assert read(tmp_path / "a").content_hash == read(tmp_path / "b").content_hash


def edges_of(dataset: Dataset) -> np.ndarray:
    return np.stack([np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr)), dataset.indices])


def test_the_real_cora_comes_back(cora: Path, tmp_path: Path) -> None:
    """From OGB's layout into Planetoid's files, and from them: the same graph, labels and public split."""
    real = write_and_read(ogb_dir(OgbDirConfig("ogb_dir", str(cora), add_inverse_edges=False, normalize_features=False)))
    test = np.flatnonzero(real.split == SPLITS["test"])
    train = int((real.split == SPLITS["train"]).sum())
    assert (train, test.min(), test.max()) == (140, 1708, 2707) and (real.split[:train] == SPLITS["train"]).all()
    lists: dict[int, list[int]] = {node: [] for node in range(real.num_nodes)}
    for node, other in edges_of(real).T.tolist():
        lists[node].append(other)
    order = np.random.default_rng(0).permutation(test).tolist()
    Citations(real.features[0], real.labels, lists, train, 1708, order).write(tmp_path / "Cora" / "raw", "cora")
    found = read(tmp_path, "cora")
    assert found.num_edges == 10_556 and np.array_equal(edges_of(found), edges_of(real))
    for name in ("labels", "split"):
        assert np.array_equal(getattr(found, name), getattr(real, name))
    assert np.array_equal(found.features[0], real.features[0]) and found.num_classes == real.num_classes == 7


class _Runs:
    """A pickle of it runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("part", ["allx", "y", "graph"])
def test_a_pickle_that_runs_something_is_refused(tmp_path: Path, part: str) -> None:
    """Also one deep in what a file may hold; the file is named, and nothing was run."""
    citations().write(tmp_path, "citeseer")
    there = tmp_path / "was_run"
    for content in (_Runs(f"touch {there}"), {0: [_Runs(f"touch {there}")]}):
        (tmp_path / f"ind.citeseer.{part}").write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(DataError) as caught:
            read(tmp_path)
        assert f"ind.citeseer.{part}'" in str(caught.value) and "system" in str(caught.value)
        assert not there.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(S'1'\ntR.", b"cnumpy\nload\n(S'x'\ntR.", b"cscipy.sparse\nload_npz\n.", b"cos\nsystem\n.",
        b"csargnn.data.classic.pickles\n_load\n.", b"cnumpy\nndarray.tofile\n.", b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    ],
)  # fmt: skip
def test_names_that_arrays_do_not_need(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "one").write_bytes(content)
    with pytest.raises(DataError, match="one' .*pickle"):
        load_array(tmp_path / "one")


def test_any_damage_is_one_message(tmp_path: Path) -> None:
    """Cut off anywhere, or with any byte changed, a file is read as an array, or refused by name: nothing else happens."""
    whole = dump(np.arange(12, dtype=np.float32).reshape(3, 4), python=2)
    path = tmp_path / "array"
    refused = 0
    for place in range(len(whole)):
        for content in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]):
            path.write_bytes(content)
            try:
                load_array(path)
            except DataError as error:
                refused += 1
                assert str(path) in str(error)
    assert refused > len(whole)


def changed(graph: Citations, how: str) -> Citations:
    """The graph with one thing that cannot be."""
    if how == "outside":
        graph.lists[7].append(LAST + 1)
    elif how == "negative":
        graph.lists[7].append(-1)
    elif how == "no list":
        graph.lists[7] = "12"  # type: ignore[assignment]
    elif how == "nan":
        graph.features[2, 1] = np.nan
    elif how == "few":
        graph = dataclasses.replace(graph, train=30)
    return graph


def replace(folder: Path, how: str) -> None:
    """Damage to a file."""
    at = {
        name: folder / f"ind.citeseer.{name}" for name in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    }  # fmt: skip
    if how == "cut off":
        at["allx"].write_bytes(at["allx"].read_bytes()[:-40])
    elif how == "empty":
        at["graph"].write_bytes(b"")
    elif how == "swapped":
        at["tx"].write_bytes(at["x"].read_bytes())
    elif how == "an array for a matrix":
        at["allx"].write_bytes(at["ally"].read_bytes())
    elif how == "a matrix for an array":
        at["ty"].write_bytes(at["tx"].read_bytes())
    elif how == "a list for a mapping":
        at["graph"].write_bytes(dump([1, 2], python=3))
    elif how == "two classes":
        at["y"].write_bytes(dump(np.ones((TRAIN, 3), np.int32), python=2))
    elif how == "texts":
        at["ty"].write_bytes(dump(np.array([["a"], ["b"]]), python=3))
    elif how == "objects":
        at["ty"].write_bytes(dump(np.array([[{}], [1]], object), python=3))
    else:
        lines = at["test.index"].read_text().splitlines()
        index = {
            "no number": [*lines[:3], "5x2", *lines[4:]], "a node of allx": [*lines[:3], "519", *lines[4:]],
            "twice": [*lines[:3], lines[0], *lines[4:]], "a line less": lines[:-1], "far away": [*lines[:-1], "9999"],
        }[how]  # fmt: skip
        at["test.index"].write_text("\n".join(index))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("outside", ["graph'", f"7 to {LAST + 1}", f"0 to {LAST}"]), ("negative", ["graph'", "7 to -1"]),
        ("no list", ["graph'", "node 7"]), ("nan", ["allx'", "row 3, column 2"]), ("few", ["ally'", "520, of which 30 train"]),
        ("cut off", ["allx' cannot be read"]), ("empty", ["graph' cannot be read", "ends too early"]),
        ("swapped", ["tx'", "[6, 7]", "[10, 7]"]), ("an array for a matrix", ["allx'", "a sparse matrix"]),
        ("a matrix for an array", ["ty'", "an array"]), ("a list for a mapping", ["graph'", "a mapping"]),
        ("two classes", ["y'", "one class in row 1", "[1, 1, 1]"]), ("texts", ["ty' cannot be read"]),
        ("objects", ["ty' cannot be read"]), ("no number", ["test.index'", "line 4", "5x2", "520"]),
        ("a node of allx", ["test.index'", "line 4", "519"]), ("twice", ["test.index' names node 527 twice", "1 and 4"]),
        ("a line less", ["test.index'", "9", "10"]), ("far away", ["test.index'", "line 10", "9999"]),
    ],
)  # fmt: skip
def test_wrong_files(tmp_path: Path, how: str, words: list[str]) -> None:
    made_wrong = how in ("outside", "negative", "no list", "nan", "few")
    graph = citations()
    (changed(graph, how) if made_wrong else graph).write(tmp_path, "citeseer")
    if not made_wrong:
        replace(tmp_path, how)
    with pytest.raises(DataError) as caught:
        Planetoid(config(tmp_path)).write(tmp_path / "store", 10**9)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not (tmp_path / "store").exists()


def test_commands(tmp_path: Path) -> None:
    """Prepared, trained, planned; what is missing is said at once, with where it comes from."""
    words = ("dataset=citeseer", "dataset.root=files")
    for verb in ("prepare", "train"):
        done = sargnn_here(tmp_path, verb, *words)
        assert done.returncode == 1 and "files of citeseer" in done.stderr, done.stderr
        assert "ind.citeseer.test.index" in done.stderr and "planetoid" in done.stderr and "Traceback" not in done.stderr
    citations().write(tmp_path / "files", "citeseer")
    for part in ("ty", "graph"):
        (tmp_path / "files" / f"ind.citeseer.{part}").rename(tmp_path / part)
    done = sargnn_here(tmp_path, "train", *words)
    assert done.returncode == 1 and "lacks ind.citeseer.ty, ind.citeseer.graph." in done.stderr, done.stderr
    for part in ("ty", "graph"):
        (tmp_path / part).rename(tmp_path / "files" / f"ind.citeseer.{part}")
    for command in (
        ("prepare", *words),
        ("train", *words, "world=2", "epochs=1", "tracking=none", "experiment=cora_gcn", "dataset.normalize_features=false"),
        ("check", *words),
        ("info",),
    ):
        done = sargnn_here(tmp_path, *command)
        assert done.returncode == 0, done.stderr
    assert "citeseer" in done.stdout and len(list((tmp_path / "stores/datasets").iterdir())) == 1
