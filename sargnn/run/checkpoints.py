"""From which checkpoint a run starts (``init_from``) or goes on, and how many epochs it then has left, also where ``epochs`` is
another number than before, or ``precision`` another. What fits which model: ``training.checkpoint``.

Where the learning rate does not depend on it, a run passes through the same states however many epochs follow; so it may be
made longer at any time, and a checkpoint of the shorter run is one of the longer.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from sargnn.config.groups import PRECISIONS
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, StoreError, nearest
from sargnn.graph.manifest import MANIFEST
from sargnn.tracking.files import START, Inputs
from sargnn.tracking.find_runs import RUNS, SWEEPS, find_run, run_names
from sargnn.tracking.progress import say
from sargnn.tracking.summary import FINISHED, read_summary


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
        try:
            folder = find_run(config.init_from)
        except ConfigError as error:
            raise ConfigError(
                "There is no run and no checkpoint of this name to start from.",
                given=config.init_from,
                allowed=nearest(config.init_from, run_names()),
                hint="init_from=RUN, its name or folder, or init_from=RUN/checkpoints/NAME",
            ) from error
        path, _ = newest_whole(folder)
    if path is None:
        raise ConfigError(
            "The run to start from holds no whole checkpoint.",
            given=str(folder),
            hint="train it with checkpoint.every=N; the last epoch is written then, too",
        )
    store = checkpoint.open_checkpoint(path, verify=False)
    return dataclasses.replace(config, init_from=str(path.resolve()), init_digest=digest_of(store))


def keep_start(config: RunConfig, run_dir: Path) -> None:
    """A copy of the checkpoint that the run starts from in its own folder, by links where that can be: the source may go on
    training, and remove its older checkpoints, before this run has one of its own.
    """
    if config.init_from is None or (run_dir / START).exists():
        return

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # another disk
            shutil.copy2(source, target)

    temporary = run_dir / f".{START}.{os.getpid()}.tmp"
    try:
        shutil.copytree(config.init_from, temporary, copy_function=link)
        temporary.rename(run_dir / START)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise ConfigError(
            f"The checkpoint to start from cannot be copied: {error}",
            given=config.init_from,
            hint="is it there, and is there room?",
        ) from error


def newest_whole(run_dir: Path) -> tuple[Path | None, list[Path]]:
    """The newest whole checkpoint, if there is one, and newer ones that are damaged, of which a warning is said."""
    from sargnn.training import checkpoint

    path, problems = checkpoint.newest(run_dir)
    for _, problem in problems:
        say(f"warning: {str(problem).splitlines()[0]} The checkpoint before is used.")
    return path, [damaged for damaged, _ in problems]


def check_checkpoint(run_dir: Path) -> None:
    """Raises ``ConfigError``, before anything is loaded, where a run that is gone on with has no checkpoint."""
    from sargnn.training import checkpoint

    if not checkpoint.existing(run_dir):
        raise no_checkpoint(run_dir)


def choose_checkpoint(config: RunConfig, run_dir: Path, inputs: Inputs, dataset_hash: str) -> Inputs:
    """``inputs`` with the newest whole checkpoint, and how many epochs it has (0: there is none). Damaged ones are put aside.
    Raises ``ConfigError`` where it was trained on another dataset, or with other settings.
    """
    from sargnn.training import checkpoint

    path, problems = newest_whole(run_dir)
    for damaged in problems:
        damaged.rename(damaged.with_name(f"damaged_{damaged.name}_{time.time_ns()}"))
    if path is None:
        return dataclasses.replace(inputs, checkpoint=None, first_epoch=0)
    meta = checkpoint.open_checkpoint(path, verify=False).meta
    check_made_for(meta, config, dataset_hash, path)
    return dataclasses.replace(inputs, checkpoint=str(path), first_epoch=int(meta["epoch"]))


def check_made_for(meta: dict[str, Any], config: RunConfig, dataset_hash: str, path: Path) -> None:
    """Raises ``ConfigError`` for a checkpoint of another dataset or other settings."""
    if meta["dataset_hash"] != dataset_hash:
        raise ConfigError(
            "The dataset is not the one that the run was trained on.", given=dataset_hash, allowed=meta["dataset_hash"]
        )
    if not has_settings_of(meta, config):
        raise ConfigError("The run's checkpoints come from other settings than its config.yaml has now.", given=str(path))


def has_settings_of(meta: dict[str, Any], config: RunConfig) -> bool:
    """Whether a checkpoint with this ``meta`` holds what a run with these settings has after as many epochs."""
    options: Iterable[int] = [config.epochs]
    if not config.optim.depends_on_epochs:
        known = meta.get("epochs")
        options = [config.epochs, *([known] if known else range(int(meta["epoch"]), config.epochs))]  # older ones do not say
    alike = (
        dataclasses.replace(config, epochs=epochs, precision=precision)  # parameters and moments are never bf16
        for epochs, precision in product(options, PRECISIONS)
    )
    return any(candidate.config_hash == meta["config_hash"] for candidate in alike)


def is_over(config: RunConfig, run_dir: Path) -> bool:
    """Whether the run is finished and nothing can be trained on."""
    summary = read_summary(run_dir)
    if summary is None or summary.status != FINISHED:
        return False
    try:
        check_epochs_left(config, run_dir)
    except ConfigError:
        return True
    return False


def check_epochs_left(config: RunConfig, run_dir: Path) -> None:
    """Raises ``ConfigError``, with what was trained, where a run that is gone on with has nothing left to do."""
    from sargnn.training import checkpoint

    summary = read_summary(run_dir)
    finished = summary is not None and summary.status == FINISHED
    meta = None
    for path in reversed(checkpoint.existing(run_dir)):
        with suppress(StoreError):  # one that cannot be read says nothing
            meta = checkpoint.open_checkpoint(path, verify=False).meta
            break
    trained = len(summary.losses) if summary is not None and finished else int(meta["epoch"]) if meta else 0
    anew = f"a new run from its parameters: init_from={run_dir}, with the dataset and the model named as for this one"
    patience = config.early_stopping
    if finished and patience is not None and meta is not None and meta["epoch"] == trained:
        # Older checkpoints count the last epoch's evaluation, which a longer run has not made.
        unsure = (
            "counted_best" not in meta and meta["evaluated"] and trained % config.eval_every != 0 and trained < config.epochs
        )
        if unsure or meta.get("stale", 0) >= patience:
            raise ConfigError("Early stopping has ended the run.", given=f"{run_dir}, {trained} epochs", hint=anew)
    limit = config.max_seconds
    if finished and summary is not None and meta is not None and limit is not None and trained < config.epochs:
        if sum(meta["series"]["epoch_times_s"]) >= limit:
            raise ConfigError(
                "The time limit has ended the run.", given=f"max_seconds={limit:g}", hint="max_seconds=MORE goes on"
            )
    if finished and (trained == config.epochs or not config.model.trains):
        longer = anew if config.optim.depends_on_epochs else f"epochs=MORE goes on with it; {anew}"
        given = f"{run_dir}, {trained} epochs"
        raise ConfigError("The run has trained all its epochs.", given=given, hint=longer if config.model.trains else None)
    shortened = meta is not None and trained == config.epochs and meta.get("epochs", trained) != trained
    if trained > config.epochs or shortened:
        raise ConfigError(
            f"The run has trained {trained} epochs already.", given=f"epochs={config.epochs}", allowed=f"more than {trained}"
        )
    if finished and meta is None:
        raise no_checkpoint(run_dir)


def no_checkpoint(run_dir: Path) -> ConfigError:
    return ConfigError("The run holds no checkpoint to go on from.", given=str(run_dir), hint="train anew, without resume=")
