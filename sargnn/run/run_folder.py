"""The run folder: made, held by one process at a time, begun or gone on with. The files in it: ``tracking.files``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from filelock import BaseFileLock, Timeout

from sargnn.config.run import RunConfig, save
from sargnn.errors import ConfigError
from sargnn.run.check import Stores
from sargnn.run.checkpoints import check_epochs_left, choose_checkpoint, keep_start, no_checkpoint
from sargnn.tracking import files
from sargnn.tracking.files import Inputs, file_lock, write_inputs
from sargnn.tracking.progress import say

LOCK = ".lock"


def begin_run(
    config: RunConfig,
    run_dir: Path,
    stores: Stores,
    *,
    started_at: float,
    going_on: bool | None,
    planned: tuple[int, ...] | None = None,
    alone: int | None = None,
    processes: int | None = None,
) -> Inputs:
    """Write what workers read: ``config.yaml`` and ``inputs.json``; drop what the newest checkpoint has not seen.

    Args:
        started_at: Unix time at which the command began.
        going_on: False: the run is new. True: from its newest whole checkpoint. None: so if there is one, else anew.
        planned: bytes, per rank what training is to hold at most; None: not known.
        alone: bytes, what training is to hold in a worker that has a process of its own; None: not planned.
        processes: that its workers live in, where the configuration leaves that open.

    Raises ``ConfigError``: the run is over, or has no checkpoint to go on from, or one of another dataset or other settings.
    """
    from sargnn.tracking.provenance import git_sha

    stats = {f"partition.{key}": value for key, value in stores.stats.items()}
    inputs = Inputs(
        str(stores.partition),
        started_at,
        stores.dataset_hash,
        git_sha(),
        partition_stats=stats,
        preloaded=None if stores.preloaded is None else str(stores.preloaded),
        planned_train_bytes=None if planned is None else list(planned),
        planned_alone_bytes=alone,
        processes=processes,
    )
    if going_on is not False:
        check_epochs_left(config, run_dir)
        inputs = choose_checkpoint(config, run_dir, inputs, stores.dataset_hash)
        if going_on and inputs.checkpoint is None:
            raise no_checkpoint(run_dir)
        files.keep_metrics(run_dir, inputs.first_epoch)
    if inputs.checkpoint is None:
        keep_start(config, run_dir)
    save(config, run_dir / files.CONFIG)
    write_inputs(run_dir, inputs)
    if going_on is not False:
        (run_dir / files.SUMMARY).unlink(missing_ok=True)
    if inputs.checkpoint is not None:
        from sargnn.training.checkpoint import describe, open_checkpoint

        say(f"going on after {describe(open_checkpoint(Path(inputs.checkpoint), verify=False).meta)} of '{run_dir}'")
    return inputs


def choose_run_dir(given: str | None, name: str) -> Path:
    """The folder that ``make_run_dir`` would make now, or raise for; nothing is made."""
    if given is not None:
        run_dir = Path(given).resolve()
        if (run_dir / files.CONFIG).exists():
            raise ConfigError(
                "The run folder already holds a run.", given=str(run_dir), hint="choose another run_dir or remove it"
            )
        if run_dir.exists() and not run_dir.is_dir():
            raise ConfigError("The run folder is a file.", given=str(run_dir), hint="choose another run_dir")
        return run_dir
    base = Path("runs").resolve() / name
    if base.parent.exists() and not base.parent.is_dir():
        raise ConfigError("'runs' is a file, where run folders should go.", given=str(base.parent), hint="choose a run_dir")
    return next(path for path in numbered(base) if not path.exists())


def numbered(base: Path, suffix: str = "") -> Iterator[Path]:
    """``BASE``, ``BASE-2``, ``BASE-3``, ..., each with the suffix."""
    yield base.with_name(f"{base.name}{suffix}")
    for number in count(2):
        yield base.with_name(f"{base.name}-{number}{suffix}")


def make_run_dir(given: str | None, name: str) -> Path:
    """A new folder: as given, or ``runs/NAME``, with a number behind it if that exists."""
    while True:
        run_dir = choose_run_dir(given, name)
        try:
            run_dir.mkdir(parents=True, exist_ok=given is not None)
            return run_dir
        except FileExistsError:  # another run has just taken the name
            continue
        except OSError as error:
            raise ConfigError(
                f"The run folder cannot be written: {error.strerror}.", given=str(run_dir), hint="choose another run_dir"
            ) from error


def hold_run_dir(run_dir: Path, refusal: str = "The run is under way in another process.") -> BaseFileLock:
    """Hold the folder until released, or until this process ends. Raises ``ConfigError`` with ``refusal`` if another process
    does. A file system without locks is no obstacle: then a warning says so.
    """
    lock = file_lock(run_dir / LOCK, timeout_s=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ConfigError(refusal, given=str(run_dir)) from error
    except PermissionError as error:
        raise ConfigError("The run folder's lock is somebody else's.", given=str(run_dir / LOCK)) from error
    except (OSError, NotImplementedError) as error:
        if not (run_dir / LOCK).exists():
            raise
        why = getattr(error, "strerror", None) or error
        say(f"warning: this file system has no locks ({why}); see to it yourself that one job works on a run")
    return lock
