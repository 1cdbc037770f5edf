"""Runs whose tables lie on disk: the same losses, figures of the disk, and nothing left behind whatever ends them."""

from __future__ import annotations

import resource
import subprocess
import time
from pathlib import Path

import pytest

from sargnn.errors import ConfigError
from tests.configs import config
from tests.in_process import sargnn_here
from tests.processes import sargnn_command, started_command
from tests.run.runs import summary_of

WORDS = [
    "dataset.num_nodes=6000",
    "model.hidden=256",
    "world=4",
    "threads=1",
    "epochs=4",
    "eval_every=2",
    "comm.aggregate=post",
    "tracking=none",
]
"""Tables of 1.5 MB."""
ON_DISK = ["processes=1", "spill=auto", "memory_budget=128MB"]  # less than the libraries take: all that may go does


def sargnn(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that succeeds."""
    done = sargnn_here(cwd, *words)
    assert done.returncode == 0, done.stderr
    return done


def test_the_same_losses_and_figures_of_the_disk(tmp_path: Path) -> None:
    sargnn("train", *WORDS, "run_dir=memory", cwd=tmp_path)
    done = sargnn("train", *WORDS, *ON_DISK, "spill_dir=tables", "smooth=cs", "run_dir=disk", cwd=tmp_path)
    assert "written to disk" in done.stdout + done.stderr
    expected, found = summary_of(tmp_path / "memory"), summary_of(tmp_path / "disk")
    assert found["losses"] == expected["losses"]
    assert found["disk_written_per_epoch"] > 5e6 and found["disk_read_per_epoch"] > 5e6
    assert len(found["disk_bytes"]) == 1 and expected["disk_bytes"] is None
    assert not list((tmp_path / "tables").iterdir())
    sargnn("predict", "run=disk", cwd=tmp_path)


@pytest.mark.long
def test_it_goes_on_in_other_ways(tmp_path: Path) -> None:
    """In memory, with other processes, and back on disk."""
    sargnn("train", *WORDS, "run_dir=whole", "epochs=6", cwd=tmp_path)
    sargnn("train", *WORDS, *ON_DISK, "run_dir=run", "epochs=2", cwd=tmp_path)
    sargnn("train", "resume=run", "epochs=4", "processes=2", "spill=none", "memory_budget=null", cwd=tmp_path)
    sargnn("train", "resume=run", "epochs=6", "processes=2", "spill=all", cwd=tmp_path)
    # two processes join their parts, whose sums are in another order then
    assert summary_of(tmp_path / "run")["losses"] == pytest.approx(summary_of(tmp_path / "whole")["losses"], rel=1e-5)


@pytest.mark.parametrize("megabytes", [2, *(pytest.param(size, marks=pytest.mark.long) for size in (4, 8, 12, 16))])
def test_a_full_disk_is_one_message(tmp_path: Path, megabytes: int) -> None:
    """Files do not grow beyond so many bytes."""
    size = megabytes << 20
    words = [*WORDS, *ON_DISK, "checkpoint.every=null", "run_dir=run"]
    command = sargnn_command("train", *words)
    with started_command(command, tmp_path, limit=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))) as process:
        _, told = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "disk" in told and "is full" in told and "Traceback" not in told
    assert not list((tmp_path / "run" / "scratch").glob("spill*"))


@pytest.mark.parametrize("after_s", [0.2 * moment for moment in range(10)])
@pytest.mark.long
def test_a_killed_run_leaves_nothing_and_goes_on(tmp_path: Path, after_s: float) -> None:
    words = [*WORDS, *ON_DISK, "epochs=100000", "checkpoint.every=1", "spill_dir=tables", "run_dir=run"]
    with started_command(sargnn_command("train", *words), tmp_path):
        newest = _wait_for_checkpoint(tmp_path, 0)
        time.sleep(after_s)  # and all that the command has started is killed
    assert not list((tmp_path / "tables").iterdir())
    with started_command(sargnn_command("train", "resume=run"), tmp_path):
        assert _wait_for_checkpoint(tmp_path, newest) > newest
    assert not list((tmp_path / "tables").iterdir())


def _wait_for_checkpoint(folder: Path, epoch: int) -> int:
    """The newest one's number of epochs, once that is larger than ``epoch``."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [int("".join(filter(str.isdigit, path.name)) or 0) for path in (folder / "run" / "checkpoints").glob("*[0-9]")]
        if max(found, default=0) > epoch:
            return max(found)
        time.sleep(0.05)
    raise AssertionError("no checkpoint was written")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["spill=auto"], "memory_budget"),
        (["spill=all", "mode=domain_parallel"], "baseline(.|\n)*mode=domain_parallel"),
        (["spill=auto", "memory_budget=1GB", "batches.count=auto"], "batches.count=auto spill=auto"),
    ],
)
def test_what_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*words)


@pytest.mark.long
def test_a_plan_says_what_the_disk_does(tmp_path: Path) -> None:
    words = ["dataset=synthetic", "dataset.num_nodes=6000", "model.hidden=256", "modes=sar", "worlds=4", "spill=auto"]
    lines = sargnn("plan", *words, "memory_budget=500MB", cwd=tmp_path).stderr
    assert all(word in lines for word in ("in memory", "an epoch", "GB/s"))
