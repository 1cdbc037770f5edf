"""Several hosts: runs that torchrun starts, files that a host needs, and links and hosts that fail, on network namespaces."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import make_hosts, script
from tests.processes import run_command
from tests.run.runs import summary_of

pytestmark = pytest.mark.machine

TIMEOUT_S, MORE_S = 6, 10
COMMON = ["model.hidden=16", "model.num_layers=2", "checkpoint.every=1", "tracking=none", "threads=1"]
LONG = [
    *COMMON, "dataset=synthetic", "dataset.num_nodes=900", "dataset.num_features=64", "model=gat", "epochs=40", "eval_every=40",
    f"comm.timeout_s={TIMEOUT_S}", "world=3",
]  # fmt: skip
TYPED = [*COMMON, "dataset=mag_like", "dataset.scale=0.001", "model=rgcn", "epochs=4", "eval_every=2", "world=4"]
AS_ON_HOSTS = "comm.aggregate=fastest"
"""What a run on one machine does otherwise; so it does with several workers in a process."""
SARGNN = ["-c", "from sargnn.cli.main import main; import sys; sys.exit(main())"]
TASK = ["-m", "sargnn.run.task", "runs/run"]


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command([sys.executable, *words], folder, environment=_environment(), timeout_s=300)


def prepare(folder: Path, settings: list[str]) -> Path:
    """A run that is ready to be started."""
    written = python(folder, *SARGNN, "slurm", *settings, "run_name=run")
    assert written.returncode == 0, written.stderr
    begun = python(folder, "-m", "sargnn.run.job", "begin", "runs/run")
    assert begun.returncode == 0, begun.stderr
    return folder / "runs" / "run"


def start(hosts: Any, folder: Path, host: int, **changes: str) -> subprocess.Popen[str]:
    """A worker per host."""
    environment = _environment() | script.variables(hosts, host, None, ranks=True) | changes
    process: subprocess.Popen[str] = hosts.start(host, [sys.executable, *TASK], environment, folder, stdout=subprocess.PIPE)
    return process


def wait_for_epochs(run: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        rows = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
        if len(rows) >= count and any((run / "checkpoints").glob("epoch_*")):
            return
        time.sleep(0.05)
    raise AssertionError("no epochs")


def ended(processes: list[subprocess.Popen[str]], since: float) -> list[str]:
    """What each has said, once all have failed within the time that is promised."""
    said = []
    for process in processes:
        left = since + TIMEOUT_S + MORE_S - time.monotonic()
        try:
            out, _ = process.communicate(timeout=max(0.1, left))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"a host still waits {TIMEOUT_S + MORE_S} s later") from None
        assert process.returncode != 0
        said.append(out)
    print(f"all had ended {time.monotonic() - since:.1f} s after the fault")
    return said


def wait_for_starts(run: Path, count: int) -> float:
    """The moment at which all three workers have been there ``count`` times: loading torch takes them seconds."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if all(
            (run / "logs" / f"rank_{rank:02d}.log").exists() and log(run, rank).count(", process ") >= count
            for rank in range(3)
        ):
            return time.monotonic()
        time.sleep(0.05)
    raise AssertionError("not all workers have started")


def log(run: Path, rank: int) -> str:
    return (run / "logs" / f"rank_{rank:02d}.log").read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    folder = tmp_path_factory.mktemp("undisturbed")
    done = python(folder, *SARGNN, "train", *LONG, AS_ON_HOSTS, "processes=3")
    assert done.returncode == 0, done.stderr
    losses: list[float] = summary_of(next((folder / "runs").iterdir()))["losses"]
    return losses


def finish(folder: Path, run: Path, undisturbed: list[float]) -> None:
    """Start it again: it goes on from its newest checkpoint, and comes to the losses of a run that nothing has disturbed."""
    assert python(folder, "-m", "sargnn.run.job", "begin", "runs/run").returncode == 0
    with make_hosts(3) as hosts:
        processes = [start(hosts, folder, host) for host in range(3)]
        for process in processes:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0, out + log(run, 0)
    assert re.search(r"goes on after epoch \d+", log(run, 0))
    assert summary_of(run)["losses"] == undisturbed


@pytest.mark.parametrize("fault", [pytest.param("link", marks=pytest.mark.long), "host"])
def test_a_host_is_gone_in_mid_epoch(tmp_path: Path, undisturbed: list[float], fault: str) -> None:
    """Its link is cut, or its power: all others end in time and say which host does not answer, and the run goes on later."""
    with make_hosts(3, rate="8mbit") as hosts:
        run = prepare(tmp_path, LONG)
        processes = [start(hosts, tmp_path, host) for host in range(3)]
        wait_for_epochs(run, 2)
        hosts.cut(2)
        since = time.monotonic()
        if fault == "host":
            hosts.kill(2)
        ended(processes if fault == "link" else processes[:2], since)
        processes[2].communicate()
        for rank in (0, 1):
            lines = [line for line in log(run, rank).splitlines() if "does not answer" in line]
            assert lines and all(f"host host2 ({hosts.address(2)}) does not answer" in line for line in lines), log(run, rank)
        if fault == "link":
            assert f"host host0 ({hosts.address(0)}), host host1 ({hosts.address(1)}) do not answer" in log(run, 2)
    finish(tmp_path, run, undisturbed)


def test_a_worker_that_is_killed_is_named_with_its_host(tmp_path: Path) -> None:
    with make_hosts(3, rate="8mbit") as hosts:
        run = prepare(tmp_path, LONG)
        processes = [start(hosts, tmp_path, host) for host in range(3)]
        wait_for_epochs(run, 1)
        since = time.monotonic()
        hosts.kill(1)
        ended(processes, since)
        assert any(f"host host1 ({hosts.address(1)})" in log(run, rank) for rank in (0, 2)), log(run, 0) + log(run, 2)


@pytest.mark.long
@pytest.mark.parametrize("preload", ["none", "shared"])
def test_a_worker_of_the_other_server_dies(tmp_path: Path, preload: str) -> None:
    """Two hosts of two workers: those of the other server end in time and name the host; the run goes on later."""
    settings = [*LONG[:-1], "world=4", "servers=2", f"preload={preload}", "model=sage", "epochs=40", "eval_every=40"]
    with make_hosts(2, rate="8mbit") as hosts:
        run = prepare(tmp_path, settings)
        processes = start_servers(hosts, tmp_path)
        wait_for_epochs(run, 2)
        victims = hosts.processes(1)
        since = time.monotonic()
        os.kill(max(victims), signal.SIGKILL)
        ended(processes, since)
        logs = log(run, 0) + log(run, 1)
        assert f"host host1 ({hosts.address(1)})" in logs and re.search(r"Rank [01] lost rank [23]", logs), logs
    assert python(tmp_path, "-m", "sargnn.run.job", "begin", "runs/run").returncode == 0
    with make_hosts(2) as hosts:
        for process in start_servers(hosts, tmp_path):
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0, out + log(run, 0)
    summary = summary_of(run)
    assert summary["status"] == "finished" and len(summary["losses"]) == 40 and summary["servers"] == 2
    single = python(tmp_path, *SARGNN, "train", *settings[:-5], "model=sage", "epochs=40", "eval_every=40", "run_name=one")
    assert single.returncode == 0, single.stderr
    alone = summary_of(tmp_path / "runs" / "one")
    assert summary["losses"] == pytest.approx(alone["losses"], abs=1e-4 * alone["losses"][0])
    flat, own = alone["between_servers_bytes_per_epoch"], summary["between_servers_bytes_per_epoch"]
    assert flat == 0 and own > 0


def start_servers(hosts: Any, folder: Path) -> list[subprocess.Popen[str]]:
    """Two workers on each of two hosts."""
    found = []
    for rank in range(4):
        own = script.variables(hosts, rank // 2, None, ranks=True, local=rank % 2, each=2)
        environment = _environment() | own
        found.append(hosts.start(rank // 2, [sys.executable, *TASK], environment, folder, stdout=subprocess.PIPE))
    return found


def test_workers_that_cannot_meet(tmp_path: Path) -> None:
    """One looks for the others where nobody is; one tells them an address that only it has."""
    with make_hosts(3) as hosts:
        run = prepare(tmp_path, LONG)
        nobody = {"MASTER_ADDR": f"{hosts.network}.99"}
        processes = [start(hosts, tmp_path, host, **(nobody if host == 1 else {})) for host in range(3)]
        ended(processes, wait_for_starts(run, 1))
        assert "rank 1 did not come" in log(run, 0), log(run, 0)
        assert f"{hosts.network}.99" in log(run, 1) and "does not answer" in log(run, 1)
        wrong = {"GLOO_SOCKET_IFNAME": "lo"}
        processes = [start(hosts, tmp_path, host, **(wrong if host == 2 else {})) for host in range(3)]
        ended(processes, wait_for_starts(run, 2))
        assert "Host host2 takes itself for 127.0.0.1" in log(run, 2) and "eth0" in log(run, 2)
        assert "rank 2 did not come" in log(run, 0).split("process")[-1]


@pytest.mark.parametrize("shared", [pytest.param(True, marks=pytest.mark.long), False])
def test_torchrun_on_two_hosts(tmp_path: Path, shared: bool) -> None:
    """Two workers on each; without a shared file system every host gets the files of its own workers only."""
    with make_hosts(2) as hosts:
        run = prepare(tmp_path, TYPED)
        folders = [tmp_path, tmp_path if shared else tmp_path / "other"]
        if not shared:
            needed = python(tmp_path, "-m", "sargnn.run.job", "files", "runs/run", "2", "3")
            assert needed.returncode == 0, needed.stderr
            for name in needed.stdout.splitlines():
                (folders[1] / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tmp_path / name, folders[1] / name)
            assert not list(folders[1].rglob("part_000")) and list(folders[1].rglob("part_002"))
            for rank in (2, 3):  # host 0 does not have what host 1 reads
                (part,) = (tmp_path / "stores").rglob(f"part_{rank:03}")
                part.rename(part.with_name(f"gone_{rank}"))
        processes = []
        for host in range(2):
            words = [
                sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={host}", "--nproc-per-node=2",
                f"--master-addr={hosts.address(0)}", "--master-port=29500", *TASK,
            ]  # fmt: skip
            environment = _environment() | {"GLOO_SOCKET_IFNAME": "eth0"}
            processes.append(hosts.start(host, words, environment, folders[host], stdout=subprocess.PIPE))
        for process in processes:
            out, _ = process.communicate(timeout=200)
            assert process.returncode == 0, out
        summary = summary_of(run)
        assert summary["hosts"] == ["host0", "host0", "host1", "host1"]
        assert summary["status"] == "finished" and len(summary["losses"]) == 4
        for gone in tmp_path.glob("stores/*/*/gone_*"):
            gone.rename(gone.with_name(f"part_{int(gone.name[5:]):03}"))
        local = python(tmp_path, *SARGNN, "train", *TYPED, AS_ON_HOSTS, "processes=4", "run_name=local")
        assert local.returncode == 0, local.stderr
        assert summary_of(tmp_path / "runs" / "local")["losses"] == summary["losses"]


def test_the_script_runs_a_command_on_every_host(tmp_path: Path) -> None:
    if why := script.why_not():
        pytest.skip(why)
    path = Path(script.__file__)
    words = [sys.executable, str(path), "--hosts", "2", "--rate", "50mbit", "--folder", str(tmp_path), "sh", "-c"]
    words.append("hostname; pwd; echo {host} of {hosts} $MASTER_ADDR; test {host} = 0")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1  # host 1's
    for host in range(2):
        said = [line for line in done.stdout.splitlines() if line.startswith(f"host{host}: ")]
        wanted = [f"host{host}", str(tmp_path / f"host{host}"), f"{host} of 2 10.77.0.1"]
        assert said == [f"host{host}: {line}" for line in wanted]
    assert not [
        line for line in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout.splitlines() if "sargnn" in line
    ]
