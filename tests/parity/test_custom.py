"""An ordinary module that repeats a model of the package has its losses: every mode, world, precision, labels, message flow."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sargnn.comm.group import Group
from sargnn.config.choices import ModelSettings
from sargnn.config.groups import LabelsConfig
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from tests.graphs import nasty_graph
from tests.parity import cases
from tests.pool import pool

GRAPH = nasty_graph(seed=1)
MODULES = Path(__file__).parent / "toys" / "own_modules.py"
STACK = {"hidden": 7, "num_layers": 3, "dropout": 0.4}
DROPPED = CustomSettings("custom", target=f"{MODULES}:Sage", args={**STACK, "input_dropout": 0.2})
PROPAGATED = CustomSettings("custom", target=f"{MODULES}:Propagated")
TWINS: dict[str, tuple[ModelSettings, CustomSettings]] = {
    "dropped": (DROPPED, DROPPED),  # the input's mask is another: one worker is the measure
    "propagated": (PROPAGATED, PROPAGATED),
    "sage": (
        cases.model_config("sage", **STACK, input_dropout=0.0),
        CustomSettings("custom", target=f"{MODULES}:Sage", args={**STACK, "input_dropout": 0.0}),
    ),
    "gat": (
        cases.model_config("gat", **STACK, input_dropout=0.0, heads=3, out_heads=1, attn_dropout=0.3),
        CustomSettings("custom", target=f"{MODULES}:Gat", args={**STACK, "heads": 3, "attn_dropout": 0.3}),
    ),
}
LABELS = LabelsConfig("masked", rate=0.6, reuse=1)
RUNS: list[Any] = [
    ("sage", "sar", "metis", 4, "fp64", {}),
    ("sage", "no_remat", "random", 2, "fp64", {"labels": LABELS}),
    pytest.param("sage", "one_shot", "empty", 4, "fp64", {"mfg": True}, marks=pytest.mark.long),
    ("sage", "domain_parallel", "metis", 2, "fp64", {"mfg": True, "labels": LABELS}),
    pytest.param("sage", "sar", "random", 1, "fp32", {}, marks=pytest.mark.long),
    ("sage", "sar", "metis", 4, "fp32", {"mfg": True}),
    ("dropped", "sar", "apart", 4, "fp64", {"labels": LABELS}),
    pytest.param("dropped", "one_shot", "metis", 2, "fp64", {}, marks=pytest.mark.long),
    ("propagated", "sar", "metis", 4, "fp64", {}),
    pytest.param("propagated", "domain_parallel", "random", 2, "fp64", {}, marks=pytest.mark.long),
    ("gat", "sar", "metis", 4, "fp64", {}),
    ("gat", "no_remat", "random", 2, "fp64", {"mfg": True, "labels": LABELS}),
    pytest.param("gat", "one_shot", "random", 4, "fp64", {}, marks=pytest.mark.long),
    ("gat", "domain_parallel", "metis", 2, "fp64", {}),
    pytest.param("gat", "sar", "random", 2, "fp32", {}, marks=pytest.mark.long),
]


@cache
def expected(name: str, labels: LabelsConfig | None, mfg: bool) -> list[float]:
    config = cases.run_config(TWINS[name][0], labels=labels, mfg=mfg)
    losses: list[float] = cases.curve(Group.single(), config, GRAPH)["losses"]
    return losses


@pytest.mark.parametrize(("name", "mode", "partitioner", "world", "precision", "more"), RUNS)
def test_curve(name: str, mode: str, partitioner: str, world: int, precision: str, more: dict[str, Any]) -> None:
    config: RunConfig = cases.run_config(
        TWINS[name][1], mode=mode, partitioner=partitioner, world=world, precision=precision, **more
    )
    loops = TWINS[name][0].adds_self_loops
    config = dataclasses.replace(config, dataset=dataclasses.replace(config.dataset, add_self_loops=loops))
    wanted = expected(name, more.get("labels"), more.get("mfg", False))
    for answer in pool(world)(cases.curve, config, GRAPH):
        for found, loss in zip(answer["losses"], wanted, strict=True):
            assert abs(found - loss) <= (1e-8 * loss if precision == "fp64" else 1e-4 * wanted[0])


def test_what_is_kept_is_not_changed_by_writes() -> None:
    """Sums of constant rows are kept from epoch to epoch; a module that writes to them has the losses of no keeping."""
    settings = CustomSettings("custom", target=f"{MODULES}:Written")
    kept, anew = (
        cases.curve(Group.single(), cases.run_config(settings, epochs=5, cache_static=cache), GRAPH)["losses"]
        for cache in ("auto", False)
    )
    assert kept == anew
