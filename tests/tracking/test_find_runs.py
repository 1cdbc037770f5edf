"""A run is found by its folder, its name, its sweep, or a pattern."""

from __future__ import annotations

from pathlib import Path

import pytest

from sargnn.errors import ConfigError
from sargnn.tracking.find_runs import find_run, find_runs, run_names


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("runs/gat", "runs/sage", "runs/sage-2", "sweeps/3f/000", "sweeps/3f/001", "elsewhere/old"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").touch()
    (tmp_path / "runs" / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("word", "runs"),
    {
        "sage": ["runs/sage"],
        "runs/sage": ["runs/sage"],
        "runs/sage/": ["runs/sage"],
        "sage*": ["runs/sage", "runs/sage-2"],
        "runs": ["runs/gat", "runs/sage", "runs/sage-2"],
        "3f": ["sweeps/3f/000", "sweeps/3f/001"],
        "sweeps/3f/": ["sweeps/3f/000", "sweeps/3f/001"],
        "sweeps/*": ["sweeps/3f/000", "sweeps/3f/001"],
        "sweeps/*/*1": ["sweeps/3f/001"],
        "3f/001": ["sweeps/3f/001"],
        "elsewhere/old": ["elsewhere/old"],
        "elsewhere": ["elsewhere/old"],
    }.items(),
)
def test_found(word: str, runs: list[str]) -> None:
    assert find_runs(word) == [Path(run) for run in runs]


def test_an_absolute_folder_and_one_of_the_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert find_run(str(folder / "runs" / "gat")) == folder / "runs" / "gat"
    assert find_run("~/elsewhere/old") == folder / "elsewhere" / "old"


def test_none(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such run.\n  given:   sagge\n  allowed: sage, sage-2"):
        find_run("sagge")
    with pytest.raises(ConfigError, match="holds config.yaml"):
        find_run("runs/empty")
    with pytest.raises(ConfigError, match="several"):
        find_run("sage*")


def test_names() -> None:
    assert set(run_names()[:3]) == {"gat", "sage", "sage-2"} and run_names()[3:] == ["3f/000", "3f/001"]
