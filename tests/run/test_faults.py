"""A few of the faults of ``tests/long/faults.py``, really made; and what ``resume=`` refuses."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.in_process import sargnn_here as run
from tests.long import faults
from tests.processes import ROOT, search_path
from tests.run.runs import SMALL, summary_of


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    folder = tmp_path_factory.mktemp("undisturbed") / "reference"
    return folder, faults.reference(folder)


@pytest.mark.machine
@pytest.mark.parametrize("name", ["in_checkpoint", "stop", "launcher", "memory"])
def test_fault(undisturbed: tuple[Path, list[float]], tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, *undisturbed, tmp_path, monkeypatch)


@pytest.mark.long
def test_a_worker_that_hangs_is_named_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, on a small graph."""
    few = {"world": 2, "dataset.num_nodes": 300, "epochs": 150, "eval_every": 75, "checkpoint.every": 25}
    kept = [setting for setting in faults.SMALL if setting.partition("=")[0] not in few]
    monkeypatch.setattr(faults, "SMALL", [*kept, *(f"{name}={value}" for name, value in few.items())])
    monkeypatch.setattr(faults, "WORLD", 2)
    reference = tmp_path / "reference"
    check("stop", reference, faults.reference(reference), tmp_path, monkeypatch)


def check(name: str, reference: Path, wanted: list[float], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", search_path(ROOT))
    with faults.prepared(folder, reference / "stores", name) as place:
        result = faults.FAULTS[name][0](place, wanted, random.Random(7))
    assert not result.wrong, result.wrong


def test_a_refused_resume_touches_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "train", "world=2", "tracking=none", *SMALL, "checkpoint.every=null")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run"
    (folder / "summary.json").unlink()  # as if it had been killed
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    done = run(tmp_path, "train", "resume=run")
    assert done.returncode == 1 and "no checkpoint" in done.stderr, done.stderr
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_what_resume_refuses(tmp_path: Path) -> None:
    done = run(tmp_path, "train", "world=2", "tracking=none", *SMALL)
    assert done.returncode == 0, done.stderr
    losses = summary_of(tmp_path / "run")["losses"]
    for arguments, words in (
        (["resume=nowhere"], ["no such run", "nowhere"]),
        (["resume=run"], ["all its epochs", "epochs=MORE goes on", "init_from="]),
        (["resume=run", "optim.lr=0.5", "seed=3"], ["optim.lr: 0.5 instead of 0.01", "seed: 3 instead of 0"]),
        (["resume=run", "epochs=3"], ["trained 4 epochs already", "more than 4"]),
        (["resume=run", "run_dir=other"], ["keeps its folder"]),
        (["resume=run", "skip_finished=true"], ["no setting 'skip_finished'"]),
        (["resume=run", "hydra.mode=RUN"], ["keeps its folder"]),
        (["resume=run", "-m", "world=2,4"], ["sweep"]),
        (["resume=run", "wrld=3"], ["no setting 'wrld'"]),
    ):
        done = run(tmp_path, "train", *arguments)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        assert all(word in done.stderr for word in words), done.stderr
    assert summary_of(tmp_path / "run")["losses"] == losses  # untouched
