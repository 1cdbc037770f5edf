"""The files of a run folder.

| file | |
|---|---|
| ``config.yaml`` | the resolved configuration |
| ``inputs.json`` | what the run's workers start from (``Inputs``) |
| ``.token`` | what a job's workers know each other by; only the user can read it |
| ``metrics.jsonl`` | a line per epoch |
| ``summary.json`` | the result (``tracking.summary``) |
| ``mlflow.json`` | where the figures were sent |
| ``logs/rank_00.log`` ... | what each worker printed |
| ``traces/rank_00.json`` ... | with ``profile=true``; Perfetto and Chrome show them |
| ``records_00.npz`` ... | of ``sargnn check model=...``: each worker's tensors |
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sargnn.config.fields import build
from sargnn.errors import SargnnError
from sargnn.tasks import kinds
from sargnn.tracking.scores import add_metric

if TYPE_CHECKING:
    from filelock import BaseFileLock

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
CONFIG = "config.yaml"
INPUTS = "inputs.json"
TOKEN = ".token"
NETWORK = "network.json"
MLFLOW = "mlflow.json"
START = "start"
_ALWAYS = ("epoch", "loss", "epoch_time_s")
"""Keys that each line of ``metrics.jsonl`` has."""
T = TypeVar("T")


def log_path(run_dir: Path, rank: int) -> Path:
    return run_dir / "logs" / f"rank_{rank:02d}.log"


def records_path(run_dir: Path, rank: int) -> Path:
    """A worker's recorded tensors, for a comparison of worlds."""
    return run_dir / f"records_{rank:02d}.npz"


def append_metrics(run_dir: Path, row: dict[str, Any]) -> None:
    """One epoch's line, in one write."""
    with (run_dir / METRICS).open("a") as file:
        file.write(json.dumps(row) + "\n")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Readers see the file whole or not at all: it is written under another name, then renamed."""
    path.parent.mkdir(exist_ok=True)
    temporary = _temporary(path)
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


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


def read_record(cls: type[T], content: dict[str, Any], path: Path) -> T:
    """A dataclass from a file's mapping. Raises ``SargnnError`` naming the file and the first value of a wrong type."""
    made = {field_.name: field_.default_factory for field_ in dataclasses.fields(cls)}  # type: ignore[arg-type]
    empty = {name: factory() for name, factory in made.items() if factory is not dataclasses.MISSING}
    try:
        return build(cls, empty | content, "")
    except SargnnError as error:
        raise unreadable(path, " ".join(line.strip() for line in str(error).splitlines())) from error


def unreadable(path: Path, why: str) -> SargnnError:
    """The error for a file of a run folder without the form that a run writes."""
    return SargnnError("A file of a run cannot be read.", given=str(path), hint=f"look at the file: {why}")


def write_secret(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    temporary = _temporary(path)
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def file_lock(path: Path, timeout_s: float = -1) -> BaseFileLock:
    """A lock that ends with its process, whatever happens to that. ``acquire`` waits ``timeout_s``; -1: for ever.

    ``acquire`` raises ``filelock.Timeout`` if another process holds it, and ``OSError`` or ``NotImplementedError`` on a file
    system without locks: never does a file whose existence is the lock take its place, for that would outlive a killed process.
    """
    from filelock import FileLock  # which workers do without

    options = {"fallback_to_soft": False} if "fallback_to_soft" in inspect.signature(FileLock.__init__).parameters else {}
    lock: BaseFileLock = FileLock(path, timeout=timeout_s, thread_local=False, **options)  # type: ignore[arg-type]
    return lock


@dataclass(frozen=True)
class Inputs:
    """What workers start from, beside the configuration.

    In the file paths below the working folder are relative to the run's, where that is below it, too: a host without a shared
    file system finds them wherever its copy lies.

    Attributes:
        partition: the store's folder.
        started_at: Unix time at which the command began.
        dataset_hash: of the dataset that the partition was cut from.
        git_sha: of the code that started the run.
        checkpoint: to load; None: begin anew.
        first_epoch: epochs that the checkpoint has.
        predict: what to write when the run predicts (``embeddings``); None: it trains.
        trained: where the run predicts on another graph than that of its training: how many ``outputs`` the model has, its
            ``task``, the ``labelled`` type's number, and ``rows``, parameter -> file of its table; None: on its own.
        partition_stats: figures which go to MLflow as parameters.
        record: what to train for a comparison of worlds (``steps``, ``parameters``, ``follow``); None: a run.
        preloaded: the store of parts that hold what their servers preload; None: nothing is preloaded.
        measures_network: measure how fast workers talk, and do nothing else.
        planned_train_bytes: at most, by rank; None: not planned before launch.
        planned_alone_bytes: at most, in a worker that has a process of its own; None: not planned.
        processes: that the run's workers live in, all on one machine; None: as many as the configuration says, anywhere.
    """

    partition: str
    started_at: float
    dataset_hash: str | None = None
    git_sha: str | None = None
    checkpoint: str | None = None
    first_epoch: int = 0
    predict: dict[str, Any] | None = None
    trained: dict[str, Any] | None = None
    partition_stats: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] | None = None
    preloaded: str | None = None
    measures_network: bool = False
    planned_train_bytes: list[int] | None = None
    planned_alone_bytes: int | None = None
    processes: int | None = None

    def with_paths(self, change: Callable[[str], str]) -> Inputs:
        paths = {name: getattr(self, name) for name in ("partition", "checkpoint", "preloaded")}
        changed: dict[str, Any] = {name: change(path) for name, path in paths.items() if path is not None}
        return dataclasses.replace(self, **changed)


def read_inputs(run_dir: Path) -> Inputs:
    """Raises ``SargnnError`` naming the file if it is missing or damaged."""
    path = run_dir / INPUTS
    content = read_json(path)
    stats = content.pop("partition_stats", {})
    if not isinstance(stats, dict):
        raise unreadable(path, "'partition_stats' is no mapping")
    inputs = dataclasses.replace(read_record(Inputs, content, path), partition_stats=stats)
    return inputs.with_paths(lambda told: os.path.normpath(run_dir.resolve() / told))


def write_inputs(run_dir: Path, inputs: Inputs) -> None:
    here, folder = Path.cwd(), run_dir.resolve()

    def tell(path: str) -> str:
        target = Path(path).resolve()
        both_below = target.is_relative_to(here) and folder.is_relative_to(here)
        return os.path.relpath(target, folder) if both_below else str(target)

    write_json(run_dir / INPUTS, dataclasses.asdict(inputs.with_paths(tell)))


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
    temporary = _temporary(path)
    temporary.write_text("".join(f"{line}\n" for line in kept))
    temporary.replace(path)


class MetricsTail:
    """Reads the new whole lines of a growing ``metrics.jsonl``, each epoch once, also when the file was cut back; none of the
    first ``seen`` epochs."""

    def __init__(self, run_dir: Path, seen: int = 0) -> None:
        self._path = run_dir / METRICS
        self._offset, self._seen = 0, seen

    def new_rows(self) -> Iterator[dict[str, Any]]:
        """Epochs that were added since the last call. Raises ``SargnnError`` naming the file at a line of another form."""
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
        elif key == "task":
            fits = value in kinds.KINDS
        elif key == "metric":
            fits = isinstance(value, str) and (kinds.is_metric(value) or value.isidentifier())
        else:
            fits = _is_number(value) or (value is None and key not in _ALWAYS)
        if not fits:
            raise unreadable(path, f"'{key}' of epoch {row['epoch']} is {str(value)[:60]!r}")
    if missing := [key for key in _ALWAYS if key not in row]:
        raise unreadable(path, f"epoch {row['epoch']} has no '{missing[0]}'")
    return add_metric(row)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
