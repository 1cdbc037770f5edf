"""Stores: round trip, damage, half-written stores, two writers at once."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.errors import DataError, StoreError
from sargnn.graph.check import weight_range
from sargnn.graph.dataset import open_dataset, write_dataset
from sargnn.graph.edge_columns import EdgeColumns
from sargnn.graph.store import Store, StoreWriter
from tests.graphs import nasty_graph, with_weights

ARRAYS = ("features/00", "labels", "split", "indptr", "indices", "edge_weight")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    write_dataset(path, with_weights(nasty_graph()), made_by={})
    return path


def test_round_trip(store: Path) -> None:
    wanted, found = with_weights(nasty_graph()), open_dataset(store, verify=True)
    for name in ARRAYS:
        own: list[Any] = [
            {"features/00": d.features[0], "edge_weight": d.columns.weight}.get(name, getattr(d, name, None))
            for d in (wanted, found)
        ]
        one, other = own
        assert np.array_equal(one, other)
        assert isinstance(other, np.memmap)
    assert (found.name, found.num_classes) == (wanted.name, wanted.num_classes)
    assert found.stored_weights == weight_range(wanted) == (0.0, float(np.max(wanted.columns.weight)))  # type: ignore[arg-type]


def test_without_weights_a_store_is_what_it_was(tmp_path: Path) -> None:
    write_dataset(tmp_path / "store", nasty_graph(), made_by={})
    found = open_dataset(tmp_path / "store", verify=True)
    assert found.columns.weight is None and found.content_hash == "1b6051f491f4efd0"
    assert "edge_weights" not in Store(tmp_path / "store", "dataset", 2).meta


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1e31])
def test_weights_that_none_can_use(tmp_path: Path, wrong: float) -> None:
    graph = with_weights(nasty_graph())
    assert graph.columns.weight is not None
    graph.columns.weight[[70, 900]] = wrong
    with pytest.raises(DataError, match=r"(?s)'nasty' .*edge weight.*edge 70 \(counted from 0\)"):
        write_dataset(tmp_path / "store", graph, made_by={})
    with pytest.raises(DataError, match="edge_weight .*form"):
        write_dataset(
            tmp_path / "store",
            dataclasses.replace(graph, columns=EdgeColumns.of({"weight": np.ones(7, np.float32)})),
            made_by={},
        )


def test_the_hash_is_the_contents(tmp_path: Path) -> None:
    for number, seed in enumerate((0, 0, 1)):
        write_dataset(tmp_path / str(number), nasty_graph(seed=seed), made_by={"number": number})
    hashes = [open_dataset(tmp_path / str(number), verify=False).content_hash for number in range(3)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("name", ARRAYS)
def test_a_flipped_bit_is_found_and_named(store: Path, name: str) -> None:
    file = store / f"{name}.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match=f"{name}.npy.*checksum"):
        open_dataset(store, verify=True)


def test_a_truncated_file_is_named(store: Path) -> None:
    os.truncate(store / "indices.npy", 200)
    with pytest.raises(StoreError, match="indices.npy.*200 bytes"):
        open_dataset(store, verify=False)


def test_a_missing_file_and_manifest_are_named(store: Path) -> None:
    (store / "labels.npy").unlink()
    with pytest.raises(StoreError, match="labels.npy.*missing"):
        open_dataset(store, verify=False)
    (store / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match="manifest.json"):
        open_dataset(store, verify=False)


def test_another_version_is_refused(store: Path) -> None:
    with pytest.raises(StoreError, match="format version 2"):
        Store(store, "dataset", 1)
    with pytest.raises(StoreError, match="kind partition"):
        Store(store, "partition", 1)


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), StoreWriter(tmp_path / "half", "dataset", 1) as writer:
        writer.put("one", np.arange(3))
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_no_training_nodes(tmp_path: Path) -> None:
    graph = nasty_graph()
    graph.split[:] = 2
    with pytest.raises(DataError, match="no training nodes"):
        write_dataset(tmp_path / "store", graph, made_by={})
    assert list(tmp_path.iterdir()) == []


def _write(path: Path) -> None:
    write_dataset(path, nasty_graph(2000), made_by={})


def test_two_writers_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(tmp_path / "store",)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    open_dataset(tmp_path / "store", verify=True)
    assert [p.name for p in tmp_path.iterdir()] == ["store"]
