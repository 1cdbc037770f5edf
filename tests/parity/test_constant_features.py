"""Rows that are all the same: a variance that is nothing but rounding must not decide a run.

Features of ones make every row of a layer the same but for rounding. Divided by its standard deviation, that rounding decides
which elements ReLU lets through, and it differs between kernels and worlds. So a column is normalised to 0 where

    var_f < (64 eps)^2 mean_f'(mu_f'^2)        eps of the run's dtype, mean over the columns f' of a norm, per node type

that is, its output is beta, and neither gamma nor the rows get a gradient from it (an inverse standard deviation of 0 does all
of this). The rounding of a column is that of the terms that it is summed from, as large in all columns of a layer, whereas its
own mean may be small by cancellation: measured over 300 draws of weights, the rounding's standard deviation is at most 3.4 eps
of the means' root mean square, in fp32 and fp64 and for 11 to 128 features, but up to 20,000 eps of a column's own mean. A true
standard deviation as small as 8e-6 (fp32) or 1.4e-14 (fp64) of the layer's means carries nothing that rounding leaves readable.
The comparison is strict: a layer whose columns are all 0 (mean and variance) is normalised as ever.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from sargnn.comm.group import Group
from tests.graphs import NUM_FEATURES, constant_graph
from tests.parity import cases, oracle
from tests.parity.checks import assert_same_curve
from tests.parity.covering import spread
from tests.pool import pool

EPOCHS = 6
MODELS = {"sage": {}, "gcn": {}, "gat": {"attn_dropout": 0.0}}  # dropped edges would tell the rows apart
GRAPHS = {"ones": constant_graph(), "some": constant_graph(NUM_FEATURES // 2)}
# On ones in-degrees tell GCN's rows apart, so no variance is rounding. But every column of its first layer is a multiple of the
# same one, whose factor no loss depends on and which passes through 0 as Adam moves it: fp32 loses the curve on one worker.
CASES = [
    one
    for one in spread(list(MODELS), list(GRAPHS), ["fp64", "fp32"], cases.PAIRS, [1, 2, 4])
    if one.values[:3] != ("gcn", "ones", "fp32")
]


@cache
def expected(name: str, features: str, precision: str, activation: str) -> list[float]:
    config = cases.run_config(
        cases.model_config(name, activation=activation, **MODELS[name]), precision=precision, epochs=EPOCHS
    )
    start = cases.initial_parameters(Group.single(), config, GRAPHS[features])
    params = {key: torch.from_numpy(value) for key, value in start.items()}
    return oracle.curve(cases.definition_of(config.model), config, GRAPHS[features], params)


def check(name: str, features: str, precision: str, mode: str, kernel: str, world: int, activation: str = "relu") -> None:
    model = cases.model_config(name, activation=activation, **MODELS[name])
    config = cases.run_config(model, mode=mode, kernel=kernel, world=world, precision=precision, epochs=EPOCHS)
    for answer in pool(world)(cases.curve, config, GRAPHS[features]):
        assert_same_curve(answer["losses"], expected(name, features, precision, activation), precision)


@pytest.mark.parametrize(
    ("name", "features", "precision", "mode", "kernel", "world"),
    CASES,
)
def test_the_same_losses_everywhere(name: str, features: str, precision: str, mode: str, kernel: str, world: int) -> None:
    check(name, features, precision, mode, kernel, world)


@pytest.mark.parametrize(("mode", "kernel", "world"), [("sar", "fused", 1), ("sar", "dgl", 4), ("domain_parallel", "dgl", 2)])
@pytest.mark.parametrize("name", ["sage", "gat"])
def test_an_activation_with_a_slope_at_zero(name: str, mode: str, kernel: str, world: int) -> None:
    """ELU lets gradients through at 0, so that the shift behind a constant column learns."""
    check(name, "ones", "fp64", mode, kernel, world, "elu")
    assert expected(name, "ones", "fp64", "elu")[1:] != expected(name, "ones", "fp64", "relu")[1:]
