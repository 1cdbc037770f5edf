"""``inputs.json``: what a run's workers start from, beside its configuration."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sargnn.tracking.files import INPUTS, read_json, unreadable, write_json
from sargnn.tracking.summary import read_record


@dataclass(frozen=True)
class Inputs:
    """What workers start from.

    Attributes:
        partition: the partition store's folder. dataset_hash: of the dataset that it was cut from.
        started_at: Unix time at which the command began.
        git_sha: of the code that started the run.
        checkpoint: the checkpoint to load; None to begin anew. first_epoch: how many epochs it has.
        predict: what to write when the run predicts (``embeddings``); None when it trains.
        partition_stats: the partition's figures, which go to MLflow as parameters.
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


def read_inputs(run_dir: Path) -> Inputs:
    """Raises ``SargnnError`` naming the file if it is missing or damaged."""
    path = run_dir / INPUTS
    content = read_json(path)
    stats = content.pop("partition_stats", {})
    if not isinstance(stats, dict):
        raise unreadable(path, "'partition_stats' is no mapping")
    return dataclasses.replace(read_record(Inputs, content, path), partition_stats=stats)


def write_inputs(run_dir: Path, inputs: Inputs) -> None:
    """Write ``inputs.json``; readers see it whole or not at all."""
    write_json(run_dir / INPUTS, dataclasses.asdict(inputs))
