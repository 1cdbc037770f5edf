"""Models that read features of edges: first steps against the dense oracle, whole curves against one process."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, LabelsConfig, SampleConfig
from sargnn.report.groups import deviation
from tests.graphs import nasty_graph, typed_graph, with_edge_features, with_weights
from tests.parity import cases, checks
from tests.parity.cases import PAIRS
from tests.parity.checks import assert_same_curve, check_step
from tests.parity.covering import spread
from tests.pool import near, pool

NARROW, WIDE = 2, 5
"""Features of an edge that a plan holds, and that stay where they are."""
GRAPHS = {
    "narrow": with_edge_features(nasty_graph(), NARROW),
    "wide": with_edge_features(nasty_graph(), WIDE),
    "weighted": with_edge_features(with_weights(nasty_graph(), lowest=-2.0), WIDE),
}
TYPED = {
    "typed": with_edge_features(typed_graph(), WIDE),
    "typed weighted": with_edge_features(with_weights(typed_graph()), NARROW),
}
checks.GRAPHS |= {f"edges-{name}": graph for name, graph in (GRAPHS | TYPED).items()}
TRAINED = with_edge_features(with_weights(nasty_graph(seed=1)), WIDE)
LEARNING = 4
"""Epochs after which the loss has fallen."""


@pytest.mark.parametrize(
    ("kind", "mode", "kernel", "partitioner", "world"),
    spread(list(GRAPHS), PAIRS, ["metis", "empty", "apart"], [1, 2, 4, 7], strength=2),
)
def test_every_pair(kind: str, mode: str, kernel: str, partitioner: str, world: int) -> None:
    checks.check(cases.model_config("gin"), f"edges-{kind}", mode=mode, kernel=kernel, partitioner=partitioner, world=world)


@pytest.mark.parametrize(
    ("model", "kind", "mode", "kernel", "partitioner", "world"),
    spread(["gat", "gatv2"], list(GRAPHS), PAIRS, ["metis", "empty", "apart"], [1, 2, 4, 7]),
)
def test_attention(model: str, kind: str, mode: str, kernel: str, partitioner: str, world: int) -> None:
    checks.check(cases.model_config(model), f"edges-{kind}", mode=mode, kernel=kernel, partitioner=partitioner, world=world)


@pytest.mark.parametrize(("kind", "mode", "kernel", "world"), spread(list(TYPED), PAIRS, [1, 2, 3]))
def test_relations(kind: str, mode: str, kernel: str, world: int) -> None:
    checks.check(cases.model_config("rgat"), f"edges-{kind}", mode=mode, kernel=kernel, partitioner="apart", world=world)


@pytest.mark.parametrize(("mode", "aggregate", "rows"), spread(["sar", "no_remat"], ["pre", "post", "least"], [1, 7, 30]))
def test_messages_in_pieces(mode: str, aggregate: str, rows: int) -> None:
    """The first layer's rows have gradients, too."""
    model = cases.model_config("gin", input_dropout=0.3)
    checks.check(model, "edges-weighted", mode=mode, world=4, partitioner="metis", message_rows=rows, aggregate=aggregate)


@pytest.mark.parametrize("mode", ["sar", "one_shot", "domain_parallel"])
def test_message_flow(mode: str) -> None:
    checks.check(cases.model_config("gin"), "edges-wide", mode=mode, world=2, mfg=True)


def test_labels_beside_constant_rows() -> None:
    labels = LabelsConfig(name="masked", rate=0.5, reuse=1)
    checks.check(cases.model_config("gin"), "edges-wide", world=2, labels=labels)


@cache
def single(precision: str) -> dict[str, Any]:
    config = cases.run_config(learning(), kernel="reference", precision=precision, epochs=LEARNING)
    return cases.curve(Group.single(), config, TRAINED)


def learning() -> cases.Model:
    """One with dropout in front of every layer."""
    return cases.model_config("gin", input_dropout=0.2)


@pytest.mark.parametrize(
    ("mode", "partitioner", "world", "precision"),
    [("sar", "metis", 4, "fp64"), ("no_remat", "random", 2, "fp64"), ("sar", "empty", 4, "fp32")],
)
def test_curve(mode: str, partitioner: str, world: int, precision: str) -> None:
    where: dict[str, Any] = {"mode": mode, "partitioner": partitioner, "world": world}
    config = cases.run_config(learning(), precision=precision, epochs=LEARNING, **where)
    want = single(precision)
    assert want["losses"][-1] < want["losses"][0]
    for answer in pool(world)(cases.curve, config, TRAINED):
        assert_same_curve(answer["losses"], want["losses"], precision)


WAYS: dict[str, dict[str, Any]] = {
    "batches": {"batches": BatchesConfig(count=2, by="random")},
    "steps": {"batches": BatchesConfig(steps=3)},
    "samples": {"batches": BatchesConfig(steps=3), "sample": SampleConfig(fanouts=[3, 2])},
    "computed again": {"keep_layers": 1, "mfg": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_train(way: str) -> None:
    """Edges keep their features in micro-batches, steps and samples; parts of one process read as workers do."""
    model = cases.model_config("gin", norm="layer", num_layers=2)
    want = cases.curve(Group.single(), cases.run_config(model, **WAYS[way]), TRAINED)
    config = cases.run_config(model, partitioner="metis", world=3, message_rows=23, **WAYS[way])
    for ranks in (pool, near):
        assert_same_curve(ranks(3)(cases.curve, config, TRAINED)[0]["losses"], want["losses"], "fp64")


OF_ATTENTION: dict[str, dict[str, Any]] = {
    **{way: WAYS[way] for way in ("samples", "computed again")},
    "groups of heads": {"column_groups": 2},
    "kept scores": {"keep": "all"},
    "servers": {"servers": 2},
    "partial results": {"aggregate": "least", "message_rows": 7},
}


@pytest.mark.parametrize("way", OF_ATTENTION)
def test_ways_of_attention(way: str) -> None:
    model = cases.model_config("gatv2", norm="layer", num_layers=2, attn_dropout=0.0 if "groups" in way else 0.3)
    want = cases.curve(Group.single(), cases.run_config(model, **WAYS.get(way, {})), TRAINED)
    config = cases.run_config(model, partitioner="metis", world=4, **OF_ATTENTION[way])
    assert_same_curve(pool(4)(cases.curve, config, TRAINED)[0]["losses"], want["losses"], "fp64")


@pytest.mark.parametrize("flow", [{}, {"batches": BatchesConfig(steps=3), "sample": SampleConfig(fanouts=[3, 2, 2])}])
def test_servers(flow: dict[str, Any]) -> None:
    """Copies of nodes have their in-edges' features."""
    model = cases.model_config("gin", num_layers=3)
    alone = checks.first_step(Group.single(), cases.run_config(model, **flow), TRAINED)
    want = alone | {"grads": {name: torch.from_numpy(grad) for name, grad in alone["grads"].items()}}
    check_step(want, cases.run_config(model, partitioner="metis", world=4, servers=2, message_rows=23, **flow), TRAINED)


@pytest.mark.parametrize("mode", ["sar", "domain_parallel"])
def test_bf16(mode: str) -> None:
    config = cases.run_config(cases.model_config("gin"), precision="bf16", epochs=8, world=4, mode=mode)
    whole = cases.curve(Group.single(), cases.run_config(cases.model_config("gin"), precision="fp32", epochs=8), TRAINED)
    half = pool(4)(cases.curve, config, TRAINED)[0]
    assert deviation(half["losses"], whole["losses"], "bf16").relative <= 0.03


def test_features_count() -> None:
    """Without them, or where the model is told not to read them, another curve."""
    config = cases.run_config(learning(), epochs=3)
    bare = cases.curve(Group.single(), config, with_weights(nasty_graph(seed=1)))
    told = cases.curve(
        Group.single(), cases.run_config(cases.model_config("gin", input_dropout=0.2, edge_features=False), epochs=3), TRAINED
    )
    given = cases.curve(Group.single(), config, TRAINED)
    np.testing.assert_array_equal(told["losses"], bare["losses"])
    assert not np.allclose(given["losses"], bare["losses"], rtol=1e-3)
