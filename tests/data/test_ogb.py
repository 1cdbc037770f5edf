"""OGB's raw layout: against OGB's own reader, and wrong files."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest

from sargnn.data.dataset import Dataset
from sargnn.data.ogb import ogb_dir
from sargnn.data.settings import OgbDirConfig
from sargnn.errors import DataError
from tests.data.stores import stored

EDGES = [(0, 1), (1, 2), (2, 0), (2, 0), (3, 3), (1, 4)]
FEATURES = [[0.5, 1.0], [2.0, -2.0], [0.0, 0.0], [1.0, 3.0], [4.0, 4.0], [7.0, 1.0]]


def write_gz(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.write(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_gz(tmp_path / "raw/edge.csv.gz", "".join(f"{a},{b}\n" for a, b in EDGES))
    write_gz(tmp_path / "raw/node-feat.csv.gz", "".join(",".join(map(str, row)) + "\n" for row in FEATURES))
    write_gz(tmp_path / "raw/node-label.csv.gz", "0\n1\n2\n0\n1\nnan\n")
    write_gz(tmp_path / "raw/num-node-list.csv.gz", "6\n")
    write_gz(tmp_path / "raw/num-edge-list.csv.gz", "6\n")
    for name, rows in (("train", "0\n1\n"), ("valid", "2\n"), ("test", "3\n4\n")):
        write_gz(tmp_path / f"split/some/{name}.csv.gz", rows)
    return tmp_path


def read(folder: Path, inverse: bool = False, normalize: bool = False) -> Dataset:
    config = OgbDirConfig("ogb_dir", str(folder), add_inverse_edges=inverse, normalize_features=normalize, add_self_loops=None)
    return stored(ogb_dir(config))


def edges_of(dataset: Dataset) -> list[tuple[int, int]]:
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    return sorted(zip(dataset.indices.tolist(), destination.tolist(), strict=True))


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_equals_ogbs_own_reader(folder: Path, inverse: bool) -> None:
    sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
    from ogb.io.read_graph_raw import read_csv_graph_raw

    (graph,) = read_csv_graph_raw(str(folder / "raw"), add_inverse_edge=inverse)
    ours = read(folder, inverse)
    assert ours.num_nodes == graph["num_nodes"]
    assert edges_of(ours) == sorted(zip(*graph["edge_index"].tolist(), strict=True))
    assert np.array_equal(ours.features[0], graph["node_feat"].astype(np.float32))


def test_labels_split_and_normalisation(folder: Path) -> None:
    ours = read(folder, normalize=True)
    assert ours.labels.tolist() == [0, 1, 2, 0, 1, -1] and ours.num_classes == 3
    assert ours.split.tolist() == [1, 1, 2, 3, 3, 0]
    assert np.allclose(np.abs(ours.features[0]).sum(1), [1, 1, 0, 1, 1, 1])


def test_cora(cora: Path) -> None:
    ours = read(cora)
    assert (ours.num_nodes, ours.num_edges, ours.features[0].shape[1], ours.num_classes) == (2708, 10556, 1433, 7)
    assert np.bincount(ours.split).tolist() == [1068, 140, 500, 1000]
    assert set(edges_of(ours)) == {(b, a) for a, b in edges_of(ours)}  # the file holds both directions


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("raw/edge.csv.gz", "0,1\n1,2\n2,0\n2,9\n3,3\n1,4\n", "edge.csv.gz.*row 4"),
        ("raw/edge.csv.gz", "0,1\n", "edge.csv.gz.*shape"),
        ("raw/edge.csv.gz", "0,1\n1,x\n", "edge.csv.gz.*whole number in row 2"),
        ("raw/edge.csv.gz", "0,1\n1,2\n2,0,7\n", "edge.csv.gz.*3 columns in row 3"),
        ("raw/edge.csv.gz", "0,1\n1,\n", "edge.csv.gz.*whole number in row 2"),
        ("raw/node-feat.csv.gz", "1,1\n1,one\n1,1\n1,1\n1,1\n1,1\n", "node-feat.csv.gz.*a number in row 2"),
        ("raw/node-label.csv.gz", "0\n1\n0.5\n0\n0\n0\n", "node-label.csv.gz.*not a class in row 3"),
        ("raw/edge.csv.gz", "", "edge.csv.gz.*empty"),
        ("raw/node-feat.csv.gz", "1,1\n1,1\nnan,1\n1,1\n1,1\n1,1\n", "node-feat.csv.gz.*row 3"),
        ("raw/node-label.csv.gz", "0\n1\n-4\n0\n0\n0\n", "node-label.csv.gz.*row 3"),
        ("split/some/valid.csv.gz", "2\n1\n", "valid.csv.gz.*another split in row 2"),
        ("split/some/test.csv.gz", "6\n", "test.csv.gz.*row 1"),
    ],
)
def test_wrong_files(folder: Path, file: str, text: str, words: str) -> None:
    write_gz(folder / file, text)
    with pytest.raises(DataError) as caught:
        read(folder)
    import re

    assert re.search(words, str(caught.value)), str(caught.value)


def test_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "raw/node-label.csv.gz").unlink()
    with pytest.raises(DataError, match="node-label.csv.gz.*missing"):
        read(folder)
    with pytest.raises(DataError, match="does not exist"):
        read(tmp_path / "nowhere")


def test_not_gzip(folder: Path) -> None:
    (folder / "raw/edge.csv.gz").write_text("0,1\n")
    with pytest.raises(DataError, match="edge.csv.gz.*cannot be read"):
        read(folder)
