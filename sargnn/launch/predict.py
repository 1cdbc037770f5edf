"""Predictions of a trained run, on local workers: any world, mode and kernel."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

from sargnn.config import RunConfig, save
from sargnn.errors import ConfigError
from sargnn.launch.local import made_ready, prepare_run, run_workers
from sargnn.launch.run_folder import check_made_for
from sargnn.tracking import files
from sargnn.tracking.progress import say

FOLDER = "predictions"


def predict(
    config: RunConfig, run_dir: Path, folder: Path, *, which: str = "newest", embeddings: bool = False
) -> dict[str, Any]:
    """Write what a run's model predicts for all nodes into ``folder``; what ``training.predict`` lists.

    Args:
        config: the run's; world, mode, kernel, partitioner and ``smooth`` may differ from what it was trained with.
        which: of its checkpoints: ``newest`` or ``best``.

    Returns:
        The manifest.

    Raises:
        SargnnError: anything a user can cause.
    """
    started_at = time.time()
    model = config.model
    if embeddings and not model.has_embeddings:
        raise ConfigError("A model of one layer has no embeddings.", given="embeddings=true", allowed="embeddings=false")
    trained = config
    _check_folder(folder)
    config = made_ready(dataclasses.replace(config, mfg=False, profile=False))
    from sargnn.training import checkpoint
    from sargnn.training.predict import MANIFEST

    path, epoch = None, None
    if model.trains:
        path = _checkpoint(run_dir, which)
        meta = checkpoint.opened(path, verify=which == "best").meta
        check_made_for(meta, trained, meta["dataset_hash"], path)
        epoch = meta["epoch"]
    prepared = prepare_run(config)
    if path is not None:
        check_made_for(meta, trained, prepared.dataset_hash, path)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = dataclasses.replace(config, run_dir=str(run_dir))
    inputs = {
        "partition": str(prepared.partition), "started_at": started_at, "git_sha": None, "predict": {"embeddings": embeddings},
        "checkpoint": str(path.resolve()) if path else None, "dataset_hash": prepared.dataset_hash,
    }  # fmt: skip
    files.write_json(folder / files.INPUTS, inputs)
    save(config, folder / files.CONFIG)
    after = f" after epoch {epoch}" if epoch is not None else ""
    say(f"predicting with {config.name}{after}: {config.world} workers with {config.threads} threads each")
    run_workers(config, folder, hint="the same command again starts anew")
    manifest = files.read_json(folder / MANIFEST)
    manifest |= {"run": str(run_dir), "epoch": epoch, "time_s": time.time() - started_at}
    files.write_json(folder / MANIFEST, manifest)
    return manifest


def _check_folder(folder: Path) -> None:
    """Only predictions may be replaced. Raises ``ConfigError``."""
    if not folder.exists():
        return
    try:
        ours = folder.is_dir() and (not any(folder.iterdir()) or "predict" in files.read_json(folder / files.INPUTS))
    except (OSError, ValueError):
        ours = False
    if not ours:
        raise ConfigError("The folder holds something else.", given=str(folder), hint="choose another: out=FOLDER")


def _checkpoint(run_dir: Path, which: str) -> Path:
    from sargnn.training import checkpoint

    if which == "best":
        path = checkpoint.best(run_dir)
    else:
        path, problems = checkpoint.newest(run_dir)
        for _, problem in problems:
            say(f"warning: {str(problem).splitlines()[0]} The checkpoint before is used.")
    if path is None:
        raise ConfigError(
            f"The run holds no {'evaluated' if which == 'best' else 'whole'} checkpoint.",
            given=str(run_dir), hint="train with checkpoint.every=N; the last epoch is written then, too",
        )  # fmt: skip
    return path
