"""Steps of shuffled training nodes and samples of their neighbours: the same on any number of workers, and right."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, LabelsConfig, SampleConfig
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.graph.schema import SPLITS
from tests.graphs import with_weights
from tests.parity import cases, oracle
from tests.parity.cases import MASKED, QUICK, REUSED, WHERE, spread_models
from tests.parity.checks import assert_same_curve, check_step
from tests.parity.covering import spread
from tests.pool import pool

# (fan-outs of three layers, steps, when samples are drawn anew)
DRAWS: dict[str, tuple[tuple[int, ...] | None, int, str]] = {
    "steps": (None, 3, "step"),
    "sampled": ((4, 2, 3), 1, "step"),
    "both": ((3, 2, 2), 3, "step"),
    "some layers": ((-1, 2, 3), 2, "epoch"),
    "one sample": ((2, 3, 2), 2, "run"),
    "one view": ((3, 3, 2), 1, "run"),
}


def layers_of(name: str) -> dict[str, Any]:
    """Settings with which a model aggregates three times."""
    return cases.known(name, num_layers=3, steps=3)


def drawn(name: str, draw: str, norm: str = "layer", count: int = 1, by: str = "random", **choices: Any) -> RunConfig:
    fanouts, steps, every = DRAWS[draw]
    changes = cases.known(name, norm=norm) | layers_of(name) | choices.pop("changes", {})
    return cases.run_config(
        cases.model_config(name, **changes), batches=BatchesConfig(count=count, by=by, steps=steps),
        sample=SampleConfig(fanouts=None if fanouts is None else list(fanouts), every=every),  # type: ignore[arg-type]
        **choices,
    )  # fmt: skip


@cache
def expected(name: str, draw: str, norm: str, labels: LabelsConfig, weighted: bool) -> dict[str, Any]:
    """The first step by dense matrices and a sampler in plain Python."""
    config = drawn(name, draw, norm, labels=labels)
    graph = graph_of(name, weighted)
    start = cases.initial_parameters(Group.single(), config, graph)
    params = {key: torch.from_numpy(value) for key, value in start.items()}
    return oracle.first_step(cases.definition_of(config.model), config, graph, params)


def graph_of(name: str, weighted: bool = False) -> Any:
    graph = cases.graph_for(name)
    return with_weights(graph) if weighted else graph


@pytest.mark.parametrize(
    ("name", "mode", "kernel", "partitioner", "world", "draw", "norm", "labels"),
    spread_models(QUICK, WHERE, list(DRAWS), ["batch", "layer"], [LabelsConfig(), MASKED, REUSED]),
)
def test_first_step(
    name: str, mode: str, kernel: str, partitioner: str, world: int, draw: str, norm: str, labels: LabelsConfig
) -> None:
    choices: dict[str, Any] = {"mode": mode, "kernel": kernel, "partitioner": partitioner, "world": world, "message_rows": 23}
    check_step(expected(name, draw, norm, labels, False), drawn(name, draw, norm, labels=labels, **choices), graph_of(name))


@pytest.mark.parametrize(
    ("name", "draw", "world"),
    spread(["sage", "gcn", "gat", "rgcn", "appnp"], ["steps", "both", "some layers"], [1, 2]),
)
def test_edge_weights(name: str, draw: str, world: int) -> None:
    """Sums of weights are those of the chosen edges."""
    config = drawn(name, draw, world=world)
    check_step(expected(name, draw, "layer", LabelsConfig(), True), config, graph_of(name, True))


@pytest.mark.parametrize(("name", "partitioner"), [("sage", "empty"), ("gcn", "apart"), ("rgcn", "by_type")])
def test_workers_without_rows(name: str, partitioner: str) -> None:
    """Workers without training nodes, without rows of a type, or without any."""
    config = drawn(name, "both", "batch", labels=MASKED, world=4, partitioner=partitioner)
    check_step(expected(name, "both", "batch", MASKED, False), config, graph_of(name))


@pytest.mark.parametrize("aggregator", ["sum", "max", "pool", "lstm"])
def test_other_aggregators(aggregator: str) -> None:
    changes = {"aggregator": aggregator}
    config = drawn("sage", "both", changes=changes)
    start = cases.initial_parameters(Group.single(), config, graph_of("sage"))
    params = {key: torch.from_numpy(value) for key, value in start.items()}
    want = oracle.first_step(cases.definition_of(config.model), config, graph_of("sage"), params)
    mode = "one_shot" if aggregator == "lstm" else "sar"
    check_step(want, drawn("sage", "both", changes=changes, world=2, mode=mode), graph_of("sage"))


@pytest.mark.parametrize(
    ("name", "mode", "kernel", "partitioner", "world", "draw", "count", "by", "norm"),
    spread_models(QUICK, WHERE, list(DRAWS), [2, 8], ["star", "metis", "random"], ["none", "layer"]),
)
def test_micro_batches(
    name: str, mode: str, kernel: str, partitioner: str, world: int, draw: str, count: int, by: str, norm: str
) -> None:
    """A step in micro-batches is the step: also the out-degrees of its sample, and groups without a node in it."""
    config = drawn(name, draw, norm, count, by, mode=mode, kernel=kernel, partitioner=partitioner, world=world, labels=MASKED)
    check_step(expected(name, draw, norm, MASKED, False), config, graph_of(name))


def test_against_dense_matrices_for_epochs() -> None:
    """Shuffles, samples, masks and learning rates of all steps."""
    config = dataclasses.replace(drawn("gcn", "both", "batch", world=2), epochs=4)
    graph = graph_of("gcn")
    start = cases.initial_parameters(Group.single(), config, graph)
    params = {key: torch.from_numpy(value) for key, value in start.items()}
    want = oracle.curve(cases.definition_of(config.model), config, graph, params)
    for answer in pool(2)(cases.curve, config, graph):
        np.testing.assert_allclose(answer["losses"], want, rtol=1e-8)


CURVES: dict[str, tuple[str, str, str, str, int, int, str, str, LabelsConfig, str]] = {
    "sage": ("sage", "sar", "fused", "metis", 4, 1, "both", "batch", MASKED, "fp64"),
    "sage of eight": ("sage", "sar", "fused", "random", 8, 1, "both", "layer", LabelsConfig(), "fp64"),
    "gat of three": ("gat", "no_remat", "fused", "random", 3, 2, "both", "layer", MASKED, "fp64"),
    "gcn": ("gcn", "domain_parallel", "dgl", "metis", 2, 1, "both", "batch", LabelsConfig(), "fp64"),
    "rgcn": ("rgcn", "one_shot", "fused", "metis", 4, 3, "both", "layer", MASKED, "fp64"),
    "fp32": ("sage", "sar", "fused", "metis", 4, 1, "both", "batch", MASKED, "fp32"),
    "steps": ("sage", "sar", "fused", "metis", 4, 2, "steps", "layer", REUSED, "fp64"),
    "one sample": ("gcn", "sar", "fused", "random", 2, 1, "one view", "batch", LabelsConfig(), "fp64"),
}
LONG = ("sage of eight", "gat of three", "one sample", "rgcn", "steps", "fp32")


@cache
def single(name: str, draw: str, norm: str, labels: LabelsConfig, precision: str) -> dict[str, Any]:
    config = drawn(name, draw, norm, kernel="reference", labels=labels, precision=precision)
    return cases.curve(Group.single(), config, cases.graph_for(name, 1))


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.long] if case in LONG else []) for case in CURVES])
def test_curve(case: str) -> None:
    """Epochs of three steps with dropout, and the last evaluation."""
    name, mode, kernel, partitioner, world, count, draw, norm, labels, precision = CURVES[case]
    config = drawn(
        name, draw, norm, count, mode=mode, kernel=kernel, partitioner=partitioner, world=world, labels=labels,
        precision=precision,
    )  # fmt: skip
    want = single(name, draw, norm, labels, precision)
    for answer in pool(world)(cases.curve, config, cases.graph_for(name, 1)):
        assert_same_curve(answer["losses"], want["losses"], precision)
        assert answer["scores"] == want["scores"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "kernel", "partitioner", "world", "norm", "precision"),
    [
        one.values
        for one in spread(list(QUICK), ["metis", "random"], [1, 2, 3, 4, 8], ["batch", "layer"], ["fp64", "fp32"], strength=3)
        if not one.marks
    ],
)
def test_more_curves(mode: str, kernel: str, partitioner: str, world: int, norm: str, precision: str) -> None:
    config = drawn(
        "sage", "both", norm, mode=mode, kernel=kernel, partitioner=partitioner, world=world, precision=precision, labels=MASKED
    )
    want = single("sage", "both", norm, MASKED, precision)
    for answer in pool(world)(cases.curve, config, cases.graph_for("sage", 1)):
        assert_same_curve(answer["losses"], want["losses"], precision)


MODULES = Path(__file__).parent / "toys" / "own_modules.py"
STACK = {"hidden": 7, "num_layers": 3, "dropout": 0.4}
TWINS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sage": ("Sage", {**STACK, "input_dropout": 0.0}),
    "gat": ("Gat", {**STACK, "heads": 3, "attn_dropout": 0.3}),
}


@pytest.mark.parametrize(("name", "draw", "world", "count"), [("sage", "both", 2, 1), ("gat", "both", 1, 2)])
def test_modules_of_users(name: str, draw: str, world: int, count: int) -> None:
    """A module that asks for blocks has the losses of the model that it repeats, on the same samples."""
    function, args = TWINS[name]
    changes = STACK | ({"input_dropout": 0.0} if name == "sage" else {"heads": 3, "out_heads": 1, "attn_dropout": 0.3})
    written = dataclasses.replace(drawn(name, draw, "batch", changes=changes), epochs=cases.EPOCHS)
    own = dataclasses.replace(
        drawn(name, draw, "batch", count, world=world, changes=changes), epochs=cases.EPOCHS,
        model=CustomSettings("custom", target=f"{MODULES}:{function}", args=args),
        dataset=dataclasses.replace(written.dataset, add_self_loops=written.model.adds_self_loops),
    )  # fmt: skip
    if count > 1:  # batch norm's statistics are those of each micro-batch
        written = dataclasses.replace(written, batches=dataclasses.replace(own.batches, by="random"))
    graph = cases.graph_for(name, 1)
    want = cases.curve(Group.single(), written, graph)["losses"]
    for answer in pool(world)(cases.curve, own, graph):
        np.testing.assert_allclose(answer["losses"], want, rtol=1e-8)


def test_shuffles_cover_all_targets() -> None:
    """Each training node is in one step of an epoch, steps are alike in size, and another epoch has others."""
    for world in (1, 2):
        answers = pool(world)(all_steps, drawn("sage", "steps", world=world, partitioner="random"), graph_of("sage"))
        for epoch in range(2):
            together = [np.sort(np.concatenate([one[epoch][step] for one in answers])) for step in range(3)]
            if world == 1:
                alone = together
            sizes = [len(one) for one in together]
            assert max(sizes) - min(sizes) <= 1
            train = np.flatnonzero(np.asarray(graph_of("sage").split) == SPLITS["train"])
            assert np.array_equal(np.sort(np.concatenate(together)), train)
        assert not np.array_equal(answers[0][0][0], answers[0][1][0])
        assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))


def all_steps(group: Group, config: RunConfig, dataset: Any) -> list[list[np.ndarray]]:
    """Of two epochs each step's own training nodes, original ids."""
    trainer = cases.trainer_of(group, config, dataset)
    found = []
    for epoch in range(2):
        trainer.loop.steps.begin(epoch)
        found.append([trainer.ids.numpy()[trainer.loop.steps.rows(step)] for step in range(trainer.loop.steps.count)])
    return found
