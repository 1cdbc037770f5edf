"""A run's graph as MLflow's dataset: its name, its hash, what it was made from and how large it is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.config.run import RunConfig
from sargnn.errors import SargnnError
from sargnn.partition.store import PartitionInfo, partition_info
from sargnn.tasks.kinds import KINDS
from sargnn.tracking.inputs import Inputs

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

_DIGEST = 8


@dataclasses.dataclass(frozen=True)
class GraphRecord:
    """What MLflow is told of a graph.

    Attributes:
        name: the dataset's. digest: the beginning of its hash.
        source: its settings. schema: its arrays. profile: its sizes; the last two empty where its store is gone. All are JSON.
    """

    name: str
    digest: str
    source: str
    schema: str | None
    profile: str | None

    def as_input(self) -> DatasetInput:
        """As MLflow takes it."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(self.name, self.digest, "sargnn", self.source, self.schema, self.profile)
        return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])


def graph_record(config: RunConfig, inputs: Inputs) -> GraphRecord | None:
    """The graph of a run; None for a run of before its hash was noted."""
    if inputs.dataset_hash is None:
        return None
    settings = {key: value for key, value in dataclasses.asdict(config.dataset).items() if value is not None}
    try:
        info = partition_info(Path(inputs.partition))
    except SargnnError:  # the store was removed since
        schema = profile = None
    else:
        schema, profile = json.dumps({"mlflow_colspec": _arrays(info)}), json.dumps(_sizes(info))
    return GraphRecord(config.dataset.title, inputs.dataset_hash[:_DIGEST], json.dumps(settings, default=str), schema, profile)


def _arrays(info: PartitionInfo) -> list[dict[str, Any]]:
    """Features by node type, edges by relation, labels: name and what it is, as MLflow shows columns."""
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
    return [{"name": name, "type": kind, "required": True} for name, kind in arrays.items()]


def _sizes(info: PartitionInfo) -> dict[str, Any]:
    widths = info.feature_widths
    return {
        "nodes": info.num_nodes,
        "edges": info.num_edges,
        "features": widths[0] if len(widths) == 1 else list(widths),
        "classes": info.num_classes,
        "node_types": len(info.schema.node_types),
        "relations": len(info.schema.relations),
    }
