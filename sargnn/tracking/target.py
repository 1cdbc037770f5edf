"""Where the figures of a run go, what it is called there, and what is said of its graph."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.config.run import RunConfig, flatten
from sargnn.errors import SargnnError
from sargnn.partition.store import partition_info
from sargnn.tasks.kinds import KINDS
from sargnn.tracking.files import Inputs
from sargnn.tracking.find_runs import label_of
from sargnn.tracking.mlflow.store import absolute

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput


_LONGEST, _DIGEST = 6000, 8
_TAGS_ALONE = ("epochs", "run_dir")
"""Settings that are no parameters: MLflow keeps a parameter's first value for ever, but a run can be made longer; and every run
has another folder, which would fill the pages that compare runs."""


@dataclass(frozen=True)
class GraphRecord:
    """What MLflow is told of a run's graph, as its dataset: the beginning of its hash; as JSON its settings, its arrays and its
    sizes. The last two are None where its store is gone."""

    name: str
    digest: str
    source: str
    schema: str | None
    profile: str | None

    def as_input(self) -> DatasetInput:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(self.name, self.digest, "sargnn", self.source, self.schema, self.profile)
        return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])


@dataclass(frozen=True)
class Target:
    """Where a run goes, and what it is there.

    Attributes:
        tracker: ``TrackingConfig.name``.
        uri: MLflow's store.
        server: the address of another tracker's server; None: its own.
        offline: that tracker's figures stay in the run folder.
        tags: those of a run that goes on are overwritten.
        settings: all of them, dotted.
        params: settings that are parameters, and the partition's figures. A run's stay as they are.
        graph: None: not known.
        ranks: whether the figures of each rank are sent, too.
        same_run: go on with the run that the folder was sent to, if there is one.
        started_at: Unix time at which the run began; None: now.
    """

    run_dir: Path
    tracker: str
    uri: str
    server: str | None
    offline: bool
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
    """A run's place; in MLflow in the store ``uri``, or else in the one that its configuration names."""
    tags = {"model": config.model.name, "mode": config.mode.name, "world": str(config.world)}
    tags |= {"dataset": config.dataset.title, "kernel": config.kernel.name, "partitioner": config.partitioner.name}
    tags["processes"] = str((inputs.processes if inputs is not None else None) or config.num_processes)
    tags |= {"config_hash": config.config_hash, "epochs": str(config.epochs), "run_dir": str(run_dir)}
    label, tracking = label_of(run_dir), config.tracking
    name = run_dir.name
    if label is not None:
        tags["sweep"] = run_dir.parent.name
        name = label if "=" in label else config.name  # a sweep of one point overrides nothing that others do not
    settings = {key: str(value)[:_LONGEST] for key, value in flatten(config).items()}
    partition: dict[str, Any] = inputs.partition_stats if inputs is not None else {}
    params = {key: value for key, value in settings.items() if key not in _TAGS_ALONE}
    return Target(
        run_dir=run_dir,
        tracker=tracking.name,
        uri=absolute(uri or (tracking.uri if tracking.name == "mlflow" else None)),
        server=tracking.uri,
        offline=tracking.offline,
        experiment=tracking.experiment,
        name=name,
        tags=tags,
        settings=settings,
        params=params | {key: str(value)[:_LONGEST] for key, value in partition.items()},
        graph=graph_record(config, inputs) if inputs is not None else None,
        ranks=tracking.ranks,
        same_run=same_run,
    )


def graph_record(config: RunConfig, inputs: Inputs) -> GraphRecord | None:
    """None for a run of before its dataset's hash was noted."""
    if inputs.dataset_hash is None:
        return None
    settings = {key: value for key, value in dataclasses.asdict(config.dataset).items() if value is not None}
    try:
        info = partition_info(Path(inputs.partition))
    except SargnnError:  # the store was removed since
        schema = profile = None
    else:
        types = info.schema.node_types
        directed = "directed" if info.weights is None else "directed, weighted"
        if info.schema.typed:
            arrays = {
                f"features of {name}": f"float32 [{info.schema.count(number)}, {width}]"
                for number, (name, width) in enumerate(zip(types, info.feature_widths, strict=True))
            }
            for relation in info.schema.relations:
                arrays[f"edges {types[relation.source]} {relation.name} {types[relation.destination]}"] = directed
        else:
            arrays = {
                "features": f"float32 [{info.num_nodes}, {info.feature_widths[0]}]",
                "edges": f"{info.num_edges} {directed}",
            }
        arrays["labels"] = f"{info.num_classes} {KINDS[info.task].outputs}"
        widths = info.feature_widths
        schema, profile = (
            json.dumps({"mlflow_colspec": [{"name": name, "type": kind, "required": True} for name, kind in arrays.items()]}),
            json.dumps(
                {
                    "nodes": info.num_nodes,
                    "edges": info.num_edges,
                    "features": widths[0] if len(widths) == 1 else list(widths),
                    "classes": info.num_classes,
                    "node_types": len(info.schema.node_types),
                    "relations": len(info.schema.relations),
                }
            ),
        )
    return GraphRecord(config.dataset.title, inputs.dataset_hash[:_DIGEST], json.dumps(settings, default=str), schema, profile)
