"""The scripts of ``sargnn slurm`` on a real SLURM: same losses as here, time limits, killed tasks, arrays."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.in_process import sargnn_here
from tests.processes import family, run_command, started_command
from tests.slurm.cluster import Cluster, missing

REASON = missing()


def needs_slurm(test: Callable[..., None]) -> Callable[..., None]:
    """A test of jobs on a SLURM of the tests' own."""
    return pytest.mark.skipif(REASON is not None, reason=str(REASON))(test)


EPOCHS = 100
RUN = ["model=sage", "model.hidden=16", "mode=sar", "world=2", "threads=1", "tracking.experiment=jobs", "comm.aggregate=post"]
"""What travels in a job as in a local run, whose sums come in the same order then."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder / "slurm_of_the_test")
    # As the tests' own environment says one thread; a user's says nothing.
    cluster.environment.pop("OMP_NUM_THREADS", None)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def losses(folder: Path) -> list[float]:
    """Of an uninterrupted local run; those of fewer epochs are its first ones."""
    sargnn(folder, dict(os.environ), "train", *RUN, f"epochs={EPOCHS}", "run_name=local", "tracking=none")
    return list(summary(folder / "runs" / "local")["losses"])


def sargnn(folder: Path, environment: dict[str, str], *words: str) -> str:
    """A command's output. Called here: a job that it submits inherits its environment, and with it would be one of those that
    end with a command of a test."""
    with patch.dict(os.environ, environment, clear=True):
        done = sargnn_here(folder, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def summary(run_dir: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return content


def submitted(folder: Path, cluster: Cluster, name: str, *words: str) -> str:
    """Write a script and submit it; the job's number."""
    out = sargnn(folder, cluster.environment, "slurm", *RUN, f"run_name={name}", "slurm.submit=true", *words)
    found = re.search(r"^job (\d+)$", out, flags=re.M)
    assert found, out
    return found.group(1)


def output(run_dir: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(run_dir.glob("slurm-*.out")))


def epochs_of(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def process_of(run_dir: Path, rank: int) -> int:
    found = re.search(r"process (\d+)", (run_dir / "logs" / f"rank_{rank:02d}.log").read_text())
    assert found
    return int(found.group(1))


def wait_for_epochs(cluster: Cluster, job: str, run_dir: Path, epochs: int) -> None:
    for _ in range(1200):
        if epochs_of(run_dir) >= epochs:
            return
        assert cluster.state(job) in ("PENDING", "CONFIGURING", "RUNNING"), output(run_dir)
        time.sleep(0.1)
    raise TimeoutError(output(run_dir))


@needs_slurm
@pytest.mark.long
def test_two_nodes_give_the_local_losses(folder: Path, cluster: Cluster) -> None:
    run_dir = folder / "runs" / "pair"
    job = submitted(folder, cluster, "pair", "slurm.nodes=2", "world=4", "epochs=150")
    wait_for_epochs(cluster, job, run_dir, 1)
    shown = sargnn(folder, cluster.environment, "slurm", "--status", "runs/pair")
    assert f"job {job}: RUNNING on n[1-2]" in shown and re.search(r"epoch \d+ of 150", shown)
    # A second job of the same run ends at once, and the first one does not mind.
    second = cluster.call("sbatch", "--parsable", str(folder / "slurm" / "pair.sbatch")).strip()
    assert cluster.wait(second) == "FAILED"
    assert cluster.wait(job) == "COMPLETED", output(run_dir)
    assert "another process" in output(run_dir)
    result = summary(run_dir)
    # A node is a server: sums are rounded in the order of the servers.
    same = ("world=4", "servers=2", "epochs=150", "run_name=pair_here", "tracking=none")
    sargnn(folder, dict(os.environ), "train", *RUN, *same)
    assert result["status"] == "finished" and result["losses"] == summary(folder / "runs" / "pair_here")["losses"]
    for rank in range(4):
        log = (run_dir / "logs" / f"rank_0{rank}.log").read_text()
        assert f"rank {rank} of 4" in log and "terminate" not in log
    assert "srun: error" not in output(run_dir)
    shown = sargnn(folder, cluster.environment, "slurm", "--status", "runs/pair")
    assert "COMPLETED" in shown and "finished" in shown
    # Submitted again it finds nothing to do.
    third = cluster.call("sbatch", "--parsable", str(folder / "slurm" / "pair.sbatch")).strip()
    assert cluster.wait(third) == "COMPLETED"
    assert "nothing to do" in output(run_dir)


@pytest.mark.machine
@needs_slurm
def test_the_time_limit_brings_a_checkpoint_and_a_second_start(folder: Path, cluster: Cluster, losses: list[float]) -> None:
    run_dir = folder / "runs" / "limited"
    words = ["slurm.nodes=2", "slurm.time=5", "slurm.signal_s=50", f"epochs={EPOCHS}", "checkpoint.every=null"]
    job = submitted(folder, cluster, "limited", *words)
    wait_for_epochs(cluster, job, run_dir, 1)
    cluster.call("scontrol", "update", f"JobId={job}", "TimeLimit=1")  # five minutes are long for a test
    workers = [process_of(run_dir, rank) for rank in range(2)]
    for pid in workers:  # so that they have not ended when it comes, however fast they are
        os.kill(pid, signal.SIGSTOP)
    for _ in range(900):
        if "limit is near" in output(run_dir):
            break
        time.sleep(0.1)
    for pid in workers:
        os.kill(pid, signal.SIGCONT)
    assert cluster.wait(job, "PENDING") == "PENDING", output(run_dir)
    trained = len(summary(run_dir)["losses"])
    assert 0 < trained < EPOCHS
    cluster.call("scontrol", "update", f"JobId={job}", "TimeLimit=10")
    assert cluster.wait(job) == "COMPLETED", output(run_dir)
    assert summary(run_dir)["losses"] == losses
    record = json.loads((run_dir / "job.json").read_text())
    assert [(start["restarts"], start["epoch"]) for start in record["starts"]] == [(0, 0), (1, trained)]
    text = output(run_dir)
    assert "limit is near" in text and "queued again" in text and f"on after epoch {trained}" in text
    assert "queued again once" in sargnn(folder, cluster.environment, "slurm", "--status", "runs/limited")


@pytest.mark.machine
@needs_slurm
def test_a_killed_task_ends_the_job_and_the_next_submission_goes_on(
    folder: Path, cluster: Cluster, losses: list[float]
) -> None:
    run_dir = folder / "runs" / "killed"
    job = submitted(folder, cluster, "killed", "slurm.nodes=2", "checkpoint.every=10", f"epochs={EPOCHS}")
    wait_for_epochs(cluster, job, run_dir, 15)
    os.kill(process_of(run_dir, 1), signal.SIGKILL)
    killed_at = time.monotonic()
    while cluster.call("squeue", "--noheader", "--steps", f"{job}.1").strip():
        time.sleep(0.1)
    assert time.monotonic() - killed_at < 10
    assert cluster.wait(job) == "FAILED"
    assert time.monotonic() - killed_at < 40  # with the report and the last figures for MLflow
    assert "task 1: Killed" in output(run_dir) and summary(run_dir)["status"] == "failed"
    assert "failed: The workers" in sargnn(folder, cluster.environment, "slurm", "--status", "runs/killed")
    again = cluster.call("sbatch", "--parsable", str(folder / "slurm" / "killed.sbatch")).strip()
    assert cluster.wait(again) == "COMPLETED", output(run_dir)
    assert "on after epoch 1" in output(run_dir)
    assert summary(run_dir)["losses"] == losses


@pytest.mark.machine
@needs_slurm
def test_a_cancelled_job_leaves_a_checkpoint(folder: Path, cluster: Cluster, losses: list[float]) -> None:
    run_dir = folder / "runs" / "cancelled"
    job = submitted(folder, cluster, "cancelled", "epochs=100000", "checkpoint.every=null", "slurm.nodes=2")
    wait_for_epochs(cluster, job, run_dir, 5)
    cluster.call("scancel", job)
    assert cluster.wait(job) == "CANCELLED"
    for _ in range(100):
        if (run_dir / "summary.json").exists():
            break
        time.sleep(0.1)
    trained = summary(run_dir)["losses"]
    assert summary(run_dir)["status"] == "interrupted" and trained[:EPOCHS] == losses[: len(trained)]
    assert list((run_dir / "checkpoints").glob(f"*{len(trained)}*"))


@pytest.mark.machine
@needs_slurm
def test_an_array_gives_a_run_in_mlflow_for_every_point(folder: Path, cluster: Cluster) -> None:
    words = ["slurm", "-m", "debug=tiny", "model=sage,gat", "world=2", "tracking=mlflow"]
    out = sargnn(folder, cluster.environment, *words, "slurm.array=true", "slurm.submit=true")
    found = re.search(r"^job (\d+)$", out, flags=re.M)
    assert found, out
    points = sorted((folder / "sweeps").glob("*/*/config.yaml"))
    assert len(points) == 2
    for number in range(2):
        state = cluster.wait(f"{found.group(1)}_{number}", seconds=300)
        assert state == "COMPLETED", [path.read_text() for path in points[0].parent.parent.glob("slurm-*.out")]
    for point in points:
        assert summary(point.parent)["status"] == "finished"
    database = sqlite3.connect(folder / "mlflow.db")
    query = "select status from runs join experiments using (experiment_id) where experiments.name = 'sargnn'"
    assert database.execute(query).fetchall() == [("FINISHED",)] * 2
    sweep = points[0].parent.parent
    shown = sargnn(folder, cluster.environment, "slurm", "--status", str(sweep))
    assert len(shown.splitlines()) == 2 and shown.count("COMPLETED") == 2


@pytest.mark.machine
@needs_slurm
def test_one_command_submits_all_points_and_their_losses_are_the_same(folder: Path, cluster: Cluster) -> None:
    words = ["-m", "debug=tiny", "world=1,2", "tracking=mlflow", "tracking.experiment=sweep"]
    out = sargnn(folder, cluster.environment, "slurm", *words, "slurm.ntasks_per_node=1")
    command = shlex.split(out.splitlines()[-1])  # not by run_command: the jobs would end with it
    done = subprocess.run(command, cwd=folder, env=cluster.environment, capture_output=True, text=True)
    jobs = re.findall(r"^job (\d+): world=\d$", done.stdout, flags=re.M)
    assert done.returncode == 0 and len(jobs) == 2, done.stderr
    sweep = folder / "sweeps" / Path(command[1]).parent.name.removeprefix("sweep-")
    points = [sweep / "000", sweep / "001"]
    shown = sargnn(folder, cluster.environment, "slurm", "--status", str(sweep))
    assert all(f"{point.name}: job {job}: " in shown for point, job in zip(points, jobs, strict=True))
    for point, job in zip(points, jobs, strict=True):
        assert cluster.wait(job, seconds=300) == "COMPLETED", output(point)
    one, two = (summary(point) for point in points)
    assert (one["world"], two["world"]) == (1, 2)
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-4)
    database = sqlite3.connect(folder / "mlflow.db")
    query = "select status from runs join experiments using (experiment_id) where experiments.name = 'sweep'"
    assert database.execute(query).fetchall() == [("FINISHED",)] * 2
    again = sargnn(folder, cluster.environment, "slurm", *words)
    assert again.count("finished, left out") == 2 and "sargnn compare" in again
    assert sargnn(folder, dict(os.environ), "train", *words).count("skipped") == 2


@pytest.mark.machine
@needs_slurm
def test_every_job_is_in_mlflow_once(folder: Path, cluster: Cluster) -> None:
    """Runs after those above: a run that was queued again or submitted again is one run there."""
    database = sqlite3.connect(folder / "mlflow.db")
    query = "select runs.name, runs.status from runs join experiments using (experiment_id) where experiments.name = 'jobs'"
    found = dict(sorted(database.execute(query).fetchall()))
    assert len(found) == len(database.execute(query).fetchall())
    assert found.get("limited") == found.get("killed") == "FINISHED"
    query = "select count(*), count(distinct step) from metrics join runs using (run_uuid) where key = 'loss' and runs.name = ?"
    assert database.execute(query, ("limited",)).fetchone() == (EPOCHS, EPOCHS)


@pytest.mark.machine
@needs_slurm
def test_sbatch_reads_a_quoted_name_as_it_was_given(folder: Path, cluster: Cluster) -> None:
    name = 'it\'s "quoted" $(touch PWNED) `touch PWNED` \\ #50% {done}'
    escaped = name.replace('"', '\\"')
    out = sargnn(
        folder, cluster.environment, "slurm", "debug=tiny", "run_name=named", f'slurm.job_name="{escaped}"', "slurm.submit=true"
    )
    job = re.search(r"^job (\d+)$", out, flags=re.M)
    assert job, out
    cluster.call("scancel", job.group(1))
    assert f"JobName={name}" in cluster.call("scontrol", "show", "job", job.group(1))
    assert not list(folder.rglob("PWNED"))


@pytest.mark.machine
def test_torchrun_starts_a_prepared_run(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    sargnn(tmp_path, environment, "slurm", "debug=tiny", "world=2", "tracking=none", "comm.aggregate=post", "run_name=torchrun")
    run_dir = tmp_path / "runs" / "torchrun"

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        return run_command([sys.executable, *words], tmp_path, environment=environment, timeout_s=300)

    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "sargnn.run.task", "runs/torchrun"]
    early = python(*start)
    assert early.returncode != 0 and "not prepared" in early.stderr
    assert python("-m", "sargnn.run.job", "begin", "runs/torchrun").returncode == 0
    done = python(*start)
    assert done.returncode == 0, done.stderr
    sargnn(tmp_path, environment, "train", "debug=tiny", "world=2", "tracking=none", "comm.aggregate=post", "run_name=local")
    assert summary(run_dir)["losses"] == summary(tmp_path / "runs" / "local")["losses"]
    assert python("-m", "sargnn.run.job", "end", "runs/torchrun").returncode == 0
    alone = python("-m", "sargnn.run.task", "runs/torchrun")
    assert alone.returncode == 1 and "Neither SLURM nor torchrun" in alone.stderr


@pytest.mark.machine
def test_tasks_of_a_job_meet_at_rank_zero(tmp_path: Path) -> None:
    """As srun starts them on one node; a task without the run's token does not take part."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    words = ["debug=tiny", "world=2", "tracking=none", "comm.aggregate=post"]
    sargnn(tmp_path, environment, "slurm", *words, "run_name=job", "comm.timeout_s=60", "epochs=200", "eval_every=200")
    run_dir = tmp_path / "runs" / "job"
    begun = run_command([sys.executable, "-m", "sargnn.run.job", "begin", str(run_dir)], tmp_path, timeout_s=300)
    assert begun.returncode == 0, begun.stderr
    assert (run_dir / ".token").stat().st_mode & 0o777 == 0o600
    with socket.create_server(("127.0.0.1", 0)) as probe:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "GLOO_SOCKET_IFNAME": "lo"}
    with ExitStack() as stack:
        tasks = []
        for rank in range(2):
            command = [sys.executable, "-m", "sargnn.run.task", str(run_dir)]
            slurm = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_LOCALID": str(rank), "SLURM_NNODES": "1"}
            tasks.append(stack.enter_context(started_command(command, tmp_path, environment=environment | meeting | slurm)))
        for _ in range(2400):
            if epochs_of(run_dir):
                break
            assert all(task.poll() is None for task in tasks), [path.read_text() for path in run_dir.glob("logs/*")]
            time.sleep(0.05)
        listening = [one for process in family() for one in process.net_connections("inet") if one.status == "LISTEN"]
        assert len(listening) >= 3 and {one.laddr.ip for one in listening} == {"127.0.0.1"}
        for task in tasks:
            _, stderr = task.communicate(timeout=300)
            assert task.returncode == 0, stderr
    sargnn(tmp_path, environment, "train", *words, "run_name=local", "epochs=200", "eval_every=200")
    assert summary(run_dir)["losses"] == summary(tmp_path / "runs" / "local")["losses"]
