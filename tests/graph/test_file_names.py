"""Names that no file can have, in stores, in exported folders and in what is printed."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from sargnn.errors import StoreError
from sargnn.graph.dataset import open_dataset, write_dataset
from sargnn.graph.manifest import LONGEST, MANIFEST, digest_of, file_name
from sargnn.graph.store import Store, StoreWriter
from sargnn.sources.ogb.export import export
from sargnn.sources.ogb.named import ogb_dir
from sargnn.sources.settings import OgbDirConfig
from sargnn.tracking.tables import show_table
from tests.graphs import ODD_NAMES, typed_graph, with_odd_names

ORDINARY = ["layers.0.weight", "inputs.embeddings.00_author", "convs.('paper', 'cites', 'paper').bias", "Straße", ".a", "a b:c"]


@pytest.mark.parametrize("name", ORDINARY)
def test_names_that_files_can_have_stay(name: str) -> None:
    assert file_name(name) == name


def test_other_texts_have_other_names(tmp_path: Path) -> None:
    """All texts of up to three of these characters, and long ones."""
    texts = ["".join(one) for length in range(4) for one in product("%/.~2F\n", repeat=length)]
    texts += ["/" * 300, "/" * 301, "ü" * 150, "ü" * 151, "n" * LONGEST, "n" * (LONGEST + 1), "\ud800", *ODD_NAMES, *ORDINARY]
    texts = list(dict.fromkeys(texts))
    names = [file_name(text) for text in texts]
    assert len(set(names)) == len(texts)
    for name in names:
        assert 0 < len(name.encode()) <= LONGEST and name not in (".", "..") and "/" not in name and "\n" not in name
        (tmp_path / f"{name}.npy").touch()
    assert len(list(tmp_path.iterdir())) == len(texts)
    assert len(file_name("ü" * 150, 20).encode()) <= 20


def test_arrays_of_a_store(tmp_path: Path) -> None:
    names = ["plain", *(f"param/{name}" for name in (*ODD_NAMES, *ORDINARY))]
    with StoreWriter(tmp_path / "store", "test", 1) as writer:
        for number, name in enumerate(names):
            writer.put(name, np.array([number]))
    store = Store(tmp_path / "store", "test", 1)
    store.verify()
    assert [int(store.array(name)[0]) for name in names] == list(range(len(names)))
    assert {path.parent.name for path in (tmp_path / "store").glob("*/*")} == {"param"}
    entries = json.loads((tmp_path / "store" / MANIFEST).read_text())["files"]
    assert all("file" not in entries[name] for name in ("plain", *(f"param/{name}" for name in ORDINARY)))


@pytest.mark.parametrize("file", ["../x", "/x", "", "a//b", 7, None])
def test_a_manifest_that_names_a_file_elsewhere(file: object, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with StoreWriter(path, "test", 1) as writer:
        writer.put("a", np.zeros(1))
    content = json.loads((path / MANIFEST).read_text())
    content["files"]["a"]["file"] = file
    del content["sha256"]
    (path / MANIFEST).write_text(json.dumps(content | {"sha256": digest_of(content)}))
    with pytest.raises(StoreError, match="in the store"):
        Store(path, "test", 1)


def test_what_is_not_about_room_speaks_of_none(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught, StoreWriter(tmp_path / "store", "test", 1) as writer:
        (writer.folder / "param").write_text("")  # no folder
        writer.put("param/a", np.zeros(1))
    assert "free some space" not in str(caught.value) and "can be written" in str(caught.value)


def test_a_dataset_and_an_exported_folder(tmp_path: Path) -> None:
    graph = with_odd_names(typed_graph())
    write_dataset(tmp_path / "store", graph, {})
    kept = open_dataset(tmp_path / "store", verify=True)
    assert kept.schema == graph.schema
    export(kept, tmp_path / "raw", "typed", symmetric=False)
    ogb_dir(OgbDirConfig("ogb_dir", str(tmp_path / "raw"), add_inverse_edges=False, normalize_features=False)).write(
        tmp_path / "again", 10**9
    )
    again = open_dataset(tmp_path / "again", verify=True)
    named = {file_name(name, 80): graph.schema.count(t) for t, name in enumerate(graph.schema.node_types)}
    assert {name: again.schema.count(t) for t, name in enumerate(again.schema.node_types)} == named
    assert again.num_edges == graph.num_edges and len(again.schema.relations) == len(graph.schema.relations)


def test_brackets_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_table((), [("nodes: [/red]", "[bold]5")])
    assert "nodes: [/red] [bold]5" in " ".join(capsys.readouterr().out.split())
