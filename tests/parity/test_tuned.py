"""The tuned stack: every residual, norm, head and way to jump, against dense matrices."""

from __future__ import annotations

from typing import Any

import pytest

from sargnn.comm.group import Group
from sargnn.config.choices import ModelSettings
from sargnn.config.groups import BatchesConfig, SampleConfig
from tests.parity import cases
from tests.parity.cases import MASKED, QUICK
from tests.parity.checks import assert_same_curve, check
from tests.parity.covering import spread
from tests.pool import pool

MODELS = ["sage", "gcn", "gat", "gatv2", "gin"]
HEADS = [("graph", "last"), ("linear", "last"), ("linear", "sum"), ("linear", "max"), ("linear", "cat")]


def tuned(name: str, residual: Any, norm: str, pre_norm: bool, input_linear: bool, head: str, jumping: str) -> ModelSettings:
    choices = {"residual": residual, "norm": norm, "pre_norm": pre_norm and norm != "none", "input_linear": input_linear}
    return cases.model_config(name, **choices, head=head, jumping=jumping)


@pytest.mark.parametrize(
    ("name", "residual", "norm", "pre_norm", "input_linear", "head", "jumping", "mode", "kernel", "partitioner", "world"),
    spread(
        MODELS,
        [False, True, "linear"],
        ["batch", "layer", "none"],
        [False, True],
        [False, True],
        HEADS,
        QUICK,
        [("random", 1), ("metis", 2), ("random", 4)],
        strength=2,
    ),
)
def test_first_step(
    name: str, residual: Any, norm: str, pre_norm: bool, input_linear: bool, head: str, jumping: str,
    mode: str, kernel: str, partitioner: str, world: int,
) -> None:  # fmt: skip
    model = tuned(name, residual, norm, pre_norm, input_linear, head, jumping)
    check(model, mode=mode, kernel=kernel, partitioner=partitioner, world=world)


@pytest.mark.parametrize(
    ("name", "residual", "norm", "pre_norm", "jumping", "choices"),
    [
        ("sage", "linear", "batch", False, "max", {"keep_layers": "sqrt"}),
        ("gcn", True, "layer", True, "sum", {"keep_layers": 1}),
        ("gat", "linear", "batch", True, "cat", {"keep_layers": "sqrt"}),
        ("sage", "linear", "batch", False, "sum", {"mfg": True}),
        ("gat", True, "layer", True, "max", {"mfg": True}),
        ("gin", "linear", "batch", True, "cat", {"mfg": True}),
        ("sage", "linear", "batch", False, "last", {"labels": MASKED}),
        ("gcn", "linear", "layer", True, "last", {"labels": MASKED}),
        ("sage", "linear", "batch", False, "sum", {"servers": 2}),
        ("gcn", True, "batch", True, "max", {"servers": 2}),
    ],
)
def test_with_all_else(name: str, residual: Any, norm: str, pre_norm: bool, jumping: str, choices: dict[str, Any]) -> None:
    """Layers that are computed again, message flows, labels as inputs, servers that preload."""
    check(tuned(name, residual, norm, pre_norm, True, "linear", jumping), world=2, partitioner="metis", **choices)


@pytest.mark.parametrize(
    ("name", "residual", "pre_norm", "jumping", "steps", "count", "fanouts"),
    spread(
        [("sage", "linear", False, "max"), ("gcn", True, True, "sum"), ("gat", "linear", True, "cat")],
        [(1, 2, None), (2, 1, None), (2, 1, [3, 3, 3])],
    ),
)
def test_curve(
    name: str, residual: Any, pre_norm: bool, jumping: str, steps: int, count: int, fanouts: list[int] | None
) -> None:
    """Steps, micro-batches and samples are the same on any number of workers."""
    model, graph = tuned(name, residual, "layer", pre_norm, True, "linear", jumping), cases.graph_for(name)
    how: dict[str, Any] = {
        "batches": BatchesConfig(steps=steps, count=count),
        "sample": SampleConfig(fanouts=fanouts),
        "epochs": 4,
    }
    alone = cases.curve(Group.single(), cases.run_config(model, **how), graph)
    for answer in pool(4)(cases.curve, cases.run_config(model, world=4, partitioner="metis", **how), graph):
        assert_same_curve(answer["losses"], alone["losses"], "fp64")


@pytest.mark.parametrize(
    ("name", "norm", "dropout", "mode", "kernel", "partitioner", "world"),
    spread(MODELS, ["batch", "layer", "none"], [0.0, 0.4], QUICK, [("random", 1), ("metis", 2), ("random", 4)]),
)
def test_reversible_blocks(name: str, norm: str, dropout: float, mode: str, kernel: str, partitioner: str, world: int) -> None:
    """Gradients are those of plain autograd, with masks and statistics of the first pass."""
    width = {"hidden": 6} if name.startswith("gat") else {}
    model = cases.model_config(name, norm=norm, dropout=dropout, blocks="reversible", **width)
    check(model, mode=mode, kernel=kernel, partitioner=partitioner, world=world)
