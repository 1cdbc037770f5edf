"""Faults made on four worker processes, and what a run did about each of them.

Every fault is really made: a signal to a process, a limit on file sizes or memory, a flipped bit. A fault works in a folder of
its own (``prepared``); every process that it started has ended when the folder is left.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sargnn.errors import StoreError
from sargnn.training import checkpoint

ROOT = Path(__file__).parent.parent.parent
WORLD = 4
SMALL = [
    "dataset.num_nodes=1200", "model.hidden=16", "epochs=40", "eval_every=5", "checkpoint.every=2", f"world={WORLD}",
    "tracking=none", "run_dir=run", "processes=null",
]  # fmt: skip


@dataclass
class Result:
    """What a fault did: seconds until all had ended, what was lost, and what was not as it should be."""

    seconds: float = 0.0
    lost: str = "nothing"
    wrong: list[str] = field(default_factory=list)

    def expect(self, holds: bool, what: str) -> None:
        """Note ``what`` unless it holds."""
        if not holds:
            self.wrong.append(what)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sargnn.cli.main", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def sargnn(folder: Path, *arguments: str, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """One command, run to its end."""
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(), capture_output=True, text=True, timeout=300, preexec_fn=limit
    )


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return content


def workers(folder: Path) -> list[int]:
    """Process ids by rank, as their logs have them; of the last start."""
    found = []
    for rank in range(WORLD):
        lines = (folder / "run" / "logs" / f"rank_{rank:02d}.log").read_text().splitlines()
        found.append(int([line for line in lines if ", process " in line][-1].split("process ")[1].split(",")[0]))
    return found


def _hear_all() -> None:
    """Also where the tests run under nohup or in the background."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


class Run:
    """A training under way, past its first checkpoint."""

    def __init__(self, folder: Path, *changes: str, first: str = "checkpoints") -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            command("train", *SMALL, *changes), cwd=folder, env=environment(), stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, text=True, start_new_session=True, preexec_fn=_hear_all,
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while not self._begun(first):
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.process.kill()
                raise AssertionError(f"the run did not begin:\n{self.process.communicate()[1]}")
            time.sleep(0.01)
        self.family = psutil.Process(self.process.pid).children(recursive=True)
        self.pids = workers(folder) if first == "checkpoints" else []

    def _begun(self, first: str) -> bool:
        if first == "checkpoints":
            return bool(checkpoint.existing(self.folder / "run"))
        return (self.folder / "run" / first).exists()

    def ended(self, result: Result, within_s: float) -> str:
        """Wait for the end of the launching process and of all others; its messages."""
        started = time.monotonic()
        _, stderr = self.process.communicate(timeout=120)
        left = psutil.wait_procs(self.family, timeout=max(0.1, within_s - (time.monotonic() - started)))[1]
        result.seconds = time.monotonic() - started
        result.expect(result.seconds <= within_s, f"took {result.seconds:.1f} s")
        result.expect(not left, f"{len(left)} processes were left")
        for process in left:
            process.kill()
        result.expect("Traceback" not in stderr, "a traceback was shown")
        return stderr


def reference(folder: Path) -> list[float]:
    """The losses of a run that nothing happens to."""
    folder.mkdir(parents=True)
    done = sargnn(folder, "train", *SMALL)
    assert done.returncode == 0, done.stderr
    losses: list[float] = summary(folder)["losses"]
    return losses


def goes_on(folder: Path, wanted: list[float], result: Result, *changes: str) -> None:
    """Resume; the whole curve must be the undisturbed one, bit for bit unless something is changed."""
    whole, problems = checkpoint.newest(folder / "run")
    result.expect(whole is not None and not problems, "the newest checkpoint does not load")
    if whole is None:
        return
    reached = (folder / "run" / "metrics.jsonl").read_text().count("\n")
    result.lost = f"{reached - checkpoint.open_checkpoint(whole, verify=False).meta['epoch']} epochs, trained again"
    done = sargnn(folder, "train", "resume=run", *changes)
    result.expect(done.returncode == 0, f"resume failed: {done.stderr[-300:]}")
    if done.returncode == 0:
        losses = summary(folder)["losses"]
        result.expect(len(losses) == len(wanted), f"{len(losses)} losses instead of {len(wanted)}")
        if changes:
            worst = max(abs(a - b) for a, b in zip(losses, wanted, strict=True)) / (1e-4 * wanted[0])
            result.expect(worst <= 1, f"the curve is {worst:.2f} times the tolerance away")
        else:
            result.expect(losses == wanted, "the curve is another one")


def group_wide(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """SIGTERM or SIGHUP to the whole process group, as from a closing terminal or a scheduler."""
    result, run = Result(), Run(folder)
    number = rng.choice([signal.SIGTERM, signal.SIGHUP])
    os.killpg(run.process.pid, number)
    run.ended(result, 15)
    result.expect(run.process.returncode == 128 + number, f"exit code {run.process.returncode}")
    result.expect(summary(folder).get("epoch_time_s") is not None, "the workers wrote no summary")
    goes_on(folder, wanted, result)
    result.expect(result.lost.startswith("0 "), f"lost {result.lost}")
    return result


def early_stop(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """SIGSTOP of a worker before the first epoch; comm.timeout_s=4."""
    result, run = Result(), Run(folder, "comm.timeout_s=4", "epochs=400", first="logs/rank_03.log")
    rank = rng.randrange(WORLD)
    deadline = time.monotonic() + 60
    while not workers_begun(folder) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(workers(folder)[rank], signal.SIGSTOP)
    stderr = run.ended(result, 4 + 12)
    result.expect(f"rank {rank} hangs" in stderr, f"rank {rank} was not named: {stderr[-400:]}")
    result.lost = "nothing was there"
    return result


def workers_begun(folder: Path) -> bool:
    """Whether all workers have written their first line."""
    logs = [folder / "run" / "logs" / f"rank_{rank:02d}.log" for rank in range(WORLD)]
    return all(log.exists() and ", process " in log.read_text() for log in logs)


def in_checkpoint(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """SIGKILL of the rank that writes a checkpoint, while it does."""
    result, run = Result(), Run(folder, "checkpoint.every=1")
    deadline = time.monotonic() + 60
    while not list((folder / "run" / "checkpoints").glob(".epoch_*.tmp")) and time.monotonic() < deadline:
        pass
    os.kill(run.pids[0], signal.SIGKILL)
    stderr = run.ended(result, 10)
    result.expect("rank 0 was killed by SIGKILL" in stderr, "rank and signal were not named")
    goes_on(folder, wanted, result)
    return result


def kill(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """SIGKILL of a random worker at a random moment."""
    result, run = Result(), Run(folder)
    time.sleep(rng.random() * 1.2)
    rank = rng.randrange(WORLD)
    if run.process.poll() is not None:
        result.wrong.append("the run was over before the fault")
        return result
    os.kill(run.pids[rank], signal.SIGKILL)
    stderr = run.ended(result, 10)
    result.expect(run.process.returncode == 1, f"exit code {run.process.returncode}")
    result.expect(f"rank {rank} was killed by SIGKILL" in stderr, "rank and signal were not named")
    goes_on(folder, wanted, result)
    return result


def stop(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """SIGSTOP of a worker; comm.timeout_s=4."""
    result, run = Result(), Run(folder, "comm.timeout_s=4")
    time.sleep(rng.random() * 0.5)
    rank = rng.randrange(WORLD)
    os.kill(run.pids[rank], signal.SIGSTOP)
    stderr = run.ended(result, 4 + 10)
    result.expect(run.process.returncode == 1, f"exit code {run.process.returncode}")
    result.expect(f"rank {rank} hangs" in stderr, f"rank {rank} was not named: {stderr[-400:]}")
    goes_on(folder, wanted, result)
    return result


def launcher(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """SIGKILL of the launching process."""
    result, run = Result(), Run(folder)
    time.sleep(rng.random() * 0.5)
    run.process.kill()
    run.ended(result, 10)
    goes_on(folder, wanted, result)
    return result


def ended_by(number: signal.Signals) -> Callable[[Path, list[float], random.Random], Result]:
    def fault(folder: Path, wanted: list[float], rng: random.Random) -> Result:
        result, run = Result(), Run(folder)
        time.sleep(rng.random() * 0.5)
        run.process.send_signal(number)
        run.ended(result, 15)
        result.expect(run.process.returncode == 128 + number, f"exit code {run.process.returncode}")
        result.expect(summary(folder)["status"] == "interrupted", "the summary does not say so")
        goes_on(folder, wanted, result)
        result.expect(result.lost.startswith("0 "), f"lost {result.lost}")
        return result

    fault.__doc__ = f"{number.name} to the launching process."
    return fault


def restarts(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """SIGKILL of a random worker, comm.max_restarts=1."""
    result, run = Result(), Run(folder, "comm.max_restarts=1")
    os.kill(run.pids[rng.randrange(WORLD)], signal.SIGKILL)
    run.ended(result, 60)
    result.expect(run.process.returncode == 0, f"exit code {run.process.returncode}")
    result.expect(summary(folder)["losses"] == wanted, "the curve is another one")
    return result


def limited(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def disk_checkpoint(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """No file may grow beyond 3 kB while checkpoints are written."""
    result = Result()
    run = Run(folder)
    run.process.send_signal(signal.SIGTERM)
    run.ended(Result(), 15)
    before = [path.name for path in checkpoint.existing(folder / "run")]
    shutil.copy(folder / "run" / "metrics.jsonl", folder / "metrics")
    (folder / "run" / "metrics.jsonl").write_text("")  # else it is the first to hit the limit
    done = sargnn(folder, "train", "resume=run", limit=limited(3000))
    said = "disk is full" in done.stderr and "checkpoint store" in done.stderr
    result.expect(done.returncode == 1 and said, f"it does not say so: {done.stderr[-300:]}")
    result.expect([path.name for path in checkpoint.existing(folder / "run")] == before, "checkpoints changed")
    shutil.copy(folder / "metrics", folder / "run" / "metrics.jsonl")
    goes_on(folder, wanted, result)
    return result


def disk_log(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """No file may grow beyond 9 kB while figures are appended."""
    result = Result()
    done = sargnn(folder, "train", *SMALL, "checkpoint.every=3", limit=limited(9000))
    result.expect(done.returncode == 1 and "disk is full" in done.stderr, f"it does not say so: {done.stderr[-300:]}")
    goes_on(folder, wanted, result)
    return result


def disk_store(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """No file may grow beyond 50 kB while stores are made."""
    result = Result()
    shutil.rmtree(folder / "stores", ignore_errors=True)
    done = sargnn(folder, "train", *SMALL, limit=limited(50_000))
    result.expect(done.returncode == 1 and "disk is full" in done.stderr, f"it does not say so: {done.stderr[-300:]}")
    left = [str(path.relative_to(folder)) for path in (folder / "stores").rglob("*") if path.is_file()]
    result.expect(not left, f"files were left: {left[:3]}")
    return result


def flipped(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """A bit flipped in the newest checkpoint."""
    result, run = Result(), Run(folder)
    time.sleep(0.5)
    run.process.send_signal(signal.SIGTERM)
    run.ended(Result(), 15)
    paths = checkpoint.existing(folder / "run")
    file = rng.choice(sorted(path for path in paths[-1].rglob("*") if path.is_file() and path.stat().st_size > 200))
    content = bytearray(file.read_bytes())
    content[-2 - rng.randrange(64)] ^= 1
    file.write_bytes(bytes(content))
    try:
        checkpoint.open_checkpoint(paths[-1], verify=True)
        result.wrong.append("the damage is not seen")
    except StoreError as error:
        result.expect(file.name in str(error), "the file is not named")
    done = sargnn(folder, "train", "resume=run")
    result.expect(done.returncode == 0 and file.name in done.stderr and "warning" in done.stderr, "no warning names it")
    result.lost = "the epochs since the checkpoint before, trained again"
    if done.returncode == 0:
        result.expect(summary(folder)["losses"] == wanted, "the curve is another one")
    return result


def memory(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """A worker may map no more memory than it has."""
    result = Result()
    run = Run(folder, "dataset.num_nodes=8000", "model.hidden=256", "epochs=100", "checkpoint.every=1")
    rank = rng.randrange(WORLD)
    process = psutil.Process(run.pids[rank])
    size = process.memory_info().vms
    process.rlimit(psutil.RLIMIT_AS, (size, size))
    stderr = run.ended(result, 30)
    result.expect(run.process.returncode == 1, f"exit code {run.process.returncode}")
    said = f"rank {rank} ran out of memory: it asked for" in stderr.lower() and "mode=sar" in stderr
    result.expect(said, f"it does not say so: {stderr[-600:]}")
    result.lost = "the epochs since the last checkpoint"
    return result


def changed(*changes: str) -> Callable[[Path, list[float], random.Random], Result]:
    def fault(folder: Path, wanted: list[float], rng: random.Random) -> Result:
        result, run = Result(), Run(folder)
        run.process.send_signal(signal.SIGTERM)
        run.ended(result, 15)
        goes_on(folder, wanted, result, *changes)
        return result

    fault.__doc__ = f"SIGTERM, then resume with {' '.join(changes)}."
    return fault


def two_at_once(folder: Path, wanted: list[float], rng: random.Random) -> Result:
    """Two runs started together where no store is there."""
    result = Result()
    shutil.rmtree(folder / "stores", ignore_errors=True)
    shared = [one for one in SMALL if not one.startswith("run_dir")]
    started = time.monotonic()
    runs = [
        subprocess.Popen(
            command("train", *shared, f"run_dir={name}"), cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True
        )
        for name in ("run", "other")
    ]
    for process in runs:
        _, stderr = process.communicate(timeout=300)
        result.expect(process.returncode == 0, f"one failed: {stderr[-300:]}")
    result.seconds = time.monotonic() - started
    for name in ("run", "other"):
        losses = json.loads((folder / name / "summary.json").read_text())["losses"]
        result.expect(losses == wanted, f"the curve of {name} is another one")
    stores = [path.name for path in (folder / "stores").glob("*/*")]
    result.expect(len(stores) == 2 and not any(name.startswith(".") for name in stores), f"stores: {stores}")
    return result


FAULTS: dict[str, tuple[Callable[[Path, list[float], random.Random], Result], int]] = {
    "kill": (kill, 30), "in_checkpoint": (in_checkpoint, 5), "group_wide": (group_wide, 4), "early_stop": (early_stop, 2),
    "stop": (stop, 3), "launcher": (launcher, 3), "restarts": (restarts, 2),
    "sigint": (ended_by(signal.SIGINT), 3), "sigterm": (ended_by(signal.SIGTERM), 3),
    "disk_checkpoint": (disk_checkpoint, 1), "disk_log": (disk_log, 1), "disk_store": (disk_store, 1),
    "flipped": (flipped, 3), "memory": (memory, 3),
    "world_2": (changed("world=2"), 1), "world_8": (changed("world=8"), 1), "mode": (changed("mode=domain_parallel"), 1),
    "partitioner": (changed("partitioner=random", "kernel=reference"), 1), "two_at_once": (two_at_once, 2),
}  # fmt: skip
"""Each fault, and how often it is made."""


@contextmanager
def prepared(base: Path, stores: Path, name: str) -> Iterator[Path]:
    """A folder of its own, with the stores of the undisturbed run. All that runs in it ends with it."""
    folder = base / name
    folder.mkdir()
    shutil.copytree(stores, folder / "stores")
    try:
        yield folder
    finally:
        end_processes_in(folder)
        shutil.rmtree(folder, ignore_errors=True)


def end_processes_in(folder: Path) -> None:
    """Kill every process whose working folder is this one or below it, also where its parent is gone."""
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder):
                process.kill()
        except (psutil.Error, OSError):
            continue  # gone, or another user's
