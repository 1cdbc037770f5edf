"""``dataset=stored``: a store used in place, known by its content and not by its path."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from sargnn.cli.resume import read_resumed
from sargnn.config.run import RunConfig, load, save
from sargnn.errors import ConfigError, SargnnError, StoreError
from sargnn.graph.dataset import open_dataset, write_dataset
from sargnn.sources.prepare import prepare_dataset
from sargnn.tracking.summary import read_summary
from tests.configs import config
from tests.graphs import nasty_graph
from tests.in_process import sargnn_here


def store(path: Path, seed: int = 0) -> Path:
    write_dataset(path, dataclasses.replace(nasty_graph(seed=seed), name="mine"), made_by={})
    return path


def stored(path: Path, *overrides: str) -> RunConfig:
    return config("dataset=stored", f"dataset.root={path}", *overrides)


def test_the_content_decides_and_the_path_does_not(tmp_path: Path) -> None:
    one = stored(store(tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    copy, other = stored(tmp_path / "copy"), stored(store(tmp_path / "other", seed=1))
    assert one.config_hash == copy.config_hash != other.config_hash
    assert one.dataset.title == "mine" and one.dataset.name == "stored"
    assert prepare_dataset(copy.dataset, str(tmp_path / "stores")) == tmp_path / "copy"
    assert not (tmp_path / "stores").exists()


def test_a_store_that_was_replaced_is_another_dataset(tmp_path: Path) -> None:
    """Of a run that was begun, which keeps what it was begun with; a new run takes what is there."""
    run = tmp_path / "run"
    run.mkdir()
    before = stored(store(tmp_path / "one"))
    save(before, run / "config.yaml")
    shutil.rmtree(tmp_path / "one")
    assert load(run / "config.yaml") == before  # also while it is gone
    after = stored(store(tmp_path / "one", seed=1))
    assert after.config_hash != before.config_hash
    again = read_resumed([f"resume={run}"])
    assert again is not None and again[0].config_hash == before.config_hash
    with pytest.raises(ConfigError, match="another dataset") as caught:
        prepare_dataset(again[0].dataset, str(tmp_path / "stores"))
    assert str(tmp_path / "one") in str(caught.value)
    with pytest.raises(ConfigError, match="dataset.content: .* instead of "):
        read_resumed([f"resume={run}", "dataset=stored", f"dataset.root={tmp_path / 'one'}"])


@pytest.mark.parametrize("fault", ["missing", "no store", "partition", "truncated", "manifest", "file"])
def test_a_folder_that_is_no_whole_store_is_named(fault: str, tmp_path: Path) -> None:
    path = store(tmp_path / "one")
    manifest = path / "manifest.json"
    if fault == "missing":
        shutil.rmtree(path)
    elif fault == "no store":
        manifest.unlink()
    elif fault == "partition":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"kind": "partition"}))
    elif fault == "truncated":
        (path / "labels.npy").write_bytes((path / "labels.npy").read_bytes()[:-8])
    elif fault == "manifest":
        manifest.write_text(manifest.read_text().replace('"mine"', '"your"'))
    else:
        (path / "split.npy").unlink()
    with pytest.raises(StoreError) as caught:
        prepare_dataset(stored(path).dataset, str(tmp_path))
    text = str(caught.value)
    assert str(path) in text and "next:" in text and len(text.splitlines()) <= 5 and "rm -r" not in text, text


def test_a_damaged_number_is_found_before_training(tmp_path: Path) -> None:
    path = store(tmp_path / "one")
    content = bytearray((path / "indices.npy").read_bytes())
    content[-1] ^= 1
    (path / "indices.npy").write_bytes(bytes(content))
    done = sargnn_here(tmp_path, "partition", "dataset=stored", "dataset.root=one", "world=2")
    assert done.returncode == 1 and str(path / "indices.npy") in done.stderr and "Traceback" not in done.stderr


def test_a_run_uses_it_in_place(tmp_path: Path) -> None:
    path = store(tmp_path / "elsewhere" / "one")
    words = ["dataset=stored", "dataset.root=elsewhere/one", "model.hidden=8", "epochs=2", "tracking=none", "run_dir=run"]
    done = sargnn_here(tmp_path, "train", "world=2", *words)
    assert done.returncode == 0, done.stderr
    summary = read_summary(tmp_path / "run")
    assert summary is not None and summary.dataset == "mine" and "dataset mine" in done.stderr
    assert summary.dataset_hash == open_dataset(path, verify=False).content_hash
    assert not (tmp_path / "stores" / "datasets").exists()
    assert [one.name for one in path.parent.iterdir()] == ["one"]


def test_it_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SargnnError, match="not made"):
        stored(tmp_path).dataset.reader()
