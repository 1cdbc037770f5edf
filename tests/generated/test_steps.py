"""Random first steps beside dense matrices or one worker: a hundred in ``make test``, five thousand in ``make test-full``."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, reject, seed, settings
from hypothesis import strategies as st

from sargnn.comm.group import Group
from sargnn.config.groups import LabelsConfig, SampleConfig
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, DataError, KernelError
from sargnn.graph.dataset import Dataset
from tests.generated.cases import Case, Graph, steps
from tests.parity import cases, oracle
from tests.parity.checks import first_step, together
from tests.pool import near, pool

QUICK = settings(max_examples=100, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
MANY, RUNS = settings(QUICK, derandomize=False), 50
"""Five thousand, in fifty tests of which each has its seed."""
_FEW = 16
REFUSED = (ConfigError, DataError, KernelError)


def wanted(case: Case, config: RunConfig, graph: Dataset) -> tuple[float, dict[str, np.ndarray]]:
    """The loss, and every gradient: of dense matrices, or of one worker."""
    if not case.has_oracle:
        answer = first_step(Group.single(), config, graph)
        return answer["loss"], together([answer])
    start = cases.initial_parameters(Group.single(), config, graph)
    params = {name: torch.from_numpy(value) for name, value in start.items()}
    try:
        want: dict[str, Any] = oracle.first_step(cases.definition_of(config.model), config, graph, params)
    except ValueError:  # PyTorch's batch norm takes no single row
        reject()
    return want["loss"], {name: grad.numpy() for name, grad in want["grads"].items() if grad is not None}


def check(case: Case) -> None:
    """All workers have the loss and every gradient."""
    config, alone = case.config(), case.config(alone=True)
    assume(config is not None and alone is not None)
    assert config is not None and alone is not None
    try:
        graph = case.data()
        loss, gradients = wanted(case, alone, graph)
    except REFUSED:
        reject()
    assume(np.isfinite(loss))  # a step may have no targets
    try:
        answers = (near if case.near else pool)(config.world)(partial(first_step, unwritten=True), config, graph)
    except AssertionError as error:
        if isinstance(error.__cause__, REFUSED):
            reject()
        raise
    relative = 1e-10 if config.precision == "fp64" else 1e-3
    assert answers[0]["loss"] == pytest.approx(loss, rel=relative, abs=relative / 100)
    if config.precision == "fp32" and config.norms_over_rows and graph.num_nodes < _FEW:
        relative *= 10  # of few rows a norm's gradient is a small difference of large numbers: of two, eps / variance of them
    of_all: dict[str, np.ndarray] = together(answers)
    everything = np.sqrt(sum(np.square(grad).sum() for grad in gradients.values()))
    for name, grad in gradients.items():
        bound = relative * max(np.linalg.norm(grad), 1e-3 * everything, 1e-6)
        assert np.linalg.norm(of_all[name] - grad) <= bound, name


@QUICK
@given(case=steps())
def test_some(case: Case) -> None:
    check(case)


@pytest.mark.long
@pytest.mark.parametrize("number", range(RUNS))
def test_a_hundred_others(number: int) -> None:
    @seed(number)
    @MANY
    @given(case=steps())
    def run(case: Case) -> None:
        check(case)

    run()


_WAY = {"mode": "sar", "kernel": "fused", "world": 1, "partitioner": "auto", "message_rows": None, "prefetch_depth": 0}
_TWO_ROWS = Case(
    Graph(seed=1, counts=(2,), edges=(7,), isolated=0, hubs=0, repeats=0, loops=0, weighted=False),
    "gin",
    {"num_layers": 1, "norm": "batch", "dropout": 0.0, "residual": False},
    {"seed": 0, "labels": LabelsConfig(name="masked", rate=0.4, reuse=0)},
    _WAY | {"aggregate": "post", "keep_layers": "all", "column_groups": None, "precision": "fp32"},
)


_LAST_EDGE = Case(
    Graph(seed=0, counts=(1, 2), edges=(0, 0, 0, 1), isolated=0, hubs=0, repeats=0, loops=0, weighted=False),
    "rgat",
    {"num_layers": 1, "norm": "none", "dropout": 0.0, "residual": False},
    {"seed": 0, "sample": SampleConfig(fanouts=[-1])},
    _WAY | {"aggregate": "post", "keep_layers": "all", "column_groups": None, "precision": "fp64"},
    task="links",
    pairs={"decoder": "dot", "embedding_dim": 6, "loss": "bce", "negatives": 1, "corrupt": "tail", "strict": False},
)
_SCORED_EDGE = dataclasses.replace(
    _LAST_EDGE,
    graph=Graph(seed=0, counts=(5,), edges=(1,), isolated=0, hubs=0, repeats=0, loops=0, weighted=False),
    model="sage",
    way=_LAST_EDGE.way | {"mode": "domain_parallel", "kernel": "reference"},
)


@QUICK
@given(case=st.just(_LAST_EDGE))
def test_a_pair_whose_edge_is_the_only_one(case: Case) -> None:
    """What was found: a sampled step leaves a pair's edge out, and its degrees were those of the whole graph where all other
    edges are kept, so that attention gave a row without any edge whatever lay in memory."""
    check(case)


@QUICK
@given(case=st.just(_SCORED_EDGE))
def test_a_pair_whose_edge_is_among_constants(case: Case) -> None:
    """What was found: where a sampled step keeps all other edges, the first layer's aggregates had the pair's edge in them."""
    check(case)


@QUICK
@given(case=st.just(_TWO_ROWS))
def test_two_rows_that_a_norm_makes_opposite(case: Case) -> None:
    """What was found: in fp32 their gradients have an error of 1.1e-3, for little is left of them in a norm's backward."""
    check(case)
