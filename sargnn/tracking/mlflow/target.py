"""Where a run goes in MLflow, and what it is called there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sargnn.config.run import RunConfig, flatten
from sargnn.tracking.inputs import Inputs
from sargnn.tracking.mlflow.dataset import GraphRecord, graph_record
from sargnn.tracking.mlflow.store import absolute
from sargnn.tracking.sweep_points import label_of

_LONGEST = 6000
_TAGS_ALONE = ("epochs", "run_dir")
"""Settings that are no parameters: MLflow keeps a parameter's first value for ever, but a run can be made longer; and every run
has another folder, which would fill the pages that compare runs."""


@dataclass(frozen=True)
class Target:
    """Where a run goes in MLflow, and what it is there.

    Attributes:
        run_dir: whose files become artifacts at the end.
        uri: the store. experiment, name: of the run.
        tags: of the run; those of a run that goes on are overwritten.
        settings: all of them, dotted; params: those that are parameters, and the partition's figures. A run's stay as they are.
        graph: its dataset, if that is known.
        ranks: whether the figures of each rank are sent, too.
        same_run: go on with the run that the folder was sent to, if there is one.
        started_at: Unix time at which the run began; None: now.
    """

    run_dir: Path
    uri: str
    experiment: str
    name: str
    tags: dict[str, str]
    settings: dict[str, str]
    params: dict[str, str]
    graph: GraphRecord | None
    ranks: bool
    same_run: bool
    started_at: float | None = None


def target_of(
    config: RunConfig, run_dir: Path, inputs: Inputs | None, *, uri: str | None = None, same_run: bool = False
) -> Target:
    """A run's place in MLflow: in the store ``uri``, or else in the one that its configuration names.

    Args:
        inputs: what its workers start from; None for a run that has no such record.
    """
    tags = {"model": config.model.name, "mode": config.mode.name, "world": str(config.world)}
    tags |= {"dataset": config.dataset.title, "kernel": config.kernel.name, "partitioner": config.partitioner.name}
    tags |= {"config_hash": config.config_hash, "epochs": str(config.epochs), "run_dir": str(run_dir)}
    label = label_of(run_dir)
    name = run_dir.name
    if label is not None:
        tags["sweep"] = run_dir.parent.name
        name = label if "=" in label else config.name  # a sweep of one point overrides nothing that others do not
    settings = {key: str(value)[:_LONGEST] for key, value in flatten(config).items()}
    partition: dict[str, Any] = inputs.partition_stats if inputs is not None else {}
    params = {key: value for key, value in settings.items() if key not in _TAGS_ALONE}
    return Target(
        run_dir=run_dir,
        uri=absolute(uri or config.tracking.uri),
        experiment=config.tracking.experiment,
        name=name,
        tags=tags,
        settings=settings,
        params=params | {key: str(value)[:_LONGEST] for key, value in partition.items()},
        graph=graph_record(config, inputs) if inputs is not None else None,
        ranks=config.tracking.ranks,
        same_run=same_run,
    )
