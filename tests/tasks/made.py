"""Tasks for tests, without a graph."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from sargnn.comm.group import Group
from sargnn.config.run import Metric
from sargnn.partition.part import Part
from sargnn.tasks.nodes import NodeTask
from tests.parity import cases


def node_task(
    labels: Any,
    split: Any,
    group: Group | None = None,
    *,
    metric: Metric | None = None,
    label_smoothing: float = 0.0,
    precision: Any = "fp32",
    num_classes: int = 2,
) -> NodeTask:
    """Of a worker with these labels [N] or [N, C] and split uint8 [N]."""
    config = cases.run_config(cases.model_config("sage"))
    optim = dataclasses.replace(config.optim, label_smoothing=label_smoothing)
    config = dataclasses.replace(config, metric=metric, optim=optim, precision=precision)
    labels, split = np.asarray(labels), np.asarray(split)
    part = SimpleNamespace(labels=labels, split=split, node_ids=np.arange(len(split)), inner=np.ones(len(split), bool))
    outputs = labels.shape[1] if labels.ndim == 2 else num_classes
    return NodeTask(config, cast(Part, part), outputs, group or Group.single())
