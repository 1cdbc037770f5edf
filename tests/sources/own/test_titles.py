"""What a person is told that a dataset is called, where two functions return the same graph and share its store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.config.run import parse
from sargnn.partition.store import partition_info
from sargnn.training.summary import describe_run
from tests.in_process import sargnn_here

FUNCTIONS = """
def first():
    y = [0, 1, 0, 1, 0, 1]
    mask = [True, True, False, False, False, False]
    return {"edge_index": [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]], "x": [[float(i)] for i in range(6)], "y": y, "train_mask": mask}


second = lambda: first()
"""


def test_equal_graphs_of_two_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "load.py").write_text(FUNCTIONS)
    first, second = (["dataset=python", f"dataset.target=load.py:{name}"] for name in ("first", "second"))
    prepared = [sargnn_here(tmp_path, "prepare", *words) for words in (first, second)]
    assert prepared[0].stdout == prepared[1].stdout  # one store
    assert [done.stderr.splitlines()[-1].partition(":")[0] for done in prepared] == ["first", "second"]
    assert json.loads(sargnn_here(tmp_path, "check", "json=true", *second).stdout)["name"] == "second"
    cut = sargnn_here(tmp_path, "partition", *second, "world=2", "partitioner=range")
    assert "second by range into 2" in cut.stderr
    monkeypatch.chdir(tmp_path)
    config = parse(compose_verb("train", [*second, "world=2"]))
    assert describe_run(config, partition_info(Path(cut.stdout.strip())), None)["dataset"] == "second"
    assert config.dataset.title == "second"
