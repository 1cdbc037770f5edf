"""Where a new run's parameters come from, with ``init_from``; what fits which model: ``training.start_from``."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, nearest
from sargnn.graph.manifest import MANIFEST
from sargnn.tracking.files import START
from sargnn.tracking.find_runs import RUNS, SWEEPS, find_run, run_names
from sargnn.tracking.progress import say


def find_start(config: RunConfig) -> RunConfig:
    """``init_from`` as the absolute path of a whole checkpoint, and the digest of its content; the same without ``init_from``.

    Raises:
        ConfigError: there is no such run, it has no whole checkpoint, or the model has no parameters.
        StoreError: the checkpoint that is named is damaged.
    """
    if config.init_from is None:
        return config
    if not config.model.trains:
        raise ConfigError(
            "A model without parameters starts from none.",
            given=f"model={config.model.name} init_from={config.init_from}",
            hint="leave init_from out",
        )
    from sargnn.training import checkpoint
    from sargnn.training.checkpoint import digest_of

    given = os.path.expanduser(config.init_from)
    folder = next(
        (candidate for candidate in (Path(given), RUNS / given, SWEEPS / given) if (candidate / MANIFEST).is_file()), None
    )
    path = folder
    if folder is not None:
        checkpoint.open_checkpoint(folder, verify=True)
    else:
        folder = _run_of(config.init_from)
        path, problems = checkpoint.newest(folder)
        for _, problem in problems:
            say(f"warning: {str(problem).splitlines()[0]} The checkpoint before is used.")
    if path is None:
        raise ConfigError(
            "The run to start from holds no whole checkpoint.",
            given=str(folder),
            hint="train it with checkpoint.every=N; the last epoch is written then, too",
        )
    store = checkpoint.open_checkpoint(path, verify=False)
    return dataclasses.replace(config, init_from=str(path.resolve()), init_digest=digest_of(store))


def _run_of(word: str) -> Path:
    try:
        return find_run(word)
    except ConfigError as error:
        raise ConfigError(
            "There is no run and no checkpoint of this name to start from.",
            given=word,
            allowed=nearest(word, run_names()),
            hint="init_from=RUN, its name or folder, or init_from=RUN/checkpoints/NAME",
        ) from error


def keep_start(config: RunConfig, run_dir: Path) -> None:
    """A copy of the checkpoint that the run starts from in its own folder, by links where that can be.

    The source may go on training, and remove its older checkpoints, before this run has one of its own.
    """
    if config.init_from is None or (run_dir / START).exists():
        return
    temporary = run_dir / f".{START}.{os.getpid()}.tmp"
    try:
        shutil.copytree(config.init_from, temporary, copy_function=_link)
        temporary.rename(run_dir / START)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise ConfigError(
            f"The checkpoint to start from cannot be copied: {error}",
            given=config.init_from,
            hint="is it there, and is there room?",
        ) from error


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)
