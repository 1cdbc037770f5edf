"""The files of a run folder.

| file | |
|---|---|
| ``config.yaml`` | the resolved configuration |
| ``inputs.json`` | where the partition store lies and what started the run |
| ``.token`` | what a job's workers know each other by; only the user can read it |
| ``metrics.jsonl`` | a line per epoch |
| ``summary.json`` | the result (``tracking.summary``) |
| ``mlflow.json`` | where the figures were sent |
| ``logs/rank_00.log`` ... | what each worker printed |
| ``traces/rank_00.json`` ... | with ``profile=true``; Perfetto and Chrome show them |
| ``records_00.npz`` ... | of ``sargnn check model=...``: each worker's tensors |
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sargnn.errors import SargnnError
from sargnn.tasks import kinds
from sargnn.tracking.scores import add_metric

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
CONFIG = "config.yaml"
INPUTS = "inputs.json"
TOKEN = ".token"
NETWORK = "network.json"
MLFLOW = "mlflow.json"
START = "start"


def log_path(run_dir: Path, rank: int) -> Path:
    """Where a worker's output goes."""
    return run_dir / "logs" / f"rank_{rank:02d}.log"


def scratch_path(run_dir: Path, rank: int) -> Path:
    """A worker's folder for what it needs only while it runs."""
    return run_dir / "scratch" / f"rank_{rank:02d}"


def trace_path(run_dir: Path, rank: int) -> Path:
    """Where a worker's trace goes."""
    return run_dir / "traces" / f"rank_{rank:02d}.json"


def records_path(run_dir: Path, rank: int) -> Path:
    """What a worker has recorded of its tensors, for a comparison of worlds."""
    return run_dir / f"records_{rank:02d}.npz"


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
    """A JSON file's mapping. Raises ``SargnnError`` naming the file if it is missing, damaged or holds something else."""
    try:
        content = json.loads(path.read_text())
    except RecursionError as error:
        raise unreadable(path, "it is nested too deeply") from error
    except (OSError, ValueError) as error:
        raise unreadable(path, str(error).splitlines()[0]) from error
    if not isinstance(content, dict):
        raise unreadable(path, f"it holds a {type(content).__name__} where a mapping should be")
    return content


def unreadable(path: Path, why: str) -> SargnnError:
    """The error for a file of a run folder that has not the form that a run writes."""
    return SargnnError("A file of a run cannot be read.", given=str(path), hint=f"look at the file: {why}")


def write_secret(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


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
        except (ValueError, KeyError, TypeError, RecursionError):
            break
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text("".join(f"{line}\n" for line in kept))
    temporary.replace(path)


class MetricsTail:
    """Reads the new whole lines of a growing ``metrics.jsonl``, each epoch once, also when the file was cut back.

    Args:
        seen: epochs before this one are of no interest.
    """

    def __init__(self, run_dir: Path, seen: int = 0) -> None:
        self._path = run_dir / METRICS
        self._offset, self._seen = 0, seen

    def new_rows(self) -> Iterator[dict[str, Any]]:
        """The epochs that were added since the last call. Raises ``SargnnError`` naming the file at a line of another form."""
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
                row = _read_row(self._path, line)
                if row["epoch"] >= self._seen:
                    self._seen = row["epoch"] + 1
                    yield row


def _read_row(path: Path, line: bytes) -> dict[str, Any]:
    """One epoch's figures: numbers or null, but for ``task``, ``metric`` and ``ranks``, which has lists of numbers."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"a line is no JSON: {line[:60]!r}") from error
    if not isinstance(row, dict) or not isinstance(row.get("epoch"), int):
        raise unreadable(path, f"a line is no epoch's: {line[:60]!r}")
    for key, value in row.items():
        if key == "ranks":
            fits = isinstance(value, dict) and all(
                isinstance(numbers, list) and all(map(_is_number, numbers)) for numbers in value.values()
            )
        elif key in _TEXTS:
            fits = value in _TEXTS[key]
        else:
            fits = _is_number(value) or (value is None and key not in _ALWAYS)
        if not fits:
            raise unreadable(path, f"'{key}' of epoch {row['epoch']} is {str(value)[:60]!r}")
    if missing := [key for key in _ALWAYS if key not in row]:
        raise unreadable(path, f"epoch {row['epoch']} has no '{missing[0]}'")
    return add_metric(row)


_TEXTS = {"task": tuple(kinds.KINDS), "metric": kinds.METRICS}
_ALWAYS = ("epoch", "loss", "epoch_time_s")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
