"""Partial results: edges aggregated where their sources are, against the dense oracle, one process and the plan's bytes."""

from __future__ import annotations

from typing import Any

import pytest

from sargnn.comm.group import Group
from sargnn.config.groups import LabelsConfig
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.reducers.base import WithPartials
from sargnn.engine.reducers.sum import Mean
from tests.parity import cases
from tests.parity.checks import GRAPHS, check
from tests.parity.covering import Axis, only, spread
from tests.pool import pool

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in cases.NAMES},
    "max": ("sage", {"aggregator": "max"}),
    "sum": ("sage", {"aggregator": "sum"}),
    "pool": ("sage", {"aggregator": "pool"}),
    "bases": ("rgcn", {"bases": 2}),
    "half_dropped": ("gat", {"edge_dropout": 0.6}),
    "most_dropped": ("gatv2", {"edge_dropout": 0.95}),
}
"""Models, and the settings that fold in other ways."""
WAYS = ["pre", "least", "post"]
KERNELS = ["fused", "reference", "dgl"]
MODES = ["sar", "no_remat"]
PARTITIONERS = ["metis", "random", "empty", "apart"]


def model_of(name: str) -> cases.Model:
    base, changes = MODELS[name]
    return cases.model_config(base, **changes)


@pytest.mark.parametrize(
    ("name", "aggregate", "mode", "kernel", "partitioner", "world"),
    spread(list(MODELS), WAYS, MODES, KERNELS, PARTITIONERS, [2, 3, 4]),
)
def test_first_step(name: str, aggregate: str, mode: str, kernel: str, partitioner: str, world: int) -> None:
    where: dict[str, Any] = {"mode": mode, "kernel": kernel, "partitioner": partitioner, "world": world}
    check(model_of(name), kind=MODELS[name][0], aggregate=aggregate, **where)


@pytest.mark.parametrize(
    ("name", "aggregate", "rows", "depth", "mfg"),
    spread(["sage", "max", "gat", "gatv2", "rgcn"], ["pre", "least"], [1, 7, None], [0, 1, 3], [False, True]),
)
def test_pieces_and_message_flow(name: str, aggregate: str, rows: int | None, depth: int, mfg: bool) -> None:
    check(
        model_of(name), kind=MODELS[name][0], aggregate=aggregate, world=4, message_rows=rows, prefetch_depth=depth, mfg=mfg
    )  # fmt: skip


@pytest.mark.parametrize("name", ["sage", "gat"])
@pytest.mark.parametrize("aggregate", ["pre", "least"])
def test_labels_as_input(name: str, aggregate: str) -> None:
    check(model_of(name), aggregate=aggregate, world=4, labels=LabelsConfig(name="masked", reuse=1))


@pytest.mark.parametrize(
    ("name", "aggregate", "kernel", "mfg", "world"),
    spread(["gat", "gatv2", "half_dropped"], ["pre", "least", "post"], KERNELS, [False, True], [1, 2, 4]),
)
def test_kept_scores(name: str, aggregate: str, kernel: str, mfg: bool, world: int) -> None:
    """``mode.keep=all``, also on the side of a partial result's sources."""
    where: dict[str, Any] = {"aggregate": aggregate, "kernel": kernel, "mfg": mfg, "world": world, "message_rows": 9}
    check(model_of(name), kind=MODELS[name][0], mode="no_remat", keep="all", **where)
    config = cases.run_config(model_of(name), mode="no_remat", keep="all", **where)
    assert all(answer["keeps_scores"] for answer in pool(world)(cases.step, config, GRAPHS[MODELS[name][0]]))


def test_fp32() -> None:
    check(model_of("gat"), aggregate="pre", world=4, precision="fp32")
    check(model_of("max"), kind="sage", aggregate="pre", world=4, precision="fp32")


@pytest.mark.parametrize("name", only(["max", "gatv2"], ["sage", "max", "gat", "gatv2"]))
def test_wire(name: str) -> None:
    """bf16 messages: the plan's bytes, and losses near those of exact ones."""
    where: dict[str, Any] = {"aggregate": "pre", "world": 4, "precision": "fp32"}
    config = cases.run_config(model_of(name), **where, wire="bf16")
    for answer in pool(4)(cases.step, config, GRAPHS[MODELS[name][0]]):
        assert answer["sent_bytes"] == answer["predicted_bytes"] and answer["held_bytes"] <= answer["planned_bytes"]
    exact, rounded = (_curve(name, **where, wire=wire) for wire in ("exact", "bf16"))
    assert exact != rounded
    assert all(abs(one - other) <= 0.02 * other for one, other in zip(rounded, exact, strict=True))


@pytest.mark.parametrize(
    ("name", "aggregate", "mode", "world"),
    spread(["sage", "max", "gat", "gatv2", "rgcn", "appnp", "gcnii"], WAYS, MODES, [1, 2, 4]),
)
def test_bytes_equal_the_plan(name: str, aggregate: str, mode: str, world: int) -> None:
    """Of every rank; and its buffers are no larger than the plan says."""
    config = cases.run_config(model_of(name), aggregate=aggregate, mode=mode, world=world, partitioner="metis")
    for answer in pool(world)(cases.step, config, GRAPHS[MODELS[name][0]]):
        assert answer["sent_bytes"] == answer["predicted_bytes"]
        assert answer["held_bytes"] <= answer["planned_bytes"]
        assert answer["sent_bytes"] > 0 or world == 1


@pytest.mark.parametrize(("name", "mode"), spread(Axis(["sage", "gat", "gatv2", "rgcn"], ["gat", "rgcn"]), MODES))
def test_least_sends_least(name: str, mode: str) -> None:
    sent = {}
    for aggregate in WAYS:
        config = cases.run_config(model_of(name), aggregate=aggregate, mode=mode, world=4)
        sent[aggregate] = sum(answer["sent_bytes"] for answer in pool(4)(cases.step, config, GRAPHS[MODELS[name][0]]))
    assert sent["least"] < min(sent["pre"], sent["post"])


def _curve(name: str, **choices: Any) -> list[float]:
    config = cases.run_config(model_of(name), **choices)
    losses: list[float] = pool(config.world)(cases.curve, config, GRAPHS[MODELS[name][0]])[0]["losses"]
    return losses


CURVES = ["sage", "max", "gat", "gatv2", "rgcn"]


@pytest.mark.parametrize(
    ("name", "aggregate", "world"),
    [
        *spread(CURVES, ["pre", "least"], [2, 4]),
        *(pytest.param(name, way, 8, marks=pytest.mark.long) for name in CURVES for way in ("pre", "least")),
    ],
)
def test_curves(name: str, aggregate: str, world: int) -> None:
    """Epochs as one process has them."""
    alone = _curve(name)
    for one, other in zip(_curve(name, aggregate=aggregate, world=world), alone, strict=True):
        assert abs(one - other) <= 1e-8 * abs(other)


def test_two_runs_have_the_same_bits() -> None:
    first, second = (_curve("gat", aggregate="least", world=4, precision="fp32") for _ in range(2))
    assert first == second


class Twice(Mean):
    """A mean that folds otherwise than the package's."""

    def step(self, fold: Any, shard: Any, rows: Any, dest_local: Any, params: Any, state: Any) -> None:
        super().step(fold, shard, tuple(2 * one for one in rows), dest_local, params, state)


class Renamed(Mean):
    """A mean that folds as the package's."""

    name = "renamed"


def test_a_reducer_that_folds_anew_has_none() -> None:
    engine = Engine(Group.single(), EngineSettings(mode="sar"))
    assert engine.why_rows(Twice()) == Twice.no_partials
    assert engine.why_rows(Renamed()) is None and engine.why_rows(Mean()) is None


@pytest.mark.parametrize(
    "reducer", [name for name, (_, changes) in cases.REDUCER_CASES.items() if name not in ("lstm", "relation_sum")]
)
def test_who_has_partial_results(reducer: str) -> None:
    """All reducers of the package but those that need a node's rows at one time, or a row for each relation."""
    base, changes = cases.REDUCER_CASES[reducer]
    config = cases.run_config(cases.model_config(base, **changes))
    trainer = cases.trainer_of(Group.single(), config, GRAPHS[base])
    assert all(isinstance(one, WithPartials) for _, one in cases.edge_layers(trainer))
