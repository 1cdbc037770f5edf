"""Several labels and numbers with unknown entries: first steps and whole curves against the dense oracle."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.choices import Task
from sargnn.config.groups import LabelsConfig
from tests.graphs import with_task
from tests.parity import cases, oracle
from tests.parity.cases import QUICK
from tests.parity.checks import GRAPHS, assert_same_curve, check
from tests.parity.covering import spread
from tests.pool import pool

TASKS: list[Task] = ["multilabel", "regression"]
NAMES = ["sage", "gat", "rgcn"]
MASKED, REUSED = LabelsConfig("masked", 0.4, 0), LabelsConfig("masked", 0.4, 1)
for _task in TASKS:
    for _name in NAMES:
        GRAPHS[f"{_task} {_name}"] = with_task(cases.graph_for(_name), _task)
    GRAPHS[f"one {_task} gat"] = with_task(cases.graph_for("gat"), _task, outputs=1)


@pytest.mark.parametrize(
    ("name", "task", "mode", "kernel", "partitioner", "world"),
    spread(NAMES, TASKS, QUICK, [("random", 1), ("metis", 2), ("empty", 2)]),
)
def test_first_step(name: str, task: Task, mode: str, kernel: str, partitioner: str, world: int) -> None:
    check(cases.model_config(name), f"{task} {name}", mode=mode, kernel=kernel, partitioner=partitioner, world=world)


@pytest.mark.parametrize(("name", "task", "labels", "mfg"), spread(NAMES, TASKS, [MASKED, REUSED], [False, True]))
def test_labels_as_inputs(name: str, task: Task, labels: LabelsConfig, mfg: bool) -> None:
    """The loss is the mean over known entries of the nodes that carry none; what is not known travels as 0."""
    check(cases.model_config(name), f"{task} {name}", labels=labels, mfg=mfg, world=2, partitioner="random")


@pytest.mark.parametrize(("task", "mode", "kernel"), spread(TASKS, QUICK))
def test_one_output(task: Task, mode: str, kernel: str) -> None:
    """One number, or one label, from several heads."""
    check(cases.model_config("gat"), f"one {task} gat", mode=mode, kernel=kernel, world=2)


@cache
def expected(task: Task, name: str, epochs: int) -> list[float]:
    config = cases.run_config(cases.model_config(name), epochs=epochs)
    start = cases.initial_parameters(Group.single(), config, GRAPHS[f"{task} {name}"])
    params = {name: torch.from_numpy(value) for name, value in start.items()}
    return oracle.curve(cases.definition_of(config.model), config, GRAPHS[f"{task} {name}"], params)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("name", "mode", "world"), [("sage", "sar", 1), ("sage", "domain_parallel", 2), ("gat", "sar", 2), ("rgcn", "one_shot", 2)]
)
def test_curve(task: Task, name: str, mode: str, world: int) -> None:
    config = cases.run_config(cases.model_config(name), mode=mode, world=world, partitioner="metis", epochs=10)
    ranks = pool(world)(cases.curve, config, GRAPHS[f"{task} {name}"])
    want = expected(task, name, 10)
    assert want[-1] < want[0]
    assert_same_curve(ranks[0]["losses"], want, "fp64")


@pytest.mark.parametrize(("task", "metric"), [("multilabel", "rocauc"), ("multilabel", "f1"), ("regression", "mae")])
def test_a_metric_is_the_same_on_any_world(task: Task, metric: Any) -> None:
    config = dataclasses.replace(cases.run_config(cases.model_config("sage"), epochs=5), metric=metric)
    want = cases.curve(Group.single(), config, GRAPHS[f"{task} sage"])["scores"]
    assert all(value is not None for value in want.values())
    for mode, partitioner in (("sar", "empty"), ("one_shot", "metis")):
        other = dataclasses.replace(config, world=2, partitioner=dataclasses.replace(config.partitioner, name=partitioner))
        other = dataclasses.replace(other, mode=dataclasses.replace(config.mode, name=mode))
        for answer in pool(2)(cases.curve, other, GRAPHS[f"{task} sage"]):
            assert answer["scores"] == pytest.approx(want, rel=1e-9)
