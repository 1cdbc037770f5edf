"""``partitioner=given``: every node goes where the file says, and every mistake names the file."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import write_dataset
from sargnn.partition.prepare import prepare_partition
from sargnn.partition.simple import assign_given
from sargnn.partition.store import open_part
from sargnn.run.check import check_strategies
from sargnn.tracking.summary import read_summary
from tests.configs import config
from tests.graphs import nasty_graph
from tests.in_process import sargnn_here

GRAPH = nasty_graph()
N = GRAPH.num_nodes
WORKERS = np.random.default_rng(5).integers(3, size=N)


def given(folder: Path, array: np.ndarray, *overrides: str) -> RunConfig:
    np.save(folder / "mine.npy", array)
    run = config("partitioner=given", f"partitioner.file={folder / 'mine.npy'}", "world=3", *overrides)
    return dataclasses.replace(run, store_dir=str(folder / "stores"))


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint32, ">i4"])
@pytest.mark.parametrize("order", ["locality", "original"])
def test_every_node_goes_where_the_file_says(dtype: str, order: str, tmp_path: Path) -> None:
    write_dataset(tmp_path / "graph", GRAPH, made_by={})
    run = given(tmp_path, WORKERS.astype(dtype), f"partitioner.order={order}")
    info = prepare_partition(run, tmp_path / "graph")
    for worker in range(3):
        assert sorted(open_part(info.path, worker).node_ids) == np.flatnonzero(WORKERS == worker).tolist()


def test_the_store_is_known_by_the_content_of_the_file(tmp_path: Path) -> None:
    write_dataset(tmp_path / "graph", GRAPH, made_by={})
    first = prepare_partition(given(tmp_path, WORKERS), tmp_path / "graph").path
    stamp = (first / "manifest.json").stat().st_mtime_ns
    (tmp_path / "copy").mkdir()
    copy = dataclasses.replace(given(tmp_path / "copy", WORKERS), store_dir=str(tmp_path / "stores"))
    assert prepare_partition(copy, tmp_path / "graph").path == first
    assert (first / "manifest.json").stat().st_mtime_ns == stamp
    assert prepare_partition(given(tmp_path, (WORKERS + 1) % 3), tmp_path / "graph").path != first


def test_a_relative_path_starts_at_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config("partitioner=given", "partitioner.file=mine.npy").partitioner.file == str(tmp_path / "mine.npy")


FAULTS = {
    "short": (WORKERS[:-1], [f"[{N - 1}]", f"[{N}]"]),
    "a column": (WORKERS[:, None], [f"[{N}, 1]", f"[{N}]"]),
    "floats": (WORKERS.astype(float), ["whole numbers", "float64"]),
    "flags": (WORKERS > 0, ["whole numbers", "bool"]),
    "too many": (np.where(np.arange(N) == 7, 4, WORKERS), ["node 7", "0 to 2", "world=5"]),
    "negative": (np.where(np.arange(N) == 9, -1, WORKERS), ["node 9", "0 to 2", "-1"]),
    "objects": (np.array([None] * N), [".npy"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_file_cannot_hold(fault: str, tmp_path: Path) -> None:
    array, words = FAULTS[fault]
    run = given(tmp_path, array)
    with pytest.raises(ConfigError) as caught:
        assign_given(GRAPH, 3, run.partitioner)
    assert all(word in str(caught.value) for word in [*words, "mine.npy"]), str(caught.value)


@pytest.mark.parametrize("fault", ["missing", "truncated", "no array", "a folder"])
def test_files_that_cannot_be_read_are_found_before_the_dataset_is_made(fault: str, tmp_path: Path) -> None:
    run = given(tmp_path, WORKERS)
    file = tmp_path / "mine.npy"
    content = file.read_bytes()
    file.unlink()
    if fault == "truncated":
        file.write_bytes(content[:-3])
    elif fault == "no array":
        file.write_text("0 1 2 0 1 2")
    elif fault == "a folder":
        file.mkdir()
    with pytest.raises(ConfigError, match="mine.npy"):
        check_strategies(run)
    done = sargnn_here(tmp_path, "train", "partitioner=given", "partitioner.file=mine.npy", "dataset.num_nodes=300")
    assert done.returncode == 1 and str(file) in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "stores").exists() and not (tmp_path / "runs").exists()


def test_a_worker_without_nodes_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = assign_given(GRAPH, 5, given(tmp_path, WORKERS).partitioner)
    assert np.array_equal(found, WORKERS) and found.dtype == np.int32
    assert "no node to 2 of 5 workers" in caplog.text and "mine.npy" in caplog.text


@pytest.mark.long
def test_the_losses_are_those_of_another_partition(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", np.random.default_rng(0).integers(2, size=300))
    small = ["dataset.num_nodes=300", "model.hidden=8", "epochs=3", "world=2", "precision=fp64", "tracking=none"]
    losses = []
    for name, words in (("given", ["partitioner=given", "partitioner.file=mine.npy"]), ("metis", [])):
        done = sargnn_here(tmp_path, "train", *small, *words, f"run_dir={name}")
        assert done.returncode == 0, done.stderr
        summary = read_summary(tmp_path / name)
        assert summary is not None
        losses.append(summary.losses)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-8)
