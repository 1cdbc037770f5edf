"""Unmodified layers on a sharded graph against DGL on the whole graph: outputs and every gradient."""

from __future__ import annotations

from functools import cache
from typing import Any

import dgl
import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.modes import MODES
from sargnn.modules.calls import StockCalls
from sargnn.modules.dgl_typed import GraphMaker
from sargnn.modules.session import Places
from sargnn.modules.tag import Rows, tagged
from sargnn.partition.cut import parts_of
from sargnn.plan.load import PlanSettings, load_plan
from tests.graphs import assign, nasty_graph, with_weights
from tests.modules.dgl_layers import CASES, IN
from tests.parity.covering import spread
from tests.pool import pool

GRAPH = with_weights(nasty_graph(150, seed=3), lowest=-1)
TOLERANCE = 1e-9


def rows(width: int = IN, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(GRAPH.num_nodes, width, generator=generator, dtype=torch.float64)


def made(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return CASES[name].make().double()


@cache
def on_the_whole_graph(name: str) -> dict[str, Any]:
    destination = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    graph = dgl.graph((np.asarray(GRAPH.indices).astype(np.int64), destination), num_nodes=GRAPH.num_nodes)
    graph.edata["w"] = torch.from_numpy(np.asarray(GRAPH.columns.weight)).double()
    layer, x = made(name), rows().requires_grad_()
    out = CASES[name].call(layer, graph, x)
    out.backward(rows(out.shape[1], seed=1))
    assert x.grad is not None
    grads = {key: p.grad.numpy() for key, p in layer.named_parameters() if p.grad is not None}
    return {"out": out.detach().numpy(), "dx": x.grad.numpy(), "grads": grads}


def on_a_part(group: Group, name: str, mode: str, kernel: str, distinct: int = GRAPH.num_nodes) -> dict[str, Any]:
    """Outputs and gradients of own rows; the graph's rows are the first ``distinct`` ones over and over."""
    part = list(parts_of(GRAPH, assign(GRAPH, "metis", group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, kernel=kernel, dtype=torch.float64))
    plan = load_plan(part, PlanSettings(group.rank, engine.mode.layout, message_rows=17, dtype=engine.dtype))
    layer, own = made(name), plan.node_ids
    maker = GraphMaker()
    maker.prepare(engine, [plan])
    calls = StockCalls(engine, Places(group, [plan]), path=None)
    graph = maker.graph(maker.session(engine, calls), [plan])
    x = tagged(rows()[own % distinct].requires_grad_(), Rows("nodes"))
    with calls:
        out = CASES[name].call(layer, graph, x)
    out.backward(rows(out.shape[1], seed=1)[own])
    assert x.grad is not None
    grads = {key: group.sum_(p.grad.clone()).numpy() for key, p in layer.named_parameters() if p.grad is not None}
    with torch.no_grad(), calls:
        again = CASES[name].call(layer, graph, x)
    return {
        "ids": own.numpy(), "out": out.detach().numpy(), "dx": x.grad.numpy(), "grads": grads, "notes": maker.report,
        "again": again.numpy(),
    }  # fmt: skip


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert np.linalg.norm(found - wanted) <= TOLERANCE * max(float(np.linalg.norm(wanted)), 1e-3)


@pytest.mark.parametrize(("name", "mode", "world"), spread(list(CASES), list(MODES), [1, 2, 4], strength=2))
def test_layer(name: str, mode: str, world: int) -> None:
    if not CASES[name].folds and mode in ("sar", "no_remat"):
        with pytest.raises(AssertionError, match="be folded"):
            pool(world)(on_a_part, name, mode, "auto")
        return
    wanted = on_the_whole_graph(name)
    for answer in pool(world)(on_a_part, name, mode, "auto"):
        close(answer["out"], wanted["out"][answer["ids"]])
        close(answer["again"], wanted["out"][answer["ids"]])
        close(answer["dx"], wanted["dx"][answer["ids"]])
        assert answer["grads"].keys() == wanted["grads"].keys()
        for key, grad in wanted["grads"].items():
            close(answer["grads"][key], grad)


@pytest.mark.parametrize(("mode", "world"), [("sar", 2), ("no_remat", 4), ("one_shot", 4)])
def test_ties_of_maxima_go_to_the_same_source_anywhere(mode: str, world: int) -> None:
    """Messages of equal rows are equal: who gets the gradient must not depend on where the edges are."""
    (alone,) = pool(1)(on_a_part, "written", "sar", "auto", 3)
    for answer in pool(world)(on_a_part, "written", mode, "auto", 3):
        close(answer["dx"], alone["dx"][answer["ids"]])


@pytest.mark.parametrize("name", ["graphconv_own_weights", "sage_own_weights"])
def test_the_graphs_weights_in_stock_layers_take_a_fused_kernel(name: str) -> None:
    (answer,) = pool(1)(on_a_part, name, "sar", "auto")
    assert any("weighted" in line and "kernel" in line for line in answer["notes"]), answer["notes"]
    assert not any("run by run" in line for line in answer["notes"]), answer["notes"]


@pytest.mark.parametrize("name", ["dotgat", "scaled_products", "products_with_edges"])
def test_attention_by_products_takes_a_fused_kernel(name: str) -> None:
    (answer,) = pool(1)(on_a_part, name, "sar", "auto")
    assert any("dot_attention, kernel fused" in line for line in answer["notes"]), answer["notes"]
    assert not any("run by run" in line for line in answer["notes"]), answer["notes"]


def test_products_summed_over_heads_are_no_attention_per_head() -> None:
    (answer,) = pool(1)(on_a_part, "sums_over_heads", "sar", "auto")
    assert not any("dot_attention" in line for line in answer["notes"]), answer["notes"]
