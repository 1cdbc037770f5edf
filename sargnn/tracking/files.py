"""The files of a run folder.

``config.yaml`` the resolved configuration, ``inputs.json`` where the partition store lies and what started the run,
``mlflow.json`` where its figures were sent, ``metrics.jsonl`` a line per epoch, ``summary.json`` the result,
``logs/rank_00.log`` ... what each worker printed; with ``profile=true`` also ``traces/rank_00.json`` ..., which Perfetto and
Chrome show.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
CONFIG = "config.yaml"
INPUTS = "inputs.json"
MLFLOW = "mlflow.json"


def log_path(run_dir: Path, rank: int) -> Path:
    """Where a worker's output goes."""
    return run_dir / "logs" / f"rank_{rank:02d}.log"


def trace_path(run_dir: Path, rank: int) -> Path:
    """Where a worker's trace goes."""
    return run_dir / "traces" / f"rank_{rank:02d}.json"


def append_metrics(run_dir: Path, row: dict[str, Any]) -> None:
    """Append one epoch's figures as one line, in one write."""
    with (run_dir / METRICS).open("a") as file:
        file.write(json.dumps(row) + "\n")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file under a temporary name, then rename it: readers see it whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's content."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def keep_metrics(run_dir: Path, epochs: int) -> None:
    """Drop the lines of epochs from ``epochs`` on, and what is no whole line: a run goes on from there."""
    path = run_dir / METRICS
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["epoch"] < epochs:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            break
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text("".join(f"{line}\n" for line in kept))
    temporary.replace(path)


class MetricsTail:
    """Reads the new whole lines of a growing ``metrics.jsonl``, each epoch once, also where the file was cut back.

    Args:
        seen: epochs before this one are of no interest.
    """

    def __init__(self, run_dir: Path, seen: int = 0) -> None:
        self._path = run_dir / METRICS
        self._offset, self._seen = 0, seen

    def new_rows(self) -> Iterator[dict[str, Any]]:
        """The epochs that were added since the last call."""
        if not self._path.exists():
            return
        if self._path.stat().st_size < self._offset:
            self._offset = 0
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                row = json.loads(line)
                if row["epoch"] >= self._seen:
                    self._seen = row["epoch"] + 1
                    yield row
