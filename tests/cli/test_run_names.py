"""A run is named as ``runs/`` has it, wherever a run is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import sargnn
from sargnn.cli.command_line import read_command_line
from sargnn.cli.compose import compose_verb
from sargnn.cli.resume import read_resumed
from sargnn.cli.verbs import VERBS
from sargnn.config.run import parse, save
from sargnn.errors import ConfigError
from tests.cli.conftest import Sargnn


@pytest.fixture
def tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has not begun, as it is called here."""
    monkeypatch.chdir(tmp_path)
    for folder in (Path("runs/tour"), Path("sweeps/abc/000")):
        folder.mkdir(parents=True)
        save(parse(compose_verb("train", ["model=gcn"])), folder / "config.yaml")
    return Path("runs/tour")


@pytest.mark.parametrize("name", ["tour", "runs/tour", "./runs/tour", "abc/000", "abc"])
def test_a_run_is_gone_on_with(tour: Path, name: str) -> None:
    found = read_resumed([f"resume={name}", "world=3"])
    assert found is not None
    config, folder = found
    assert (config.model.name, config.world) == ("gcn", 3) and folder.resolve().name == ("000" if "abc" in name else "tour")


def test_a_run_from_python(tour: Path) -> None:
    assert sargnn.load("tour").folder == tour.resolve()
    with pytest.raises(ConfigError, match="no such run.\n  given:   tuor\n  allowed: tour"):
        sargnn.load("tuor")


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_the_first_word_is_the_run(verb: str) -> None:
    for words in (["tour"], ["run=tour"]):
        assert read_command_line(VERBS[verb], words).settings["run"] == "tour"
    with pytest.raises(ConfigError):
        read_command_line(VERBS[verb], ["tour", "other"])


def test_what_has_not_begun_is_found_by_its_name(sargnn: Sargnn, tour: Path) -> None:
    """The answers are about the run, not about its name."""
    done = sargnn("slurm", "--status", "tour")
    assert done.returncode == 0 and done.stdout.startswith("job"), done.stderr
    assert sargnn("slurm", "--status", "abc").stdout == done.stdout
    assert "not over" in sargnn("track", "tour").stderr
    assert "There are no predictions" in sargnn("evaluate", "tour").stderr
    assert "no whole checkpoint" in sargnn("slurm", "init_from=tour").stderr
