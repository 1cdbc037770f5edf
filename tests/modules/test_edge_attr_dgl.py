"""Features of edges in DGL's layers on a sharded graph against DGL on the whole graph: outputs and every gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.modes import MODES
from sargnn.errors import ConfigError
from sargnn.graph.edge_columns import ATTR
from sargnn.interop.dgl import import_dgl
from sargnn.modules.calls import StockCalls
from sargnn.modules.dgl_typed import GraphMaker
from sargnn.modules.session import Places
from sargnn.modules.tag import Rows, tagged
from sargnn.partition.cut import parts_of
from sargnn.plan.load import PlanSettings, load_plan
from tests.graphs import assign, nasty_graph
from tests.modules.attr_layers import IN, OUT, D, close, with_attr
from tests.parity.covering import spread
from tests.pool import pool

import_dgl()

import dgl  # noqa: E402
import dgl.function as fn  # noqa: E402
import dgl.nn.pytorch as dglnn  # noqa: E402

GRAPH = with_attr(nasty_graph(150, seed=3))


class Own(nn.Module):
    """Message functions of DGL's and one's own, and a field that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.edge = nn.Linear(IN, D), nn.Linear(D, D)

    def forward(self, graph: Any, x: Tensor, feat: Any) -> Tensor:
        with graph.local_scope():
            graph.srcdata["h"] = self.lin(x)
            graph.edata["e"] = self.edge(graph.edata["feat"]).relu()
            graph.update_all(fn.u_mul_e("h", "e", "m"), fn.sum("m", "a"))
            graph.update_all(lambda edges: {"m": edges.src["h"] * edges.data["feat"]}, fn.max("m", "b"))
            graph.update_all(fn.copy_e("feat", "m"), fn.mean("m", "c"))
            rows: Tensor = graph.dstdata["a"] + graph.dstdata["b"] + graph.dstdata["c"]
            return rows


CASES: dict[str, Callable[[], nn.Module]] = {
    "edge_gat": lambda: dglnn.EdgeGATConv(IN, D, OUT, num_heads=2, allow_zero_in_degree=True),
    "gine": lambda: dglnn.GINEConv(nn.Linear(D, OUT), learn_eps=True),
    "nn": lambda: dglnn.NNConv(IN, OUT, nn.Linear(D, IN * OUT), "mean"),
    "egnn": lambda: dglnn.CFConv(IN, D, 6, OUT),
    "own": Own,
}


def rows(width: int = IN, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(GRAPH.num_nodes, width, generator=generator, dtype=torch.float64)


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return CASES[name]().double()


def call(name: str, layer: nn.Module, graph: Any, x: Tensor) -> Tensor:
    x = x[:, :D] if name == "gine" else x
    out: Tensor = layer(graph, x, graph.edata["feat"])
    return out.flatten(1)


@cache
def on_the_whole_graph(name: str) -> dict[str, Any]:
    destination = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    graph = dgl.graph((np.asarray(GRAPH.indices).astype(np.int64), destination), num_nodes=GRAPH.num_nodes)
    graph.edata["feat"] = torch.from_numpy(np.asarray(GRAPH.columns[ATTR])).double()
    layer, x = made(name), rows().requires_grad_()
    out = call(name, layer, graph, x)
    out.backward(rows(out.shape[1], seed=1))
    assert x.grad is not None
    grads = {key: p.grad.numpy() for key, p in layer.named_parameters() if p.grad is not None}
    return {"out": out.detach().numpy(), "dx": x.grad.numpy(), "grads": grads}


def on_a_part(group: Group, name: str, mode: str) -> dict[str, Any]:
    part = list(parts_of(GRAPH, assign(GRAPH, "metis", group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, dtype=torch.float64))
    plan = load_plan(part, PlanSettings(group.rank, engine.mode.layout, message_rows=17, dtype=engine.dtype))
    layer, own = made(name), plan.node_ids
    maker = GraphMaker()
    maker.prepare(engine, [plan])
    calls = StockCalls(engine, Places(group, [plan]), path=None)
    graph = maker.graph(maker.session(engine, calls), [plan])
    x = tagged(rows()[own].requires_grad_(), Rows("nodes"))
    with calls:
        out = call(name, layer, graph, x)
        with pytest.raises(ConfigError, match=r"features of edges are edata\['feat'\]"):
            graph.edata["attr"]
    out.backward(rows(out.shape[1], seed=1)[own])
    assert x.grad is not None
    grads = {key: group.sum_(p.grad.clone()).numpy() for key, p in layer.named_parameters() if p.grad is not None}
    return {"ids": own.numpy(), "out": out.detach().numpy(), "dx": x.grad.numpy(), "grads": grads, "notes": maker.report}


@pytest.mark.parametrize(("name", "mode", "world"), spread(list(CASES), list(MODES), [1, 2, 3]))
def test_layer(name: str, mode: str, world: int) -> None:
    wanted = on_the_whole_graph(name)
    for answer in pool(world)(on_a_part, name, mode):
        close(answer["out"], wanted["out"][answer["ids"]])
        close(answer["dx"], wanted["dx"][answer["ids"]])
        assert answer["grads"].keys() == wanted["grads"].keys()
        for key, grad in wanted["grads"].items():
            close(answer["grads"][key], grad)
        assert not any("held" in line for line in answer["notes"]), answer["notes"]
