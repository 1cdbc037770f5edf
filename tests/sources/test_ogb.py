"""OGB's raw layout: against OGB's own reader, and wrong files."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset
from sargnn.sources.ogb.named import ogb_named
from sargnn.sources.prepare import key_of
from sargnn.sources.settings import OgbConfig
from tests.sources.ogb_files import read, reader_of, write_gz
from tests.sources.stores import write_and_read

EDGES = [(0, 1), (1, 2), (2, 0), (2, 0), (3, 3), (1, 4)]
FEATURES = [[0.5, 1.0], [2.0, -2.0], [0.0, 0.0], [1.0, 3.0], [4.0, 4.0], [7.0, 1.0]]


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("buffer_bytes", [10**9, 4000])
def test_proteins(buffer_bytes: int, tmp_path: Path) -> None:
    """A folder in the layout of ogbn-proteins, against OGB's own reader: 8 features an edge, 112 labels, none of a node's own
    features, which OGB's baselines take to be the mean of its edges' (examples/nodeproppred/proteins)."""
    sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
    from ogb.io.read_graph_raw import read_csv_graph_raw

    rng = np.random.default_rng(0)
    n, folder = 40, tmp_path / "ogbn_proteins"
    tables: dict[str, np.ndarray] = {"edge": rng.integers(38, size=(150, 2)), "node-label": rng.integers(2, size=(n, 112))}
    tables |= {"edge-feat": rng.integers(1, 1000, size=(150, 8)) / 1000, "node_species": rng.integers(3702, 9606, size=(n, 1))}
    tables |= {"num-node-list": np.array([[n]]), "num-edge-list": np.array([[150]])}
    for name, table in tables.items():
        write_gz(folder / f"raw/{name}.csv.gz", "".join(",".join(map(str, row)) + "\n" for row in table.tolist()))
    for name, rows in (("train", range(20)), ("valid", range(20, 30)), ("test", range(30, n))):
        write_gz(folder / f"split/species/{name}.csv.gz", "".join(f"{row}\n" for row in rows))
    (graph,) = read_csv_graph_raw(str(folder / "raw"), add_inverse_edge=True, additional_node_files=["node_species"])
    settings: dict[str, Any] = {"add_inverse_edges": True, "normalize_features": False, "download": False, "task": "multilabel"}
    ours = write_and_read(ogb_named(OgbConfig("ogbn-proteins", str(tmp_path), **settings)), buffer_bytes)
    assert (ours.task, ours.num_classes) == ("multilabel", 112) and np.array_equal(ours.labels, tables["node-label"])
    features = np.asarray(ours.columns["attr"])
    destination = np.repeat(np.arange(n), np.diff(ours.indptr))
    theirs = zip(*graph["edge_index"].tolist(), graph["edge_feat"].tolist(), strict=True)
    assert sorted(zip(ours.indices.tolist(), destination.tolist(), features.tolist(), strict=True)) == sorted(theirs)
    means = np.zeros((n, 8))
    np.add.at(means, graph["edge_index"][0], graph["edge_feat"].astype(np.float64))
    means /= np.maximum(np.bincount(graph["edge_index"][0], minlength=n), 1)[:, None]
    assert np.array_equal(ours.features[0], means.astype(np.float32)) and not ours.features[0][38:].any()


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
        ("raw/node-label.csv.gz", "0\n1\n0.5\n0\n0\n0\n", "node-label.csv.gz.*class in row 3"),
        ("raw/edge.csv.gz", "", "edge.csv.gz.*empty"),
        ("raw/node-feat.csv.gz", "1,1\n1,1\nnan,1\n1,1\n1,1\n1,1\n", "node-feat.csv.gz.*row 3"),
        ("raw/node-label.csv.gz", "0\n1\n-4\n0\n0\n0\n", "node-label.csv.gz.*row 3"),
        ("split/some/valid.csv.gz", "2\n1\n", "valid.csv.gz.*another split in row 2"),
        ("split/some/test.csv.gz", "6\n", "test.csv.gz.*row 1"),
        ("split/some/train.csv.gz", "", "train.csv.gz.*empty"),
        ("split/some/train.csv.gz", "0,1\n", "(?s)train.csv.gz.*one node number.*2 columns"),
        ("split/some/test.csv.gz", "3\n-4\n", "(?s)test.csv.gz.*row 2.*-4"),
        ("raw/edge.csv.gz", "0,1\n1,2\n2,0\n2,-1\n3,3\n1,4\n", "(?s)edge.csv.gz.*row 4.*-1"),
        ("raw/edge.csv.gz", "0,1\n1,2\n2,0\n2,99999999999999999999\n", "edge.csv.gz.*whole number in row 4"),
        ("raw/num-node-list.csv.gz", "3\n3\n", "(?s)num-node-list.csv.gz.*one number.*2 rows"),
        ("raw/num-node-list.csv.gz", "6,6\n", "(?s)num-node-list.csv.gz.*one number.*2 columns"),
        ("raw/num-node-list.csv.gz", "0\n", "(?s)num-node-list.csv.gz.*count that cannot be"),
        ("raw/num-node-list.csv.gz", "-6\n", "(?s)num-node-list.csv.gz.*count that cannot be"),
        ("raw/num-node-list.csv.gz", "9000000000000000000\n", "(?s)num-node-list.csv.gz.*count that cannot be"),
        ("raw/num-node-list.csv.gz", "six\n", "num-node-list.csv.gz.*whole number in row 1"),
        ("raw/num-node-list.csv.gz", "", "num-node-list.csv.gz.*empty"),
        ("raw/num-edge-list.csv.gz", "3\n3\n", "(?s)num-edge-list.csv.gz.*one number"),
        ("raw/num-edge-list.csv.gz", "-1\n", "(?s)num-edge-list.csv.gz.*count that cannot be"),
        ("raw/node-label.csv.gz", "0\n1\n2\n0\ninf\nnan\n", r"(?s)node-label.csv.gz.*class in row 5.*given:\s+inf\n"),
        ("raw/node-label.csv.gz", "0\n1\n-Infinity\n", "(?s)node-label.csv.gz.*3 rows"),
        ("raw/node-label.csv.gz", "0\n1\n2\n0\n1e999\nnan\n", r"(?s)class in row 5.*given:\s+1e999\n"),
        ("raw/node-label.csv.gz", "0\n1\n2\n0\n1\n99999999999\n", r"(?s)class in row 6.*given:\s+99999999999\n"),
        ("raw/node-label.csv.gz", "0\n1\n2\n0\n1000000000\nnan\n", "(?s)node-label.csv.gz.*row 5.*label 1000000000;.* 4 occur"),
        ("raw/node-label.csv.gz", "0\n1\n2\n0\n1000\nnan\n", "(?s)node-label.csv.gz.*row 5.*1001 classes"),
        ("raw/node-label.csv.gz", "\n\n", "node-label.csv.gz.*empty"),
        (
            "raw/node-feat.csv.gz",
            "1,1\n1,1\n1,1\n1,1\n1,inf\n1,1\n",
            "(?s)feat.csv.gz.*not finite in row 5, column 2.*inf",
        ),
        (
            "raw/node-feat.csv.gz",
            "1,1\n1,1\n1,1\n-1e30,1\n1,1\n1,1\n",
            r"(?s)too large in row 4, column 1.*-1e\+30",
        ),
        ("raw/node-feat.csv.gz", "1,1\n1e300,1\n1,1\n1,1\n1,1\n1,1\n", r"(?s)too large in row 2, column 1.*1e\+300"),
        ("raw/node-feat.csv.gz", "1,1\n" * 7, "(?s)node-feat.csv.gz.*7 rows"),
        ("raw/node-feat.csv.gz", "1,1\n" * 5, "(?s)node-feat.csv.gz.*5 rows"),
    ],
)
def test_wrong_files(folder: Path, file: str, text: str, words: str) -> None:
    write_gz(folder / file, text)
    with pytest.raises(DataError, match=words):
        read(folder)


RAW = ("edge", "node-feat", "node-label", "num-node-list", "num-edge-list")


@pytest.mark.parametrize("file", [*(f"raw/{name}.csv.gz" for name in RAW), "split/some/train.csv.gz"])
@pytest.mark.parametrize("content", [b"", b"0,1\n", b"\x1f\x8b", None], ids=["no bytes", "no gzip", "a beginning", "cut off"])
def test_files_that_are_no_gzip(folder: Path, file: str, content: bytes | None) -> None:
    """A file cut off in its last quarter, where gzip keeps its checksum, among them."""
    whole = (folder / file).read_bytes()
    (folder / file).write_bytes(whole[: -len(whole) // 4] if content is None else content)
    with pytest.raises(DataError, match=file):
        read(folder)


def test_a_bad_row_before_the_cut(folder: Path) -> None:
    """The row is named, although the file cannot be read to its end."""
    path = folder / "raw/node-feat.csv.gz"
    write_gz(path, "1,one\n" + "".join(f"{number},{number * 7919 % 10007}\n" for number in range(50_000)))
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match="node-feat.csv.gz"):
        read(folder)


def test_features_are_checked_where_rows_are_normalized_too(folder: Path) -> None:
    """The sum of 2e38 and 2e38 is infinite in single precision, and the row would be 0."""
    write_gz(folder / "raw/node-feat.csv.gz", "1,1\n" * 5 + "2e38,2e38\n")
    with pytest.raises(DataError, match="large in row 6, column 1"):
        read(folder, normalize=True)


def test_large_features_are_let_in_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the place of the largest; and not where rows are normalized."""
    write_gz(folder / "raw/node-feat.csv.gz", "1,1\n1,2e6\n1,1\n-3e7,1\n1,1\n1,1e6\n")
    assert read(folder).features[0][3, 0] == np.float32(-3e7)
    (message,) = caplog.messages
    assert "node-feat.csv.gz" in message and "3e+07" in message and "row 4, column 1" in message
    caplog.clear()
    read(folder, normalize=True)
    write_gz(folder / "raw/node-feat.csv.gz", "1,1e6\n" * 6)
    read(folder)
    assert not caplog.messages


def test_many_classes_that_occur_are_let_in(tmp_path: Path) -> None:
    """Above a thousand classes at least half must occur: 600 of 1200 do, 600 of 1201 do not."""
    labels = [*range(599), 1199]
    for file, rows in (("edge", ["0,1"]), ("node-feat", ["1"] * 600), ("num-node-list", ["600"]), ("num-edge-list", ["1"])):
        write_gz(tmp_path / f"raw/{file}.csv.gz", "\n".join(rows))
    for split, text in (("train", "0\n"), ("valid", ""), ("test", "")):
        write_gz(tmp_path / f"split/some/{split}.csv.gz", text)
    write_gz(tmp_path / "raw/node-label.csv.gz", "\n".join(map(str, labels)))
    assert read(tmp_path).num_classes == 1200
    write_gz(tmp_path / "raw/node-label.csv.gz", "\n".join(map(str, [*range(599), 1200])))
    with pytest.raises(DataError, match="(?s)row 600.*1201 classes, of which 600 occur"):
        read(tmp_path)


@pytest.mark.parametrize("large", [False, True])
def test_a_replaced_file_is_another(folder: Path, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """Of the same size, with the same modification time: small files are known by content, large ones by inode and ctime."""
    if large:
        monkeypatch.setattr("sargnn.sources.scan._HASHED_BYTES", 10)
    path = folder / "raw/edge.csv.gz"
    status = path.stat()
    content = path.read_bytes()

    def key() -> str:
        return key_of(reader_of(folder).identity())

    before = key()
    assert key() == before
    time.sleep(0.02)  # a tick of the file system's clock, at least
    path.write_bytes(content[:-8] + bytes(8))  # in place: the inode stays
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size and path.stat().st_mtime_ns == status.st_mtime_ns
    changed = key()
    other = folder / "other"
    other.write_bytes(content[:-8] + bytes([1] * 8))  # moved to its place: another inode
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    assert len({before, changed, key()}) == 3
    if not large:
        path.write_bytes(content)  # what was there first
        assert key() == before


def test_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "raw/node-label.csv.gz").unlink()
    with pytest.raises(DataError, match="(?s)1 part is missing.*no raw/node-label.csv.gz"):
        read(folder)
    with pytest.raises(DataError, match="does not exist"):
        read(tmp_path / "nowhere")
