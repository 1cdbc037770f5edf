"""Features of edges of several relations, in PyG's layers against PyG on the whole graph: outputs and every gradient."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn

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
from sargnn.plan.graph import WorkerGraph
from sargnn.plan.load import PlanSettings
from tests.graphs import assign, typed_graph
from tests.modules.attr_layers import D, close, with_attr
from tests.parity.covering import spread
from tests.pool import pool

pytestmark = pytest.mark.filterwarnings("ignore:There exist node types:UserWarning")
GRAPH = with_attr(typed_graph())
IN, OUT = 6, 4
TYPES, OFFSETS = GRAPH.schema.node_types, GRAPH.schema.offsets
COUNTS = [GRAPH.schema.count(t) for t in range(len(TYPES))]
ETYPES = [(TYPES[relation.source], relation.name, TYPES[relation.destination]) for relation in GRAPH.schema.relations]
LABELLED = TYPES.index("paper")


class Hetero(nn.Module):
    """A layer of attention per relation."""

    def __init__(self) -> None:
        super().__init__()
        convs = {etype: gnn.GATConv(IN, OUT, add_self_loops=etype[0] == etype[2], edge_dim=D) for etype in ETYPES}
        self.conv = gnn.HeteroConv(convs, aggr="sum")

    def forward(self, x_dict: Any, edge_index_dict: Any, edge_attr_dict: Any) -> Tensor:
        rows: Tensor = self.conv(x_dict, edge_index_dict, edge_attr_dict=edge_attr_dict)["paper"]
        return rows


class Homogeneous(nn.Module):
    """Attention that knows each edge's relation, over all edges as one graph."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        width = OUT // arguments.get("dim", 1)
        self.conv = gnn.RGATConv(IN, width, len(ETYPES), edge_dim=D, **arguments)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, edge_attr: Tensor) -> Tensor:
        rows: Tensor = self.conv(x, edge_index, edge_type, edge_attr)
        return rows


class Heat(nn.Module):
    """Attention that embeds each edge's relation, with a linear map for each type of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = gnn.HEATConv(IN, OUT, len(TYPES), len(ETYPES), 3, D, 2, heads=2, concat=False)

    def forward(self, x: Tensor, edge_index: Tensor, node_type: Tensor, edge_type: Tensor, edge_attr: Tensor) -> Tensor:
        rows: Tensor = self.conv(x, edge_index, node_type, edge_type, edge_attr)
        return rows


CASES: dict[str, Any] = {
    "hetero": Hetero,
    "rgat": Homogeneous,
    "rgat_products": lambda: Homogeneous(attention_mode="multiplicative-self-attention", dim=2, mod="additive"),
    "rgat_degrees": lambda: Homogeneous(num_bases=2, mod="f-scaled"),
    "rgat_within": lambda: Homogeneous(attention_mechanism="within-relation"),
    "heat": Heat,
}


def features() -> Tensor:
    return torch.randn(GRAPH.num_nodes, IN, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def weights() -> Tensor:
    return torch.randn(COUNTS[LABELLED], OUT, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    module: nn.Module = CASES[name]().double()
    return module


@cache
def on_the_whole_graph(name: str) -> dict[str, Any]:
    source = np.asarray(GRAPH.indices).astype(np.int64)
    destination = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    relation, attr = np.asarray(GRAPH.relation), torch.from_numpy(np.asarray(GRAPH.columns[ATTR])).double()
    layer, x = made(name), features().requires_grad_()
    if name != "hetero":
        index, types = torch.from_numpy(np.stack([source, destination])), torch.from_numpy(relation.astype(np.int64))
        kinds = (torch.arange(len(TYPES)).repeat_interleave(torch.tensor(COUNTS)),) if name == "heat" else ()
        out = layer(x, index, *kinds, types, attr)[OFFSETS[LABELLED] : OFFSETS[LABELLED] + COUNTS[LABELLED]]
    else:
        edges, attrs = {}, {}
        for number, etype in enumerate(ETYPES):
            chosen, ends = relation == number, GRAPH.schema.relations[number]
            pair = [source[chosen] - OFFSETS[ends.source], destination[chosen] - OFFSETS[ends.destination]]
            edges[etype], attrs[etype] = torch.from_numpy(np.stack(pair)), attr[torch.from_numpy(chosen)]
        by_type = {ntype: x[OFFSETS[t] : OFFSETS[t] + COUNTS[t]] for t, ntype in enumerate(TYPES)}
        out = layer(by_type, edges, attrs)
    (out * weights()).sum().backward()
    assert x.grad is not None
    grads = {key: p.grad.numpy() for key, p in layer.named_parameters() if p.grad is not None}
    return {"out": out.detach().numpy(), "dx": x.grad.numpy(), "grads": grads}


def on_a_part(group: Group, name: str, mode: str) -> dict[str, Any]:
    by = "by_type" if group.world == 4 else "random"
    part = list(parts_of(GRAPH, assign(GRAPH, by, group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, dtype=torch.float64))
    settings = PlanSettings(group.rank, engine.mode.layout, message_rows=23, dtype=engine.dtype)
    worker = WorkerGraph(part, engine.exchange, settings, add_self_loops=False, by_relation=True)
    (plan,) = worker.whole(1).plans
    maker, layer = GraphMaker(), made(name)
    maker.prepare(engine, [plan])
    calls = StockCalls(engine, Places(group, [plan]), path=None)
    session = maker.session(engine, calls)
    x, bounds = features()[plan.node_ids].requires_grad_(), plan.row_bounds
    by_type = {ntype: tagged(x[bounds[t] : bounds[t + 1]], Rows("nodes", t)) for t, ntype in enumerate(TYPES)}
    graph = PygGraph(session, maker.graph(session, [plan]), by_type, tagged(x, Rows("nodes", -1)), LABELLED)
    signature = signature_of(layer)
    assert signature is not None
    with calls:
        out = graph.call(layer, signature)
    ids = plan.node_ids[bounds[LABELLED] : bounds[LABELLED + 1]] - OFFSETS[LABELLED]
    (out * weights()[ids]).sum().backward()
    assert x.grad is not None
    parameters = layer.named_parameters()  # a worker without rows of a type may have no gradient of what maps them
    grads = {
        key: group.sum_(torch.zeros_like(p.detach()) if p.grad is None else p.grad.clone()).numpy() for key, p in parameters
    }
    return {"ids": ids.numpy(), "all": plan.node_ids.numpy(), "out": out.detach().numpy(), "dx": x.grad.numpy(), "grads": grads}


@pytest.mark.parametrize(("name", "mode", "world"), spread(list(CASES), list(MODES), [1, 2, 4, 7]))
def test_layer(name: str, mode: str, world: int) -> None:
    wanted = on_the_whole_graph(name)
    for answer in pool(world)(on_a_part, name, mode):
        close(answer["out"], wanted["out"][answer["ids"]])
        close(answer["dx"], wanted["dx"][answer["all"]])
        for key, grad in wanted["grads"].items():
            close(answer["grads"][key], grad)
