"""Several workers in a process: the same losses, one figure of memory for each process, and whatever else a run does."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from sargnn.errors import ConfigError
from sargnn.run.local import crowd_lines
from tests.configs import config
from tests.in_process import sargnn_here
from tests.processes import run_command, sargnn_command, started_command
from tests.run.runs import SMALL, summary_of

POST = "comm.aggregate=post"
"""Rows of ranks in one process are read, whatever else travels, so that messages of processes are rows, too."""


def sargnn(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that succeeds."""
    done = sargnn_here(cwd, *words)
    assert done.returncode == 0, done.stderr
    return done


MORE = ["model=gat", "labels=masked", "precision=bf16", "mode=no_remat"]


@pytest.mark.parametrize(
    ("more", "counts"),
    [
        pytest.param(["model=sage"], (4, 2, 1), marks=pytest.mark.long),
        pytest.param(MORE, (4, 1), marks=pytest.mark.long),
        (MORE, (2, 1)),
    ],
)
def test_the_same_bits_in_any_number_of_processes(tmp_path: Path, more: list[str], counts: tuple[int, ...]) -> None:
    losses = []
    for processes in counts:
        of_run = [f"processes={processes}", f"run_dir=p{processes}"]
        sargnn("train", *SMALL, *more, POST, "tracking=none", "threads=1", *of_run, cwd=tmp_path)
        summary = summary_of(tmp_path / f"p{processes}")
        losses.append(summary["losses"])
        assert summary["processes"] == processes
        figures = [summary[key] for key in ("peak_train_bytes", "peak_rss_bytes", "private_bytes_before_loading")]
        assert [len(figure) for figure in [*figures, *summary["memory_bytes"].values()]] == [processes] * 9
        parts = zip(*summary["memory_bytes"].values(), strict=True)
        assert [sum(of_process) for of_process in parts] == summary["peak_rss_bytes"]
        assert sorted(path.name for path in (tmp_path / f"p{processes}" / "logs").iterdir()) == [
            f"rank_{process:02d}.log" for process in range(processes)
        ]
    assert all(of_processes == losses[0] for of_processes in losses)


def test_everything_else_that_a_run_does(tmp_path: Path) -> None:
    """Resumed in other processes, with Correct & Smooth and predictions."""
    words = [*SMALL, "smooth=cs", "processes=2", "epochs=2", "profile=true", "tracking=none"]
    sargnn("train", *words, cwd=tmp_path)
    resumed = sargnn("train", "resume=run", "epochs=4", "processes=1", cwd=tmp_path)
    assert "4 workers in 1 process" in resumed.stderr
    assert len(summary_of(tmp_path / "run")["losses"]) == 4
    sargnn("predict", "run=run", "processes=1", cwd=tmp_path)


def test_a_signal_asks_for_a_checkpoint(tmp_path: Path) -> None:
    words = [*SMALL, "epochs=100000", "processes=1", "checkpoint.every=null", "tracking=none"]
    with started_command(sargnn_command("train", *words), tmp_path) as process:
        metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
        while not metrics.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode != 0
    assert summary_of(tmp_path / "run")["status"] == "interrupted"
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["processes=3"], "processes=1, processes=2, processes=4"),
        (["processes=1", "mode=domain_parallel"], "a process for each worker"),
        (["processes=1", "memory_budget=1GB"], "A memory budget is kept by"),
        (["processes=1", "comm.backend=mpi"], "MPI has a process for each worker"),
    ],
)
def test_what_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config("world=4", *words)


def test_a_plan_is_of_processes_of_their_own(tmp_path: Path) -> None:
    done = run_command(sargnn_command("plan", "dataset=synthetic", "world=4", "processes=2"), tmp_path)
    assert done.returncode == 1 and "worlds=[2], without processes" in done.stderr


def test_more_processes_than_cores_are_told_what_is_faster() -> None:
    assert crowd_lines(config("world=1")) == []
    (line,) = crowd_lines(config("world=100000"))
    assert line.startswith("100000 processes share ") and "would be faster" in line
