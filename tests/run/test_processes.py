"""Several workers in a process: the same losses, one figure of memory for each process, and whatever else a run does."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from sargnn.errors import ConfigError
from sargnn.run import env
from sargnn.run.local import place_lines
from sargnn.run.worker import less_memory
from tests.configs import config
from tests.in_process import sargnn_here
from tests.processes import run_command, sargnn_command, started_command
from tests.run.runs import SMALL, summary_of

POST = "comm.aggregate=post"
"""Rows of ranks in one process are read, whatever else travels, so that messages of processes are rows, too."""
IN_TURN = "spill=all"
"""Then parts of one process are not joined."""


def sargnn(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that succeeds."""
    done = sargnn_here(cwd, *words)
    assert done.returncode == 0, done.stderr
    return done


MORE = ["model=gat", "labels=masked", "precision=bf16", "mode=no_remat"]


@pytest.mark.parametrize(
    ("more", "counts", "within"),
    [
        pytest.param(["model=sage", IN_TURN], (4, 2, 1), 0.0, marks=pytest.mark.long),
        pytest.param([*MORE, IN_TURN], (4, 1), 0.0, marks=pytest.mark.long),
        ([*MORE, IN_TURN], (2, 1), 0.0),
        pytest.param(["model=gat"], (4, 3, 1), 1e-5, marks=pytest.mark.long),
        pytest.param(["model=rgcn", "dataset=mag_like", "dataset.scale=0.001"], (4, 3, 1), 1e-5, id="typed"),
    ],
)
def test_the_same_losses_in_any_number_of_processes(
    tmp_path: Path, more: list[str], counts: tuple[int, ...], within: float
) -> None:
    """To the last bit where parts of a process take turns; joined they are summed in another order."""
    losses = []
    small = [word for word in SMALL if not (word.startswith("dataset.num") and "dataset=mag_like" in more)]
    for processes in counts:
        of_run = [f"processes={processes}", f"run_dir=p{processes}"]
        sargnn("train", *small, *more, POST, "tracking=none", "threads=1", *of_run, cwd=tmp_path)
        summary = summary_of(tmp_path / f"p{processes}")
        losses.append(summary["losses"])
        assert summary["processes"] == processes and summary["world"] == 4
        figures = [summary[key] for key in ("peak_train_bytes", "peak_rss_bytes", "private_bytes_before_loading")]
        assert [len(figure) for figure in [*figures, *summary["memory_bytes"].values()]] == [processes] * 9
        parts = zip(*summary["memory_bytes"].values(), strict=True)
        assert [sum(of_process) for of_process in parts] == summary["peak_rss_bytes"]
        assert sorted(path.name for path in (tmp_path / f"p{processes}" / "logs").iterdir()) == [
            f"rank_{process:02d}.log" for process in range(processes)
        ]
        joined = processes < 4 and IN_TURN not in more
        assert (summary["planned_alone_bytes"] is not None) == joined
        if processes == 1 and joined:
            assert summary["comm_bytes_per_epoch"] == 0
    for of_processes in losses:
        assert all(abs(a - b) <= within * losses[0][0] for a, b in zip(of_processes, losses[0], strict=True))


def test_everything_else_that_a_run_does(tmp_path: Path) -> None:
    """Resumed in other processes, with Correct & Smooth and predictions."""
    words = [*SMALL, "smooth=cs", "processes=2", "epochs=2", "profile=true", "tracking=none"]
    sargnn("train", *words, cwd=tmp_path)
    resumed = sargnn("train", "resume=run", "epochs=4", "processes=1", cwd=tmp_path)
    assert "4 workers in 1 process" in resumed.stderr
    assert len(summary_of(tmp_path / "run")["losses"]) == 4
    sargnn("predict", "run=run", "processes=1", cwd=tmp_path)


@pytest.mark.long
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
        (["processes=5"], "at most processes=4"),
        (["processes=3", "spill=all"], "processes=1, processes=2, processes=4"),
        (["processes=1", "mode=domain_parallel"], "baseline(.|\n)*mode=domain_parallel"),
        (["processes=1", "memory_budget=1GB"], "memory budget"),
        (["processes=1", "comm.backend=mpi"], "MPI"),
    ],
)
def test_what_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config("world=4", *words)


def test_a_plan_is_of_processes_of_their_own(tmp_path: Path) -> None:
    done = run_command(sargnn_command("plan", "dataset=synthetic", "world=4", "processes=2"), tmp_path)
    assert done.returncode == 1 and "worlds=[2], without processes" in done.stderr


def test_where_workers_live_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(cores: int, *words: str) -> int:
        monkeypatch.setattr(env, "usable_cores", lambda: cores)
        return env.with_processes(config("world=4", *words)).num_processes

    monkeypatch.setattr(env, "_memory_nodes", lambda: [Path()])
    assert (chosen(8), chosen(4), chosen(3), chosen(1)) == (4, 4, 1, 1)
    monkeypatch.setattr(env, "_memory_nodes", lambda: [Path()] * 3)
    assert (chosen(4), chosen(3), chosen(3, "spill=all")) == (4, 3, 1)
    for words in (["mode=domain_parallel"], ["memory_budget=1GB"], ["servers=2"], ["comm.backend=mpi"], ["processes=null"]):
        assert chosen(2, *words) == 4, words
    assert chosen(1, "batches.count=2", "model.norm=batch") == 4 and chosen(1, "batches.count=2", "model.norm=none") == 3
    assert chosen(1, "processes=2") == 2


def test_what_was_chosen_is_told() -> None:
    assert place_lines(config("world=1"), chosen=True) == []
    (line,) = place_lines(config("world=100000", "processes=1", "threads=2"), chosen=True)
    assert all(word in line for word in ("100000 workers", "1 process with 2 threads", "processes=100000"))
    (line,) = place_lines(config("world=100000"), chosen=False)
    assert line.startswith("100000 processes share ") and "would be faster" in line


def test_what_needs_less_memory() -> None:
    assert less_memory(config("world=4"), 1).startswith("spill=auto")
    assert less_memory(config("world=4"), 4).startswith("world=8 on more machines")


def test_a_worker_alone_is_planned(tmp_path: Path) -> None:
    """Near to what it holds; in so small a run what libraries take counts."""
    words = ["dataset.num_nodes=20000", "epochs=2", "eval_every=2", "tracking=none", "threads=1", "run_dir=one", "processes=1"]
    assert "process of its own" in sargnn("train", *words, cwd=tmp_path).stdout
    sargnn("train", *words, "run_dir=four", "processes=4", cwd=tmp_path)
    alone, measured = summary_of(tmp_path / "one")["planned_alone_bytes"], summary_of(tmp_path / "four")["peak_train_bytes"]
    assert max(measured) < alone < 1.5 * max(measured)
