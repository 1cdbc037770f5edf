"""The run folder: made, held by one process at a time, begun or gone on with. The files in it: ``tracking.files``."""

from __future__ import annotations

import dataclasses
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from sargnn.config import RunConfig, save
from sargnn.errors import ConfigError
from sargnn.tracking import files
from sargnn.tracking.progress import say


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The stores of a run.

    Attributes:
        partition: the partition store's folder. stats: its quality. dataset_hash: of the dataset that it was cut from.
    """

    partition: Path
    stats: dict[str, Any]
    dataset_hash: str


def begin(
    config: RunConfig, run_dir: Path, prepared: Prepared, *, started_at: float, going_on: bool | None
) -> tuple[dict[str, Any], int]:
    """Write what workers read: ``config.yaml`` and ``inputs.json``; drop what the newest checkpoint has not seen.

    Args:
        started_at: Unix time at which the command began.
        going_on: False: the run is new. True: from its newest whole checkpoint. None: so where there is one, else anew.

    Returns:
        The inputs, and how many epochs are trained already.

    Raises:
        ConfigError: the run is over, or has no checkpoint to go on from, or one of another dataset or other settings.
    """
    from sargnn.tracking.provenance import git_sha

    inputs: dict[str, Any] = {
        "partition": str(prepared.partition), "started_at": started_at, "git_sha": git_sha(),
        "partition_stats": {f"partition.{key}": value for key, value in prepared.stats.items()},
    }  # fmt: skip
    first_epoch = 0
    if going_on is not False:
        if (summary := reported(run_dir)).get("status") == "finished":
            trained = len(summary["losses"])
            given = f"{run_dir}, {trained} epochs{'' if trained == config.epochs else ', then early stopping'}"
            raise ConfigError("The run has trained all its epochs.", given=given)
        first_epoch = choose_checkpoint(config, run_dir, inputs, prepared.dataset_hash)
        if going_on and not inputs["checkpoint"]:
            raise ConfigError(
                "The run holds no checkpoint to go on from.", given=str(run_dir), hint="train anew, without resume="
            )
        files.keep_metrics(run_dir, first_epoch)
    inputs["first_epoch"] = first_epoch
    save(config, run_dir / files.CONFIG)
    files.write_json(run_dir / files.INPUTS, inputs)
    if going_on is not False:
        (run_dir / files.SUMMARY).unlink(missing_ok=True)
    if first_epoch:
        say(f"going on after epoch {first_epoch} of '{run_dir}'")
    return inputs, first_epoch


def reported(run_dir: Path) -> dict[str, Any]:
    """What the workers reported; empty if they did not come so far."""
    path = run_dir / files.SUMMARY
    return files.read_json(path) if path.exists() else {}


def report_failure(config: RunConfig, run_dir: Path, error: str, *, interrupted: bool = False) -> dict[str, Any]:
    """Write the summary of a run whose workers wrote none; what it holds."""
    losses = [row["loss"] for row in files.MetricsTail(run_dir).new_rows()]
    summary = {"status": "interrupted" if interrupted else "failed", "error": error, "losses": losses, "world": config.world}
    summary |= {"mode": config.mode.name, "model": config.model.name, "config_hash": config.config_hash}
    try:
        files.write_json(run_dir / files.SUMMARY, summary)
    except OSError as failed:
        say(f"warning: the summary cannot be written: {failed}")
    return summary


def make_run_dir(config: RunConfig) -> Path:
    """A new folder: ``run_dir`` as given, or ``runs/NAME``, with a number behind where that exists."""
    if config.run_dir is not None:
        run_dir = Path(config.run_dir).resolve()
        if (run_dir / files.CONFIG).exists():
            raise ConfigError(
                "The run folder already holds a run.", given=str(run_dir), hint="choose another run_dir or remove it"
            )
        if run_dir.exists() and not run_dir.is_dir():
            raise ConfigError("The run folder is a file.", given=str(run_dir), hint="choose another run_dir")
        _mkdir(run_dir, exist_ok=True)
        return run_dir
    base = Path("runs").resolve() / config.name
    if base.parent.exists() and not base.parent.is_dir():
        raise ConfigError("'runs' is a file, where run folders should go.", given=str(base.parent), hint="choose a run_dir")
    candidate, number = base, 1
    while True:
        try:
            _mkdir(candidate, exist_ok=False)
            return candidate
        except FileExistsError:
            number += 1
            candidate = base.with_name(f"{base.name}-{number}")


def _mkdir(path: Path, *, exist_ok: bool) -> None:
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(
            f"The run folder cannot be written: {error.strerror}.", given=str(path), hint="choose another run_dir"
        ) from error


def hold(run_dir: Path) -> IO[str]:
    """Hold the run folder until closed. Raises ``ConfigError`` if another process does."""
    file = (run_dir / ".lock").open("w")
    try:
        with suppress_unlocked():
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError("The run is under way in another process.", given=str(run_dir)) from error
    return file


@contextmanager
def suppress_unlocked() -> Iterator[None]:
    """Goes on, with a warning, on a file system that has no locks."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        say(f"warning: this file system has no locks ({error.strerror}); see to it yourself that one job works on a run")


def choose_checkpoint(config: RunConfig, run_dir: Path, inputs: dict[str, Any], dataset_hash: str) -> int:
    """Note the newest whole checkpoint in ``inputs``; how many epochs it has (0: there is none). Damaged ones are put aside.

    Raises:
        ConfigError: it was trained on another dataset, or with other settings.
    """
    from sargnn.training import checkpoint

    path, problems = checkpoint.newest(run_dir)
    for damaged, problem in problems:
        say(f"warning: {str(problem).splitlines()[0]} The checkpoint before is used.")
        damaged.rename(damaged.with_name(f"damaged_{damaged.name}_{time.time_ns()}"))
    inputs["checkpoint"] = str(path) if path else None
    if path is None:
        return 0
    meta = checkpoint.opened(path, verify=False).meta
    check_made_for(meta, config, dataset_hash, path)
    return int(meta["epoch"])


def check_made_for(meta: dict[str, Any], config: RunConfig, dataset_hash: str, path: Path) -> None:
    """A checkpoint belongs to this dataset and these settings. Raises ``ConfigError``."""
    if meta["dataset_hash"] != dataset_hash:
        raise ConfigError(
            "The dataset is not the one that the run was trained on.", given=dataset_hash, allowed=meta["dataset_hash"]
        )
    if meta["config_hash"] != config.config_hash:
        raise ConfigError("The run's checkpoints come from other settings than its config.yaml has now.", given=str(path))
