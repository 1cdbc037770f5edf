"""Graphs with edge weights: first steps against the dense oracle, whole curves against one process, and weights of ones."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest

from sargnn.comm.group import Group
from sargnn.config.groups import LabelsConfig
from sargnn.engine.modes import MODES
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import EdgeColumns
from tests.graphs import nasty_graph, typed_graph, with_weights
from tests.parity import cases, checks
from tests.parity.cases import PAIRS
from tests.parity.checks import assert_same_curve
from tests.parity.covering import spread
from tests.pool import pool

WHERE = ["metis", "empty", "apart"]
POSITIVE = [*cases.NAMES, "label_propagation"]
SIGNED = ["sum", "gin", "gat", "gatv2"]
"""Models that divide by no sum of weights, so that these may be negative."""
GRAPHS = {f"weighted-{name}": with_weights(cases.graph_for(name)) for name in POSITIVE}
GRAPHS["signed"] = with_weights(nasty_graph(), lowest=-2.0)
checks.GRAPHS |= GRAPHS
TRAINED = with_weights(nasty_graph(seed=1))
TYPED = with_weights(typed_graph(seed=1))


def model_of(name: str, **changes: Any) -> cases.Model:
    """``sum`` is GraphSage's; ``sums`` is R-GCN that sums rows before it maps them."""
    if name == "sums":
        return cases.model_config("rgcn", order="aggregate_first", **changes)
    return cases.model_config("sage", aggregator="sum", **changes) if name == "sum" else cases.model_config(name, **changes)


def ones(dataset: Dataset) -> Dataset:
    """The same graph, every edge of which weighs 1."""
    return dataclasses.replace(dataset, columns=EdgeColumns.of({"weight": np.ones(dataset.num_edges, np.float32)}))


@pytest.mark.parametrize(
    ("name", "mode", "kernel", "partitioner", "world"),
    [
        *cases.spread_models(PAIRS, WHERE, [1, 2, 4]),
        *spread(["label_propagation"], PAIRS, WHERE, [1, 2, 4]),
    ],
)
def test_every_pair(name: str, mode: str, kernel: str, partitioner: str, world: int) -> None:
    model = model_of(name)
    checks.check(model, f"weighted-{name}", mode=mode, kernel=kernel, partitioner=partitioner, world=world)


@pytest.mark.parametrize(("name", "mode", "kernel", "precision"), spread(SIGNED, PAIRS, ["fp64", "fp32"]))
def test_negative_weights(name: str, mode: str, kernel: str, precision: str) -> None:
    checks.check(model_of(name), "signed", mode=mode, kernel=kernel, precision=precision, world=4)


@pytest.mark.parametrize(
    ("name", "mode", "rows"), spread(["sage", "gcn", "gat", "gatv2", "rgcn"], ["sar", "no_remat"], [1, 7, 30])
)
def test_messages_in_pieces(name: str, mode: str, rows: int) -> None:
    """Every piece has the weights of its own edges; the first layer's errors travel too."""
    model = model_of(name, input_dropout=0.3)
    checks.check(model, f"weighted-{name}", mode=mode, world=4, partitioner="metis", message_rows=rows)


@pytest.mark.parametrize(
    ("name", "mode"), spread(["sage", "gcn", "gat", "rgcn"], ["sar", "one_shot", "domain_parallel"])
)  # fmt: skip
def test_message_flow(name: str, mode: str) -> None:
    """The rows that the training nodes need: their edges keep their weights."""
    checks.check(model_of(name), f"weighted-{name}", mode=mode, world=2, mfg=True)


@pytest.mark.parametrize("name", ["sage", "gcn"])
def test_labels_beside_constant_rows(name: str) -> None:
    """Columns that change are aggregated beside those whose aggregate is kept."""
    labels = LabelsConfig(name="masked", rate=0.5, reuse=1)
    checks.check(model_of(name), f"weighted-{name}", world=2, labels=labels)


SEEDS = {"fp64": 3, "fp32": 4}
"""With seed 3 one of GAT's values before a ReLU is 3e-8 in epoch 3: in fp32 its sign depends on the order of sums."""


@cache
def single(name: str, precision: str) -> dict[str, Any]:
    config = cases.run_config(learning(name), kernel="reference", precision=precision, seed=SEEDS[precision])
    return cases.curve(Group.single(), config, graph(name))


def graph(name: str) -> Dataset:
    """What a model of the curves is trained on."""
    return TYPED if name in ("rgcn", "sums") else TRAINED


def learning(name: str) -> cases.Model:
    """One whose loss falls within a curve."""
    wider: dict[str, Any] = {"hidden": 10} if name.startswith("gat") else {}
    return model_of(name, input_dropout=0.2, **wider)


CURVES = [
    ("sage", "sar", "fused", "metis", 4, "fp64"),
    ("gcn", "domain_parallel", "reference", "metis", 2, "fp64"),
    ("gatv2", "one_shot", "fused", "random", 4, "fp64"),
    ("rgcn", "sar", "fused", "metis", 4, "fp64"),
    ("sums", "domain_parallel", "dgl", "by_type", 4, "fp64"),
    ("gat", "sar", "fused", "metis", 4, "fp32"),
]
"""Between them every kernel, every mode but ``no_remat`` and every reducer that uses weights."""
MORE = [
    ("gcn", "no_remat", "dgl", "random", 4, "fp64"),
    ("gat", "sar", "fused", "empty", 4, "fp64"),
    ("sage", "domain_parallel", "dgl", "metis", 4, "fp32"),
]


@pytest.mark.parametrize(
    ("name", "mode", "kernel", "partitioner", "world", "precision"),
    [*CURVES, *(pytest.param(*one, marks=pytest.mark.long) for one in MORE)],
)
def test_curve(name: str, mode: str, kernel: str, partitioner: str, world: int, precision: str) -> None:
    choices: dict[str, Any] = {"mode": mode, "kernel": kernel, "partitioner": partitioner, "world": world}
    config = cases.run_config(learning(name), precision=precision, seed=SEEDS[precision], **choices)
    want = single(name, precision)
    assert want["losses"][-1] < want["losses"][0]  # it learns, so the comparison means something
    for answer in pool(world)(cases.curve, config, graph(name)):
        assert_same_curve(answer["losses"], want["losses"], precision)


@pytest.mark.parametrize(("name", "mode"), spread(["sage", "sum", "gcn", "gat", "gatv2", "rgcn", "sums"], list(MODES)))
def test_weights_of_ones_are_no_weights(name: str, mode: str) -> None:
    """To rounding: sums of products instead of sums."""
    plain = dataclasses.replace(graph(name), columns=EdgeColumns())
    config = cases.run_config(model_of(name), mode=mode, world=2)
    with_ones, without, weighted = (pool(2)(cases.curve, config, one)[0] for one in (ones(plain), plain, graph(name)))
    np.testing.assert_allclose(with_ones["losses"], without["losses"], rtol=1e-12)
    assert not np.allclose(weighted["losses"], without["losses"], rtol=1e-3)


@pytest.mark.parametrize(("mode", "name"), spread(["sar", "one_shot", "domain_parallel"], ["sage", "gcn"]))
def test_the_static_aggregate_changes_nothing(name: str, mode: str) -> None:
    runs = []
    for cache_static in ("auto", False):
        config = cases.run_config(cases.model_config(name), mode=mode, world=2, cache_static=cache_static)
        runs.append(pool(2)(cases.curve, config, TRAINED)[0])
    assert runs[0]["losses"] == runs[1]["losses"]
    assert (runs[0]["epoch_bytes"][1] < runs[0]["epoch_bytes"][0]) == (mode != "domain_parallel")
