"""Features of edges in layers of PyG's on a sharded graph against PyG on the whole graph: outputs and every gradient."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.modes import MODES
from sargnn.graph.edge_columns import ATTR
from sargnn.modules.calls import StockCalls
from sargnn.modules.dgl_typed import GraphMaker
from sargnn.modules.pyg import PygGraph, signature_of
from sargnn.modules.session import Places
from sargnn.modules.tag import Rows, tagged
from sargnn.partition.cut import parts_of
from sargnn.plan.load import PlanSettings, load_plan
from tests.graphs import assign, nasty_graph
from tests.modules.attr_layers import CASES, IN, close, with_attr
from tests.parity.covering import spread
from tests.pool import pool

HELD = {"categories", "gat_reversed", "normed", "own", "pdn", "pdn_without_loops"}
"""Layers that need something of all edges at one time: reversed ones, batch norm, a mean, a condition, learned weights."""


GRAPH = with_attr(nasty_graph(150, seed=10))  # no node has two self-loops, of which PyG keeps one


def rows(width: int = IN, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(GRAPH.num_nodes, width, generator=generator, dtype=torch.float64)


def made(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return CASES[name]().double()


@cache
def on_the_whole_graph(name: str) -> dict[str, Any]:
    destination = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    index = torch.from_numpy(np.stack([np.asarray(GRAPH.indices).astype(np.int64), destination]))
    attr = torch.from_numpy(np.asarray(GRAPH.columns[ATTR])).double()
    layer, x = made(name), rows().requires_grad_()
    out = layer(x, index, edge_attr=attr)
    out.backward(rows(out.shape[1], seed=1))
    assert x.grad is not None
    grads = {key: p.grad.numpy() for key, p in layer.named_parameters() if p.grad is not None}
    return {"out": out.detach().numpy(), "dx": x.grad.numpy(), "grads": grads}


def on_a_part(group: Group, name: str, mode: str, kernel: str = "auto") -> dict[str, Any]:
    """Outputs and gradients of own rows, twice."""
    part = list(parts_of(GRAPH, assign(GRAPH, "metis", group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, kernel=kernel, dtype=torch.float64))
    plan = load_plan(part, PlanSettings(group.rank, engine.mode.layout, message_rows=17, dtype=engine.dtype))
    layer, own = made(name), plan.node_ids
    maker, signature = GraphMaker(), signature_of(layer)
    maker.prepare(engine, [plan])
    assert signature is not None and "edge_attr" in signature.names
    x = tagged(rows()[own].requires_grad_(), Rows("nodes"))

    def forward() -> torch.Tensor:
        calls = StockCalls(engine, Places(group, [plan]), path=None)
        session = maker.session(engine, calls)
        with calls:
            out: torch.Tensor = PygGraph(session, maker.graph(session, [plan]), x, x, 0).call(layer, signature)
        return out

    out = forward()
    out.backward(rows(out.shape[1], seed=1)[own])
    assert x.grad is not None
    grads = {key: group.sum_(p.grad.clone()).numpy() for key, p in layer.named_parameters() if p.grad is not None}
    with torch.no_grad():
        again = forward()
    return {
        "ids": own.numpy(), "out": out.detach().numpy(), "dx": x.grad.numpy(), "grads": grads, "notes": maker.report,
        "again": again.numpy(),
    }  # fmt: skip


@pytest.mark.parametrize(("name", "mode", "world"), spread(list(CASES), list(MODES), [1, 2, 4, 7]))
def test_layer(name: str, mode: str, world: int) -> None:
    wanted = on_the_whole_graph(name)
    for answer in pool(world)(on_a_part, name, mode):
        close(answer["out"], wanted["out"][answer["ids"]])
        if name != "normed":
            close(answer["again"], wanted["out"][answer["ids"]])
        close(answer["dx"], wanted["dx"][answer["ids"]])
        assert answer["grads"].keys() <= wanted["grads"].keys()
        for key, grad in wanted["grads"].items():
            close(answer["grads"].get(key, np.zeros_like(grad)), grad)
        held = [line for line in answer["notes"] if "held" in line]
        assert bool(held) == (name in HELD), held
