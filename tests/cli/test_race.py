"""``sargnn race``: several ways to train beside one another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sargnn.report.race import Ran, table_of
from sargnn.report.study import RaceSpec
from tests.cli.conftest import Sargnn
from tests.in_process import points_here
from tests.in_process import sargnn_here as run

RACE = """
title: Two ways
common: [dataset.num_nodes=200, model.hidden=8, model.num_layers=2, world=1, eval_every=1, epochs=3, tracking=none]
ways:
  whole: []
  steps: [batches.steps=2, epochs=2]
seeds: 2
targets: [0, 2]
"""


def test_a_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with the time to targets, all figures, a picture; the same command again runs nothing."""
    ran = points_here(monkeypatch, tmp_path)
    (tmp_path / "mine.yaml").write_text(RACE)
    done = run(tmp_path, "race", "mine.yaml")
    assert done.returncode == 0, done.stderr
    *lines, seconds, steps = done.stdout.splitlines()
    assert [seconds, steps] == ["races/mine/seconds.png", "races/mine/steps.png"]
    assert (tmp_path / steps).stat().st_size > 1000
    assert lines[2].startswith("| whole | 3 +- 0 |") and lines[3].startswith("| steps | 4 +- 0 |")
    assert "1 steps | never |" in lines[2] and (tmp_path / "races" / "mine" / "race.md").read_text().endswith(lines[3] + "\n")
    content = json.loads((tmp_path / "races" / "mine" / "race.json").read_text())
    assert [(ran["way"], ran["seed"]) for ran in content["runs"]] == [("whole", 0), ("whole", 1), ("steps", 0), ("steps", 1)]
    assert [point[1] for point in content["runs"][2]["points"]] == [2, 4]
    again = run(tmp_path, "race", "mine.yaml")
    assert len(ran) == 4 and again.returncode == 0 and "4 of 4 points" in again.stderr and again.stdout == done.stdout


def test_a_limit_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points_here(monkeypatch, tmp_path)
    (tmp_path / "mine.yaml").write_text(RACE.replace("seeds: 2", "seeds: 1\nseconds: 0.0001"))
    done = run(tmp_path, "race", "mine.yaml")
    assert done.returncode == 0 and "| whole | 1 |" in done.stdout and "| steps | 2 |" in done.stdout, done.stdout


def test_the_table() -> None:
    spec = RaceSpec(title="", settings=[], series={"a": [], "b": []}, targets=[0.5, 0.9])
    ran = {
        "a": [
            Ran("a", 0, "accuracy", [(1.0, 1, 0.4, 0.3), (2.0, 2, 0.6, 0.5), (3.0, 3, 0.6, 0.9)]),
            Ran("a", 1, "accuracy", [(2.0, 1, 0.5, 0.4)]),
        ],
        "b": [Ran("b", 0, "mse", [(1.0, 5, 0.95, None), (2.0, 9, 0.7, None)])],
    }
    assert table_of(spec, ran)[2:] == [
        "| a | 2 +- 1 | 2.5 +- 0.7 | 0.5500 +- 0.0707 | 0.4500 +- 0.0707 | 2.0 +- 0.0 s, 2 steps | never |",
        "| b | 9 | 2.0 | 0.7000 | - | never | 2.0 s, 9 steps |",
    ]


def test_what_there_is(sargnn: Sargnn) -> None:
    done = sargnn("race")
    assert done.returncode == 0 and "no_communities" in done.stdout and "products" in done.stdout
    for name, ways in (("products", 18), ("no_communities", 18)):
        done = sargnn("race", name, "--dry-run")
        assert done.returncode == 0 and f"{ways} would run" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["no such race", "given:   mine.yaml"]),
        ("title: x\n", ["mine.yaml", "'settings'"]),
        (RACE.replace("seeds: 2", "seeds: 0"), ["'seeds'", "at least 1"]),
        (RACE + "budget: 3\n", ["'budget'"]),
        (RACE.replace("batches.steps=2", "batches.stepz=2"), ["batches.stepz"]),
        ("title: x\ncommon: []\nways: {}\ntargets: []\n", ["ways"]),
    ],
)
def test_mistakes(sargnn: Sargnn, tmp_path: Path, text: str | None, words: list[str]) -> None:
    if text is not None:
        (tmp_path / "mine.yaml").write_text(text)
    done = sargnn("race", "mine.yaml")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
