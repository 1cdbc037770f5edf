"""Random first steps beside dense matrices: a hundred in ``make test``, thousands in ``make test-full``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, reject, settings

from sargnn.comm.group import Group
from sargnn.errors import ConfigError, KernelError
from tests.generated.cases import Case, steps
from tests.parity import cases, oracle
from tests.parity.checks import first_step, together
from tests.pool import near, pool

QUICK = settings(max_examples=100, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
MANY = settings(QUICK, max_examples=5000)


def check(case: Case) -> None:
    """The loss and every gradient of all workers, beside the oracle."""
    config, alone = case.config(), case.config(alone=True)
    assume(config is not None and alone is not None)
    assert config is not None and alone is not None
    graph = case.graph.make()
    try:
        start = cases.initial_parameters(Group.single(), alone, graph)
    except (ConfigError, KernelError):  # what is refused
        reject()
    params = {name: torch.from_numpy(value) for name, value in start.items()}
    try:
        want = oracle.first_step(cases.definition_of(alone.model), alone, graph, params)
    except ValueError:  # PyTorch's batch norm takes no single row
        reject()
    assume(np.isfinite(want["loss"]))  # a step may have no targets
    try:
        answers = (near if case.near else pool)(config.world)(first_step, config, graph)
    except AssertionError as error:
        if isinstance(error.__cause__, ConfigError | KernelError):
            reject()
        raise
    assert answers[0]["loss"] == pytest.approx(want["loss"], rel=1e-10, abs=1e-12)
    wanted = {name: grad.numpy() for name, grad in want["grads"].items() if grad is not None}
    found: dict[str, np.ndarray] = together(answers)
    everything = np.sqrt(sum(np.square(grad).sum() for grad in wanted.values()))
    for name, grad in wanted.items():
        bound = 1e-10 * max(np.linalg.norm(grad), 1e-3 * everything, 1e-6)
        assert np.linalg.norm(found[name] - grad) <= bound, name


@QUICK
@given(case=steps())
def test_some(case: Case) -> None:
    check(case)


@pytest.mark.long
@MANY
@given(case=steps())
def test_thousands(case: Case) -> None:
    check(case)
