"""A partitioner run on its own, to be compared with others: what it gives, how long it takes, and how much memory.

Each runs in a process of its own, whose memory and that of what it starts is looked at many times a second: pages that are not
a mapped file's, above what the process had before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sargnn.config.partitioner import PartitionerConfig
from sargnn.errors import ConfigError, SargnnError
from sargnn.graph.claim import scratch_folder
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.partition import PARTITIONERS
from sargnn.partition.balance import Room
from sargnn.partition.quality import Quality, quality_of
from sargnn.resolve import resolve

_SETTINGS = ("seed", "imbalance", "balance", "threads", "preset", "passes", "coarsen")
_LOOK_S, _SAID = 0.02, 400


@dataclass(frozen=True)
class Trial:
    """What a partitioner gave, ``part`` int32 [N], how good that is, and what it took."""

    name: str
    seconds: float
    peak_bytes: int
    quality: Quality
    part: np.ndarray


def try_out(name: str, path: Path, world: int, config: PartitionerConfig, room: Room) -> Trial:
    """Run a partitioner on a dataset's store. Raises ``ConfigError`` with its last words where it fails."""
    with scratch_folder(room.folder, ".trial-") as folder:
        settings = {"name": name, **{key: getattr(config, key) for key in _SETTINGS}}
        wanted = {"settings": settings, "path": str(path), "world": world, "folder": str(folder), "buffer": room.buffer_bytes}
        errors = folder / "errors"
        with errors.open("w") as file:
            command = [sys.executable, "-m", "sargnn.partition.trial", json.dumps(wanted)]
            process = subprocess.Popen(command, stderr=file, start_new_session=True)
            peak = _follow(process)
        if process.returncode:
            said = " ".join(errors.read_text().split())[-_SAID:]
            raise ConfigError(f"partitioner={name} failed.", given=said or f"exit code {process.returncode}")
        said_of_itself = json.loads((folder / "figures.json").read_text())
        part = np.load(folder / "part.npy")
    dataset = open_dataset(path, verify=False)
    return Trial(
        name, said_of_itself["seconds"], max(0, peak - said_of_itself["before"]), quality_of(dataset, part, world), part
    )


def _follow(process: subprocess.Popen[bytes]) -> int:
    """Wait for its end; the most memory that it and what it started had."""
    peak = 0
    try:
        while process.poll() is None:
            peak = max(peak, sum(_private(pid) for pid in _family(process.pid)))
            time.sleep(_LOOK_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        process.wait()
    return peak


def _family(process: int) -> Iterator[int]:
    import psutil

    yield process
    try:
        yield from (child.pid for child in psutil.Process(process).children(recursive=True))
    except psutil.NoSuchProcess:
        return


def _private(process: int) -> int:
    """Resident memory that is no file's."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def main(words: Sequence[str]) -> int:
    """Runs a partitioner, whose loops are compiled by then, and says how long it took."""
    wanted = json.loads(words[0])
    dataset = open_dataset(Path(wanted["path"]), verify=False)
    config = PartitionerConfig(order="original", **wanted["settings"])
    assign = resolve("partitioner", PARTITIONERS, config.name)
    folder = Path(wanted["folder"])
    room = Room(folder, wanted["buffer"])
    try:
        _warm_up(assign, config, room)
        before = _private(os.getpid())
        started = time.perf_counter()
        part = assign(dataset, wanted["world"], config, room)
        seconds = time.perf_counter() - started
    except SargnnError as error:
        print(error, file=sys.stderr)
        return 1
    np.save(folder / "part.npy", part)
    (folder / "figures.json").write_text(json.dumps({"seconds": seconds, "before": before}))
    return 0


def _warm_up(assign: object, config: PartitionerConfig, room: Room) -> None:
    """Cut a graph of a few nodes, so that what is compiled is."""
    rng = np.random.default_rng(0)
    n = 512
    source = np.sort(rng.integers(n, size=(n, 4)), 1).astype(np.int32).reshape(-1)
    tiny = Dataset.homogeneous(
        "tiny", 2, np.zeros((n, 1), np.float32), np.zeros(n, np.int64), np.zeros(n, np.uint8), np.arange(n + 1) * 4, source
    )
    assign(tiny, 2, replace(config, passes=1, coarsen="always"), room)  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
