"""The exactness contract on 30-epoch loss curves: every model, mode, kernel, world and precision against one process with the
reference kernel; dropout, input dropout and batch norm are on.

Every two of model, mode and precision meet, with all kernels and worlds; the partitioner turns with model, kernel and world.

Each test prints the largest deviation of each kernel as a multiple of the contract's tolerance; see it with ``-s``.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest

from sargnn.bf16 import ROW_DTYPES
from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.engine.modes import MODES
from sargnn.errors import ConfigError, KernelError
from sargnn.graph.dataset import Dataset
from sargnn.partition import PARTITIONERS
from sargnn.report.groups import deviation
from tests.graphs import nasty_graph
from tests.parity import cases
from tests.parity.covering import spread
from tests.pool import pool

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]
WORLDS = (1, 2, 4, 8)
SPLITS = (*PARTITIONERS, "empty", "apart")
MODELS = (*cases.NAMES, "sage, max", "rgcn, no types")


def model_of(name: str) -> Any:
    changes = {"aggregator": "max"} if name == "sage, max" else {}
    return cases.model_config(name.partition(",")[0], input_dropout=0.2, **changes)


@cache
def graph_of(name: str) -> Dataset:
    return nasty_graph(seed=1) if name.endswith("no types") else cases.graph_for(name.partition(",")[0], seed=1)


@cache
def wanted(name: str, precision: str) -> list[float]:
    """The losses of one process with the reference kernel."""
    config = cases.run_config(model_of(name), kernel="reference", precision=precision, epochs=cases.CONTRACT_EPOCHS)
    losses: list[float] = cases.curve(Group.single(), config, graph_of(name))["losses"]
    return losses


def serves(config: RunConfig, graph: Dataset) -> bool:
    """Whether the mode takes the kernel: an epoch on one world."""
    try:
        cases.curve(Group.single(), dataclasses.replace(config, world=1, epochs=1), graph)
    except (ConfigError, KernelError):
        return False
    return True


@pytest.mark.parametrize(("name", "mode", "precision"), spread(MODELS, list(MODES), list(ROW_DTYPES)))
def test_every_curve_is_the_same(name: str, mode: str, precision: str) -> None:
    model, graph = model_of(name), graph_of(name)
    config = cases.run_config(model, mode=mode, precision=precision, epochs=cases.CONTRACT_EPOCHS)
    kernels = [
        one
        for one in cases.CPU_KERNELS
        if serves(dataclasses.replace(config, kernel=dataclasses.replace(config.kernel, name=one)), graph)
    ]
    assert kernels, "no kernel serves"
    if mode != "domain_parallel":  # which is DGL's operators and plain autograd
        assert kernels == cases.CPU_KERNELS
    for kernel in kernels:
        worst = 0.0
        for turn, world in enumerate(WORLDS, MODELS.index(name) + cases.CPU_KERNELS.index(kernel)):
            partitioner = SPLITS[turn % len(SPLITS)]
            run = dataclasses.replace(
                config,
                kernel=dataclasses.replace(config.kernel, name=kernel),
                partitioner=cases.run_config(model, partitioner=partitioner).partitioner,
                world=world,
            )
            losses = pool(world)(cases.curve, run, graph)[0]["losses"]
            assert len(losses) == len(wanted(name, precision))
            found = deviation(losses, wanted(name, precision), precision)
            assert found.within, (kernel, partitioner, world, found)
            worst = max(worst, found.relative / found.tolerance)
        print(f"{name}, {precision}, {mode}, {kernel}: {worst:.2g} of the tolerance")
