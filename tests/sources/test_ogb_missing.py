"""Folders in OGB's layouts that are not whole: all that is missing is named at once; counts that are missing follow."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sargnn.config.choices import Task
from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset
from sargnn.sources.ogb.export import export
from sargnn.sources.ogb.named import ogb_dir, ogb_named
from sargnn.sources.ogb.tables import count_rows, read_table
from sargnn.sources.prepare import key_of
from sargnn.sources.settings import OgbConfig, OgbDirConfig
from tests.graphs import nasty_graph, small_typed_graph
from tests.in_process import sargnn_here
from tests.sources.ogb_files import write_gz
from tests.sources.stores import write_and_read

LABELLED = "raw/node-label/paper/node-label.csv.gz"
FILES = {
    "csv": [
        "raw/edge.csv.gz", "raw/node-feat.csv.gz", "raw/node-label.csv.gz",
        *(f"split/sales_ranking/{one}.csv.gz" for one in ("train", "valid", "test")),
    ],
    "binary": ["raw/data.npz", "raw/node-label.npz", *(f"split/time/{one}.csv.gz" for one in ("train", "valid", "test"))],
    "typed": [
        "raw/triplet-type-list.csv.gz", "raw/relations/author___r0___paper/edge.csv.gz",
        "raw/relations/paper___r2___paper/edge.csv.gz", LABELLED,
        *(f"split/time/paper/{one}.csv.gz" for one in ("train", "valid", "test")),
    ],
}  # fmt: skip
COUNTS = {
    "csv": ["raw/num-node-list.csv.gz", "raw/num-edge-list.csv.gz"],
    "binary": ["num_nodes_list", "num_edges_list"],
    "typed": [
        "raw/num-node-dict.csv.gz", "raw/nodetype-has-label.csv.gz", "raw/relations/author___r0___paper/num-edge-list.csv.gz",
        "raw/relations/paper___r2___paper/num-edge-list.csv.gz",
    ],
}  # fmt: skip
LAYOUTS = list(FILES)


def config(root: Path, *, task: Task | None = None) -> OgbDirConfig:
    return OgbDirConfig("ogb_dir", str(root), add_inverse_edges=False, normalize_features=False, task=task)


@pytest.fixture
def folder(layout: str, tmp_path: Path) -> Path:
    graph = small_typed_graph("features") if layout == "typed" else nasty_graph()
    export(graph, tmp_path / "graph", layout, symmetric=False)
    return tmp_path / "graph"


def read(root: Path) -> Dataset:
    return write_and_read(ogb_dir(config(root)))


def message(root: Path) -> str:
    """The same from the reader and from the check that comes before everything else."""
    with pytest.raises(DataError) as caught:
        ogb_dir(config(root))
    with pytest.raises(DataError) as early:
        config(root).check_files()
    assert str(early.value) == str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_that_is_missing_is_named_at_once_with_the_layout(folder: Path, layout: str) -> None:
    marker, _, *others = FILES[layout]
    for gone in (others, [marker, *others]):  # without the marker, the layout is known by the second file
        for name in gone:
            (folder / name).unlink(missing_ok=True)
        text = message(folder)
        if layout == "typed" and marker in gone:  # without a table of relations theirs are not known
            gone = [name for name in gone if "relations" not in name]
        assert [line.split("no ", 1)[1] for line in text.splitlines() if "   no " in line] == gone
        assert f"{len(gone)} parts are missing" in text and str(folder) in text
        assert f"allowed: {marker}  " in text and "{train,valid,test}.csv.gz  " in text
        assert max(len(line) for line in text.splitlines()[1:] if str(folder) not in line) <= 85


def test_an_unknown_folder_is_answered_with_all_layouts(tmp_path: Path) -> None:
    assert "an empty folder" in message(tmp_path)
    (tmp_path / "features.csv").write_text("1\n")
    text = message(tmp_path)
    for words in ("given:   features.csv", "raw/edge.csv.gz", "raw/data.npz", "raw/triplet-type-list.csv.gz", "dataset=arrays"):
        assert words in text


def test_an_unpacked_table_is_to_be_packed(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/edge.csv").write_text("0,1\n")
    write_gz(tmp_path / "raw/node-feat.csv.gz", "1\n")
    assert f"next:    gzip {tmp_path}/raw/edge.csv" in message(tmp_path)


@pytest.mark.parametrize("layout", ["binary"])
def test_arrays_that_are_missing(folder: Path) -> None:
    arrays = dict(np.load(folder / "raw/data.npz"))
    np.savez(folder / "raw/data.npz", node_feat=arrays["node_feat"])
    (folder / "raw/node-label.npz").unlink()
    text = message(folder)
    assert "no raw/node-label.npz" in text and "no array 'edge_index' in raw/data.npz" in text and "2 parts" in text


def test_a_named_dataset_is_told_the_same(tmp_path: Path) -> None:
    (tmp_path / "ogbn_mag/raw").mkdir(parents=True)
    settings = OgbConfig("ogbn-mag", str(tmp_path), download=False, add_inverse_edges=False, normalize_features=False)
    for call in (lambda: ogb_named(settings), settings.check_files):
        with pytest.raises(DataError, match="(?s)typed layout: 5 parts are missing.*no raw/triplet-type-list.csv.gz"):
            call()
    (tmp_path / "ogbn_mag/raw").rmdir()
    settings.check_files()  # it would be fetched


def test_training_says_it_before_anything_else(tmp_path: Path) -> None:
    """Neither a store nor a run folder is begun; and what is asked first needs no heavy module."""
    done = sargnn_here(tmp_path, "train", "dataset=ogb_dir", f"dataset.root={tmp_path}")
    assert done.returncode == 1 and "OGB's layouts" in done.stderr and not list(tmp_path.iterdir())
    script = (
        "import sys; from sargnn.sources.ogb.layouts import check_folder\n"
        "from sargnn.sources.ogb.layouts import find_typed; "
        "print([m for m in ('torch', 'pandas') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts_that_are_missing_follow_from_the_rest(folder: Path, layout: str) -> None:
    """Each alone and all together; the same content, under a key of its own."""
    whole, key = read(folder), key_of(ogb_dir(config(folder)).identity())
    for gone in ([COUNTS[layout][0]], COUNTS[layout]):
        if layout == "binary":
            arrays = dict(np.load(folder / "raw/data.npz"))
            np.savez_compressed(folder / "raw/data.npz", **{k: v for k, v in arrays.items() if k not in gone})
        for name in gone:
            (folder / name).unlink(missing_ok=True)
        assert read(folder).content_hash == whole.content_hash
        assert key_of(ogb_dir(config(folder)).identity()) != key


def test_nodes_of_types_without_features(tmp_path: Path) -> None:
    """Counted by the largest number among the edges, whichever end; a type without edges of its own has none."""
    write_gz(tmp_path / "raw/triplet-type-list.csv.gz", "author,writes,paper\npaper,has,topic\nvenue,of,paper\n")
    for relation, rows in (
        ("author___writes___paper", "4,0\n1,2\n"),
        ("paper___has___topic", "2,6\n"),
        ("venue___of___paper", ""),
    ):
        write_gz(tmp_path / f"raw/relations/{relation}/edge.csv.gz", rows)
    write_gz(tmp_path / "raw/node-label/paper/node-label.csv.gz", "0\n1\nnan\n0\n")
    for split, rows in (("train", "0\n"), ("valid", "1\n"), ("test", "3\n")):
        write_gz(tmp_path / f"split/mine/paper/{split}.csv.gz", rows)
    found = read(tmp_path)
    assert found.schema.node_types == ("author", "paper", "topic", "venue") and found.num_edges == 3
    assert [found.schema.count(t) for t in range(4)] == [5, 4, 7, 0]
    write_gz(tmp_path / "raw/relations/venue___of___paper/edge.csv.gz", "0,1\n-2,1\n")
    with pytest.raises(DataError, match="venue___of___paper/edge.csv.gz.*of type venue .*in row 2"):
        read(tmp_path)
    write_gz(tmp_path / "raw/node-label/topic/node-label.csv.gz", "0\n")
    with pytest.raises(DataError, match="(?s)several node types.*paper, topic.*nodetype-has-label"):
        read(tmp_path)


def test_rows_are_counted_as_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank lines, any line ends, no end at all; in pieces of any size."""
    for text in ("1\n2\n3\n", "1\n\n2\n \n\t\n3", "\n\n1\r\n2\r\n\r\n3\r\n", "1\r2\r3", "1\n2\n3\n\n\n"):
        path = tmp_path / "rows.csv.gz"
        with gzip.open(path, "wb") as file:
            file.write(text.encode())
        for size in (2, 5, 1000):
            monkeypatch.setattr("sargnn.sources.scan._BLOCK_BYTES", size)
            assert count_rows(path, 0, 10) == 3 == len(read_table(path, np.int64)), (text, size)
    with pytest.raises(DataError, match="more rows"):
        count_rows(path, 0, 2)
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(DataError, match="cannot be read"):
        count_rows(path, 0, 10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_labels_need_a_task(folder: Path, layout: str) -> None:
    """One message that names the file and what can be said."""
    name = {"csv": "raw/node-label.csv.gz", "binary": "raw/node-label.npz", "typed": LABELLED}[layout]
    if layout == "binary":
        np.savez(folder / name, node_label=np.zeros((300, 3), np.float32))
    else:
        write_gz(folder / name, "0,1,0\n" * (60 if layout == "typed" else 300))
    with pytest.raises(DataError, match=rf"(?s){name}' has several labels.*3 columns.*task=multilabel.*task=regression"):
        read(folder)
