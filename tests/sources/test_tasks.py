"""Labels of every task in stores and parts, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from sargnn.config.choices import Task
from sargnn.config.partitioner import PartitionerConfig
from sargnn.config.verbs import PartitionConfig
from sargnn.errors import DataError, StoreError
from sargnn.graph.check import count_classes
from sargnn.graph.dataset import Dataset, open_dataset, write_dataset
from sargnn.graph.manifest import digest_of
from sargnn.graph.schema import Relation, has_label
from sargnn.graph.typed import Edges, homogenize, typed_dataset
from sargnn.partition.prepare import prepare_partition
from sargnn.partition.store import open_part
from tests.graphs import nasty_graph, typed_graph, with_task
from tests.parity.cases import model_config, run_config

TASKS: list[Task] = ["multilabel", "regression"]


def cut(path: Path, store: Path) -> Path:
    """The partition store of a dataset's store, in two parts."""
    config = run_config(model_config("sage"), world=2)
    wanted = PartitionConfig(config.dataset, PartitionerConfig("random", 0, "original"), 2, str(path))
    return prepare_partition(wanted, store).path


@pytest.mark.parametrize("make", [nasty_graph, typed_graph])
@pytest.mark.parametrize("task", TASKS)
def test_stores_and_parts_carry_them(tmp_path: Path, task: Task, make: object) -> None:
    dataset = with_task(nasty_graph() if make is nasty_graph else typed_graph(), task)
    write_dataset(tmp_path / "store", dataset, made_by={})
    found = open_dataset(tmp_path / "store", verify=True)
    assert found.task == task and found.num_classes == 4
    np.testing.assert_array_equal(found.labels, dataset.labels)
    path = cut(tmp_path, tmp_path / "store")
    meta = json.loads((path / "manifest.json").read_text())["meta"]
    assert meta["task"] == task
    for rank in range(2):
        part = open_part(path, rank)
        np.testing.assert_array_equal(part.labels, dataset.labels[part.node_ids])


@pytest.mark.parametrize("task", TASKS)
def test_a_typed_graph_keeps_them(task: Task) -> None:
    dataset = with_task(nasty_graph(), task)
    features = [np.ones((10, 11), np.float32), np.asarray(dataset.features[0])]
    edges = Edges(Relation(0, "to", 1), np.arange(10), np.arange(10))
    typed = typed_dataset("t", 4, ["a", "b"], features, [edges], 1, np.asarray(dataset.labels), np.asarray(dataset.split))
    assert typed.task == task and not has_label(typed.labels[:10]).any()
    np.testing.assert_array_equal(typed.labels[10:], dataset.labels)
    np.testing.assert_array_equal(homogenize(typed).labels, typed.labels)


def test_partitions_of_before_there_were_tasks(tmp_path: Path) -> None:
    write_dataset(tmp_path / "store", nasty_graph(), made_by={})
    path = cut(tmp_path, tmp_path / "store")
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["meta"]["task"], manifest["sha256"]
    (path / "manifest.json").write_text(json.dumps(manifest | {"sha256": digest_of(manifest)}))
    assert cut(tmp_path, tmp_path / "store") == path and open_part(path, 0).labels.ndim == 1


def changed(dataset: Dataset, entry: object, row: int = 7) -> Dataset:
    labels = np.array(dataset.labels)
    labels[row] = entry
    return dataclasses.replace(dataset, labels=labels)


SEVERAL, NUMBERS = (with_task(nasty_graph(), task) for task in TASKS)
IN_SPLIT = int(np.flatnonzero(SEVERAL.split)[3])


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (changed(SEVERAL, [0, 2, 1, 0]), "node 7, column 1.*given:   2.*0, 1, or -1"),
        (changed(SEVERAL, [0, 1, 1, -2]), "node 7, column 3"),
        (changed(NUMBERS, [0, np.inf, 1, 0]), "node 7, column 1.*inf"),
        (changed(NUMBERS, [0, 0, -1e20, 0]), "node 7, column 2.*1e15"),
        (changed(SEVERAL, -1, IN_SPLIT), f"Node {IN_SPLIT} of 'multilabel' .*no label"),
        (changed(NUMBERS, np.nan, IN_SPLIT), f"Node {IN_SPLIT} of 'regression' .*no label"),
        (dataclasses.replace(NUMBERS, num_classes=3), r"labels .*\[300, 4\].*\[300, 3\]"),
        (dataclasses.replace(NUMBERS, labels=NUMBERS.labels[:, 0]), r"labels .*\[300\].*\[300, 4\]"),
        (dataclasses.replace(NUMBERS, labels=NUMBERS.labels.astype(np.float64)), "float64.*float32 .regression."),
        (dataclasses.replace(SEVERAL, num_classes=0, labels=SEVERAL.labels[:, :0]), "no column"),
    ],
)
def test_what_is_refused(tmp_path: Path, dataset: Dataset, words: str) -> None:
    with pytest.raises(DataError, match=f"(?s){words}"):
        write_dataset(tmp_path / "store", dataset, made_by={})
    assert list(tmp_path.iterdir()) == []


def test_columns_are_outputs() -> None:
    assert count_classes(np.asarray(SEVERAL.labels), "file") == count_classes(np.asarray(NUMBERS.labels), "file") == 4
    with pytest.raises(DataError, match="'file' .*row 3, column 1"):
        count_classes(np.array([[0], [1], [5]], np.int8), "file")


def test_another_number_of_outputs_in_a_manifest_is_found(tmp_path: Path) -> None:
    write_dataset(tmp_path / "store", NUMBERS, made_by={})
    path = tmp_path / "store" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["meta"]["num_classes"] = 5
    del manifest["sha256"]
    path.write_text(json.dumps(manifest | {"sha256": digest_of(manifest)}))
    with pytest.raises(StoreError, match=r"labels.npy.*float32 \[300, 4\] instead of float32 \[300, 5\]"):
        open_dataset(tmp_path / "store", verify=False)
