"""``inputs.json``: what a run's workers start from, beside its configuration."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sargnn.tracking.files import INPUTS, read_json, unreadable, write_json
from sargnn.tracking.summary import read_record


@dataclass(frozen=True)
class Inputs:
    """What workers start from.

    In the file paths below the working folder are relative to the run's, where that is below it, too: a host without a shared
    file system finds them wherever its copy lies.

    Attributes:
        partition: the partition store's folder. dataset_hash: of the dataset that it was cut from.
        started_at: Unix time at which the command began.
        git_sha: of the code that started the run.
        checkpoint: the checkpoint to load; None to begin anew. first_epoch: how many epochs it has.
        predict: what to write when the run predicts (``embeddings``); None when it trains.
        partition_stats: the partition's figures, which go to MLflow as parameters.
        preloaded: the store of parts that hold what their servers preload; None: nothing is preloaded.
        planned_train_bytes: per rank what training is to hold at most; None: not planned before launch.
        measures_network: measure how fast workers talk, and do nothing else.
        record: what to train for a comparison of worlds (``steps``, ``parameters``, ``follow``); None: a run.
    """

    partition: str
    started_at: float
    dataset_hash: str | None = None
    git_sha: str | None = None
    checkpoint: str | None = None
    first_epoch: int = 0
    predict: dict[str, bool] | None = None
    partition_stats: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] | None = None
    preloaded: str | None = None
    measures_network: bool = False
    planned_train_bytes: list[int] | None = None


def read_inputs(run_dir: Path) -> Inputs:
    """Raises ``SargnnError`` naming the file if it is missing or damaged."""
    path = run_dir / INPUTS
    content = read_json(path)
    stats = content.pop("partition_stats", {})
    if not isinstance(stats, dict):
        raise unreadable(path, "'partition_stats' is no mapping")
    inputs = dataclasses.replace(read_record(Inputs, content, path), partition_stats=stats)
    checkpoint = None if inputs.checkpoint is None else _found(run_dir, inputs.checkpoint)
    preloaded = None if inputs.preloaded is None else _found(run_dir, inputs.preloaded)
    return dataclasses.replace(inputs, partition=_found(run_dir, inputs.partition), checkpoint=checkpoint, preloaded=preloaded)


def write_inputs(run_dir: Path, inputs: Inputs) -> None:
    """Write ``inputs.json``; readers see it whole or not at all."""
    checkpoint = None if inputs.checkpoint is None else _told(run_dir, inputs.checkpoint)
    preloaded = None if inputs.preloaded is None else _told(run_dir, inputs.preloaded)
    told = dataclasses.replace(inputs, partition=_told(run_dir, inputs.partition), checkpoint=checkpoint, preloaded=preloaded)
    write_json(run_dir / INPUTS, dataclasses.asdict(told))


def _told(run_dir: Path, path: str) -> str:
    """A path as the file has it."""
    here, target, folder = Path.cwd(), Path(path).resolve(), run_dir.resolve()
    both_below = target.is_relative_to(here) and folder.is_relative_to(here)
    return os.path.relpath(target, folder) if both_below else str(target)


def _found(run_dir: Path, path: str) -> str:
    """A path of the file as it is here; an absolute one is what it is."""
    return os.path.normpath(run_dir.resolve() / path)
