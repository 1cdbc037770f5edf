"""Unmodified layers on a typed sharded graph against DGL on the whole graph: outputs and every gradient."""

from __future__ import annotations

from functools import cache
from typing import Any

import dgl
import dgl.function as fn
import dgl.nn.pytorch as dglnn
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.modes import MODES
from sargnn.modules.calls import StockCalls
from sargnn.modules.dgl_typed import GraphMaker
from sargnn.modules.session import Places
from sargnn.modules.tag import Rows, tagged
from sargnn.partition.cut import parts_of
from sargnn.plan.graph import WorkerGraph
from sargnn.plan.load import PlanSettings
from tests.graphs import assign, typed_graph, with_weights
from tests.parity.covering import spread
from tests.pool import pool

GRAPH = with_weights(typed_graph(), lowest=-1)
IN, OUT = 5, 4
TYPES, OFFSETS = GRAPH.schema.node_types, GRAPH.schema.offsets
ETYPES = [(TYPES[one.source], one.name, TYPES[one.destination]) for one in GRAPH.schema.relations]
ByType = dict[str, Tensor]


class Hetero(nn.Module):
    """A layer per relation, joined as DGL's ``HeteroGraphConv`` does."""

    def __init__(self, make: Any, aggregate: str = "sum") -> None:
        super().__init__()
        self.conv = dglnn.HeteroGraphConv({etype: make() for etype in ETYPES}, aggregate=aggregate)

    def forward(self, graph: Any, x: ByType) -> ByType:
        found: ByType = {ntype: rows.flatten(1) for ntype, rows in self.conv(graph, x).items()}
        return found


class MultiUpdate(nn.Module):
    """``multi_update_all`` over some relations, with fields of nodes by type and an edge field."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(IN, OUT) for _ in ETYPES)

    def forward(self, graph: Any, x: ByType) -> ByType:
        with graph.local_scope():
            functions = {}
            for etype, one in zip(ETYPES, self.maps, strict=True):
                name = "_".join(etype)
                graph.nodes[etype[0]].data[name] = one(x[etype[0]])
                functions[etype] = (fn.copy_u(name, "m"), fn.mean("m", "h"))
            graph.ndata["d"] = {ntype: rows[:, :1].contiguous() for ntype, rows in x.items()}
            graph.apply_edges(fn.u_sub_v("d", "d", "w"), etype=("paper", "cites", "paper"))
            name = "_".join(("paper", "cites", "paper"))
            functions["paper", "cites", "paper"] = (fn.u_mul_e(name, "w", "m"), fn.sum("m", "h"))
            graph.multi_update_all(functions, "max")
            return {ntype: graph.dstnodes[ntype].data["h"] for ntype in TYPES if "h" in graph.dstnodes[ntype].data}


class Weighted(nn.Module):
    """``GraphConv`` of each relation with the graph's own weights, and messages with them."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(dglnn.GraphConv(IN, OUT, allow_zero_in_degree=True) for _ in ETYPES)

    def forward(self, graph: Any, x: ByType) -> ByType:
        found: dict[str, list[Tensor]] = {}
        for etype, conv in zip(ETYPES, self.convs, strict=True):
            one, weights = graph[etype], graph.edges[etype].data["w"]
            out = conv(one, (x[etype[0]], x[etype[2]]), edge_weight=weights)
            with one.local_scope():
                one.srcdata["h"] = x[etype[0]][:, :OUT].contiguous()
                one.update_all(fn.u_mul_e("h", "w", "m"), fn.mean("m", "h"))
                out = out + one.dstdata["h"]
            found.setdefault(etype[2], []).append(out)
        return {ntype: torch.stack(rows).sum(0) for ntype, rows in found.items()}


class Joined(nn.Module):
    """``RelGraphConv`` on all relations as one graph, with the graph's own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = dglnn.RelGraphConv(IN, OUT, len(ETYPES), regularizer="basis", num_bases=2)

    def forward(self, graph: Any, x: ByType) -> ByType:
        whole = graph.to_homogeneous() if hasattr(graph, "session") else dgl.to_homogeneous(graph, edata=["w"])
        weights = whole.edata["w"][:, None]
        out = self.conv(whole, torch.cat([x[ntype] for ntype in graph.ntypes]), whole.edata[dgl.ETYPE], weights)
        counts = [graph.num_nodes(ntype) for ntype in graph.ntypes]
        return dict(zip(graph.ntypes, out.split(counts), strict=True))


CASES: dict[str, Any] = {
    "sage": lambda: Hetero(lambda: dglnn.SAGEConv(IN, OUT, "mean")),
    "graphconv": lambda: Hetero(lambda: dglnn.GraphConv(IN, OUT), "mean"),
    "gat": lambda: Hetero(lambda: dglnn.GATConv((IN, IN), OUT, 2), "stack"),
    "multi": MultiUpdate,
    "weighted": Weighted,
    "joined": Joined,
}


def features() -> Tensor:
    return torch.randn(GRAPH.num_nodes, IN, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    found: nn.Module = CASES[name]().double()
    return found


def loss_of(found: ByType, ids: ByType) -> Tensor:
    """A sum over rows of weights that belong to the nodes."""
    total: Tensor = torch.zeros((), dtype=torch.float64)
    for ntype, rows in found.items():
        width = rows.flatten(1).shape[1]
        weights = torch.randn(10_000, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        total = total + (rows.flatten(1) * weights[ids[ntype] % 10_000]).sum()
    return total


@cache
def on_the_whole_graph(name: str) -> dict[str, Any]:
    edges = {etype: pair for etype, pair in zip(ETYPES, _edges(), strict=True)}
    counts = {ntype: GRAPH.schema.count(t) for t, ntype in enumerate(TYPES)}
    graph = dgl.heterograph(edges, num_nodes_dict=counts)
    assert GRAPH.columns.weight is not None
    for number, etype in enumerate(ETYPES):
        graph.edges[etype].data["w"] = torch.from_numpy(GRAPH.columns.weight[np.asarray(GRAPH.relation) == number]).double()
    layer, x = made(name), features().requires_grad_()
    found = layer(graph, {ntype: x[OFFSETS[t] : OFFSETS[t] + counts[ntype]] for t, ntype in enumerate(TYPES)})
    ids = {ntype: torch.arange(counts[ntype]) + OFFSETS[t] for t, ntype in enumerate(TYPES)}
    loss_of(found, ids).backward()
    assert x.grad is not None
    grads = {key: p.grad.numpy() for key, p in layer.named_parameters() if p.grad is not None}
    return {"found": {ntype: rows.detach().numpy() for ntype, rows in found.items()}, "dx": x.grad.numpy(), "grads": grads}


def _edges() -> list[tuple[Tensor, Tensor]]:
    found = []
    for number, relation in enumerate(GRAPH.schema.relations):
        a, b = GRAPH.schema.offsets[relation.source], GRAPH.schema.offsets[relation.destination]
        assert GRAPH.relation is not None
        chosen = np.asarray(GRAPH.relation) == number
        source = np.asarray(GRAPH.indices)[chosen].astype(np.int64) - a
        destination = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))[chosen] - b
        found.append((torch.from_numpy(source), torch.from_numpy(destination)))
    return found


def on_a_part(group: Group, name: str, mode: str) -> dict[str, Any]:
    part = list(parts_of(GRAPH, assign(GRAPH, "by_type" if group.world == 3 else "random", group.world), group.world))[
        group.rank
    ]
    engine = Engine(group, EngineSettings(mode=mode, dtype=torch.float64))
    worker = WorkerGraph(
        part,
        engine.exchange,
        PlanSettings(engine.group.rank, engine.mode.layout, message_rows=23, dtype=engine.dtype),
        add_self_loops=False,
        by_relation=True,
    )
    plans = worker.whole(1).plans
    maker, layer = GraphMaker(), made(name)
    maker.prepare(engine, plans)
    calls = StockCalls(engine, Places(group, plans), path=None)
    graph = maker.graph(maker.session(engine, calls), plans)
    x = features()[plans[0].node_ids].requires_grad_()
    bounds = plans[0].row_bounds
    rows = {n: tagged(x[bounds[t] : bounds[t + 1]], Rows("nodes", t)) for t, n in enumerate(TYPES)}
    with calls:
        found = layer(graph, rows)
    ids = {n: plans[0].node_ids[bounds[t] : bounds[t + 1]] for t, n in enumerate(TYPES)}
    loss_of(found, ids).backward()
    assert x.grad is not None
    grads = {key: group.sum_(p.grad.clone()).numpy() for key, p in layer.named_parameters() if p.grad is not None}
    return {
        "ids": {n: one.numpy() for n, one in ids.items()}, "found": {n: one.detach().numpy() for n, one in found.items()},
        "all": plans[0].node_ids.numpy(), "dx": x.grad.numpy(), "grads": grads,
    }  # fmt: skip


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert np.linalg.norm(found - wanted) <= 1e-9 * max(float(np.linalg.norm(wanted)), 1e-3)


@pytest.mark.parametrize(("name", "mode", "world"), spread(list(CASES), list(MODES), [1, 2, 3]))
def test_layer(name: str, mode: str, world: int) -> None:
    wanted = on_the_whole_graph(name)
    for answer in pool(world)(on_a_part, name, mode):
        assert answer["found"].keys() == wanted["found"].keys()
        for ntype, rows in answer["found"].items():
            close(rows, wanted["found"][ntype][answer["ids"][ntype] - OFFSETS[TYPES.index(ntype)]])
        close(answer["dx"], wanted["dx"][answer["all"]])
        assert answer["grads"].keys() == wanted["grads"].keys()
        for key, grad in wanted["grads"].items():
            close(answer["grads"][key], grad)
