"""Micro-batches and layers that are computed again change no loss and no gradient."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, LabelsConfig
from tests.graphs import nasty_graph
from tests.parity import cases
from tests.parity.cases import MASKED, QUICK, REUSED, WHERE, spread_models
from tests.parity.checks import assert_same_curve, first_step, together
from tests.parity.covering import spread
from tests.pool import pool

GROUPINGS = ["star", "reg", "metis", "random", "range"]


def model(name: str, norm: str, **changes: Any) -> Any:
    return cases.model_config(name, **cases.known(name, norm=norm, **changes))


@cache
def whole_step(name: str, norm: str, labels: LabelsConfig) -> dict[str, Any]:
    config = cases.run_config(model(name, norm, num_layers=4), kernel="reference", labels=labels)
    return first_step(Group.single(), config, cases.graph_for(name))


def check_step(name: str, norm: str, labels: LabelsConfig, world: int, **choices: Any) -> list[dict[str, Any]]:
    config = cases.run_config(model(name, norm, num_layers=4), world=world, labels=labels, **choices)
    answers: list[dict[str, Any]] = pool(world)(first_step, config, cases.graph_for(name))
    want, got = whole_step(name, norm, labels), together(answers)
    assert answers[0]["loss"] == pytest.approx(want["loss"], rel=1e-12)
    wanted = together([want])
    all_of = np.sqrt(sum(np.square(one).sum() for one in wanted.values()))
    assert got.keys() == wanted.keys()
    for key, one in wanted.items():
        assert np.linalg.norm(got[key] - one) <= 1e-10 * max(np.linalg.norm(one), 1e-3 * all_of), key
    return answers


@pytest.mark.parametrize(
    ("name", "mode", "kernel", "partitioner", "world", "count", "by", "norm", "labels"),
    spread_models(QUICK, WHERE, [2, 3, 8], GROUPINGS, ["none", "layer"], [LabelsConfig(), MASKED, REUSED]),
)
def test_micro_batches_first_step(
    name: str, mode: str, kernel: str, partitioner: str, world: int, count: int, by: str, norm: str, labels: LabelsConfig
) -> None:
    batches = BatchesConfig(count=count, by=by)
    answers = check_step(
        name, norm, labels, world, mode=mode, kernel=kernel, partitioner=partitioner, batches=batches, message_rows=23
    )  # fmt: skip
    assert answers[0]["batches"] == count


@pytest.mark.parametrize(
    ("name", "mode", "kernel", "partitioner", "world", "keep", "norm", "residual"),
    spread_models(QUICK, WHERE, ["sqrt", 1, 2, 3], ["batch", "layer", "none"], [False, True]),
)
def test_kept_layers_first_step(
    name: str, mode: str, kernel: str, partitioner: str, world: int, keep: str | int, norm: str, residual: bool
) -> None:
    """The second pass computes what the first did; running statistics move once."""
    runs = []
    for kept in ("all", keep):
        config = cases.run_config(
            model(name, norm, num_layers=4, residual=residual), mode=mode, kernel=kernel, partitioner=partitioner,
            world=world, keep_layers=kept, labels=MASKED,
        )  # fmt: skip
        runs.append(pool(world)(first_step, config, cases.graph_for(name)))
    for one, other in zip(*runs, strict=True):
        assert one["loss"] == other["loss"]
        for kind in ("grads", "of_rows", "buffers"):
            for key, value in one[kind].items():
                np.testing.assert_allclose(other[kind][key], value, rtol=1e-11, atol=1e-15, err_msg=key)


CURVES: dict[str, tuple[str, str, str, int, int, str | int, str, LabelsConfig, str]] = {
    "sage": ("sage", "sar", "fused", 4, 3, "all", "layer", MASKED, "fp64"),
    "gat": ("gat", "no_remat", "fused", 2, 8, 2, "layer", LabelsConfig(), "fp64"),
    "gcn": ("gcn", "domain_parallel", "dgl", 4, 2, "sqrt", "none", REUSED, "fp64"),
    "rgcn": ("rgcn", "sar", "fused", 4, 3, "all", "layer", MASKED, "fp64"),
    "gcnii": ("gcnii", "one_shot", "fused", 2, 2, "sqrt", "none", MASKED, "fp64"),
    "sage in fp32": ("sage", "sar", "fused", 4, 8, 2, "layer", LabelsConfig(), "fp32"),
    "batch norm": ("sage", "sar", "fused", 4, 1, "sqrt", "batch", MASKED, "fp64"),
    "batch norm, gat": ("gat", "one_shot", "fused", 2, 1, 2, "batch", LabelsConfig(), "fp64"),
    "sgc": ("sgc", "sar", "fused", 2, 3, "all", "none", LabelsConfig(), "fp64"),
    "appnp": ("appnp", "sar", "fused", 2, 3, "sqrt", "layer", LabelsConfig(), "fp64"),
}
LONG = ("gcnii", "sgc", "appnp", "batch norm, gat", "rgcn", "gat", "sage in fp32")


@cache
def single(name: str, norm: str, labels: LabelsConfig, precision: str) -> dict[str, Any]:
    config = cases.run_config(model(name, norm, num_layers=3), kernel="reference", labels=labels, precision=precision)
    return cases.curve(Group.single(), config, cases.graph_for(name, 1))


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.long] if case in LONG else []) for case in CURVES])
def test_curve(case: str) -> None:
    """Epochs with dropout, and the last evaluation."""
    name, mode, kernel, world, count, keep, norm, labels, precision = CURVES[case]
    config = cases.run_config(
        model(name, norm, num_layers=3), mode=mode, kernel=kernel, partitioner="metis", world=world, labels=labels,
        precision=precision, batches=BatchesConfig(count=count), keep_layers=keep,
    )  # fmt: skip
    want = single(name, norm, labels, precision)
    for answer in pool(world)(cases.curve, config, cases.graph_for(name, 1)):
        assert_same_curve(answer["losses"], want["losses"], precision)
        assert answer["scores"] == want["scores"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "kernel", "world", "count", "keep", "norm", "precision"),
    [
        one.values
        for one in spread(
            list(QUICK), [1, 2, 4], [1, 2, 3, 8], ["all", "sqrt", 2], ["layer", "none"], ["fp64", "fp32"], strength=2
        )
        if not one.marks
    ],
)
def test_more_curves(
    mode: str, kernel: str, world: int, count: int, keep: str | int, norm: str, precision: str
) -> None:  # fmt: skip
    config = cases.run_config(
        model("sage", norm, num_layers=3), mode=mode, kernel=kernel, partitioner="metis", world=world,
        precision=precision, batches=BatchesConfig(count=count), keep_layers=keep, labels=MASKED,
    )  # fmt: skip
    want = single("sage", norm, MASKED, precision)
    for answer in pool(world)(cases.curve, config, cases.graph_for("sage", 1)):
        assert_same_curve(answer["losses"], want["losses"], precision)


def test_rows_fetched_again_are_counted() -> None:
    """The second pass of a run of layers fetches their halo rows once more."""
    sent = []
    for keep in ("all", 1, 2):
        gcn = cases.model_config("gcn", norm="none", input_dropout=0.2)
        config = cases.run_config(gcn, world=2, epochs=3, keep_layers=keep)
        sent.append(pool(2)(cases.curve, config, nasty_graph())[0]["epoch_bytes"][-1])
    assert sent[0] == sent[1] < sent[2]  # one run is the last one: nothing is computed twice
