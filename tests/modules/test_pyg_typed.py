"""Unmodified layers of PyG's on a typed sharded graph against PyG on the whole graph: outputs and every gradient."""

from __future__ import annotations

import math
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.utils.hetero import construct_bipartite_edge_index

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.modes import MODES
from sargnn.modules.calls import StockCalls
from sargnn.modules.dgl_typed import GraphMaker
from sargnn.modules.pyg import PygGraph, signature_of
from sargnn.modules.session import Places
from sargnn.modules.tag import Rows, tagged
from sargnn.partition.cut import parts_of
from sargnn.plan.graph import WorkerGraph
from sargnn.plan.load import PlanSettings
from tests.graphs import assign, typed_graph
from tests.parity.covering import spread
from tests.pool import pool

pytestmark = pytest.mark.filterwarnings("ignore:There exist node types:UserWarning")
GRAPH = typed_graph()
IN, OUT = 6, 4
TYPES, OFFSETS = GRAPH.schema.node_types, GRAPH.schema.offsets
COUNTS = [GRAPH.schema.count(t) for t in range(len(TYPES))]
ETYPES = [(TYPES[relation.source], relation.name, TYPES[relation.destination]) for relation in GRAPH.schema.relations]
LABELLED = TYPES.index("paper")
ByType = dict[str, Tensor]


class Hetero(nn.Module):
    """A layer per relation, joined by ``HeteroConv``."""

    def __init__(self, make: Any, aggr: str = "sum") -> None:
        super().__init__()
        self.conv = gnn.HeteroConv({etype: make(etype) for etype in ETYPES}, aggr=aggr)

    def forward(self, x_dict: ByType, edge_index_dict: dict[Any, Tensor]) -> Tensor:
        rows: Tensor = self.conv(x_dict, edge_index_dict)["paper"]
        return rows


class Han(nn.Module):
    """Attention over each relation's edges, and over the relations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = gnn.HANConv(IN, OUT, (list(TYPES), ETYPES), heads=2)

    def forward(self, x_dict: ByType, edge_index_dict: dict[Any, Tensor]) -> Tensor:
        rows: Tensor = self.conv(x_dict, edge_index_dict)["paper"]
        return rows


class Hgt(nn.Module):
    """Two layers of attention over the edges of all relations at once."""

    def __init__(self) -> None:
        super().__init__()
        meta = (list(TYPES), ETYPES)
        self.convs = nn.ModuleList([gnn.HGTConv(IN, 6, meta, heads=2), gnn.HGTConv(6, OUT, meta, heads=1)])

    def forward(self, x_dict: ByType, edge_index_dict: dict[Any, Tensor]) -> Tensor:
        for conv in self.convs:
            x_dict = x_dict | {name: rows for name, rows in conv(x_dict, edge_index_dict).items() if rows is not None}
        return x_dict["paper"]


class Joined(nn.Module):
    """The largest message over the edges of all relations, whose index and rows are joined to those of one graph; ``wrong``:
    with a mistake, such that other rows are read or written.
    """

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.lins = nn.ModuleDict({name: nn.Linear(IN, OUT) for name in TYPES})
        self.conv = gnn.SimpleConv(aggr="max")

    def forward(self, x_dict: ByType, edge_index_dict: dict[Any, Tensor]) -> Tensor:
        rows = {name: self.lins[name](x) for name, x in x_dict.items()}
        sizes = [x.size(0) for x in rows.values()]
        begins = dict(zip(rows, [0, *accumulate(sizes)], strict=False))
        read, written = {etype: begins[etype[0]] for etype in ETYPES}, begins
        if self.wrong == "read from the next row":
            read = {etype: begin + 1 for etype, begin in read.items()}
        elif self.wrong == "read from another type":
            read = {etype: begins[etype[2]] for etype in ETYPES}
        elif self.wrong == "written to the next row":
            written = {name: begin + 1 for name, begin in begins.items()}
        elif self.wrong == "written to one type":
            written = dict.fromkeys(begins, 0)
        index, _ = construct_bipartite_edge_index(edge_index_dict, read, written)
        table = torch.cat([rows[name] for name in (reversed(rows) if self.wrong == "types in another order" else rows)])
        if self.wrong == "rows in another order":
            table = table.roll(1, 0)
        out: Tensor = self.conv(table, index)
        return out[begins["paper"] : begins["paper"] + rows["paper"].size(0)]


class Numbers(nn.Module):
    """Numbers of nodes as Python has them, the largest of some edges' ends, and types' rows cut out of those of all."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(IN, OUT)

    def forward(self, x_dict: ByType, edge_index_dict: dict[Any, Tensor]) -> Tensor:
        index, table = edge_index_dict["paper", "cites", "paper"], torch.cat([self.lin(x) for x in x_dict.values()])
        sizes = {name: x.size(0) for name, x in x_dict.items()}
        first, last = sum(list(sizes.values())[:LABELLED]), sum(list(sizes.values())[: LABELLED + 1])
        papers, others = table[first:last], table[:first]
        largest, factor = int(index.max()), math.isqrt(sizes["author"]) * {sizes["author"]: 2.0}[COUNTS[0]]
        out = torch.zeros(largest + 1, OUT, dtype=table.dtype).index_add(0, index[1], papers[index[0]])
        return papers * (factor if largest < 1000 else 1.0) / (largest + 1) + out.sum(0) / 100 + others.mean(0)


class Homogeneous(nn.Module):
    """All nodes and edges as one graph, with the number of each edge's relation."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.conv = make()

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        rows: Tensor = self.conv(x, edge_index, edge_type)
        return rows


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.conv = nn.Linear(IN, IN), gnn.SAGEConv((-1, -1), OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows: Tensor = self.conv(self.lin(x).relu(), edge_index)
        return rows


def transformed() -> nn.Module:
    """A module for graphs of one type, made one for several by ``to_hetero``."""
    reached = [etype for etype in ETYPES if etype[0] != "venue"]
    types = [name for name in TYPES if name != "venue"]
    net = gnn.to_hetero(_Net(), (types, reached), aggr="mean")
    with torch.no_grad():
        net({name: torch.zeros(1, IN) for name in types}, {etype: torch.zeros(2, 1, dtype=torch.int64) for etype in reached})
    made: nn.Module = net
    return made


R = len(ETYPES)
CASES: dict[str, Any] = {
    "sage": lambda: Hetero(lambda etype: gnn.SAGEConv(IN, OUT)),
    "gat": lambda: Hetero(lambda etype: gnn.GATConv(IN, OUT, add_self_loops=etype[0] == etype[2]), "mean"),
    "graph": lambda: Hetero(lambda etype: gnn.GraphConv(IN, OUT), "max"),
    "han": Han,
    "hgt": Hgt,
    "joined": Joined,
    "numbers": Numbers,
    "rgcn": lambda: Homogeneous(lambda: gnn.RGCNConv(IN, OUT, R, num_bases=2)),
    "rgcn_blocks": lambda: Homogeneous(lambda: gnn.RGCNConv(IN, OUT, R, num_blocks=2)),
    "fast_rgcn": lambda: Homogeneous(lambda: gnn.FastRGCNConv(IN, OUT, R)),
    "rgat": lambda: Homogeneous(lambda: gnn.RGATConv(IN, OUT, R)),
    "film": lambda: Homogeneous(lambda: gnn.FiLMConv(IN, OUT, R)),
    "to_hetero": transformed,
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
    source, destination = (
        np.asarray(GRAPH.indices).astype(np.int64),
        np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr)),
    )
    relation = np.asarray(GRAPH.relation)
    layer, x = made(name), features().requires_grad_()
    if isinstance(layer, Homogeneous):
        index = torch.from_numpy(np.stack([source, destination]))
        out = layer(x, index, torch.from_numpy(relation.astype(np.int64)))
        out = out[OFFSETS[LABELLED] : OFFSETS[LABELLED] + COUNTS[LABELLED]]
    else:
        edges = {}
        for number, etype in enumerate(ETYPES):
            chosen, ends = relation == number, GRAPH.schema.relations[number]
            pair = [source[chosen] - OFFSETS[ends.source], destination[chosen] - OFFSETS[ends.destination]]
            edges[etype] = torch.from_numpy(np.stack(pair))
        out = layer({ntype: x[OFFSETS[t] : OFFSETS[t] + COUNTS[t]] for t, ntype in enumerate(TYPES)}, edges)
        out = out["paper"] if isinstance(out, dict) else out
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
    rows = {ntype: tagged(x[bounds[t] : bounds[t + 1]], Rows("nodes", t)) for t, ntype in enumerate(TYPES)}
    graph = PygGraph(session, maker.graph(session, [plan]), rows, tagged(x, Rows("nodes", -1)), LABELLED)
    signature = signature_of(layer)
    assert signature is not None
    with calls:
        out = graph.call(layer, signature)
    out = out["paper"] if isinstance(out, dict) else out
    ids = plan.node_ids[bounds[LABELLED] : bounds[LABELLED + 1]] - OFFSETS[LABELLED]
    (out * weights()[ids]).sum().backward()
    assert x.grad is not None
    parameters = layer.named_parameters()  # a worker without rows of a type may have no gradient of what maps them
    grads = {
        key: group.sum_(torch.zeros_like(p.detach()) if p.grad is None else p.grad.clone()).numpy() for key, p in parameters
    }
    return {
        "ids": ids.numpy(),
        "all": plan.node_ids.numpy(),
        "out": out.detach().numpy(),
        "dx": x.grad.numpy(),
        "grads": grads,
        "notes": maker.report,
    }


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape
    assert np.linalg.norm(got - wanted) <= 1e-9 * max(float(np.linalg.norm(wanted)), 1e-3)


@pytest.mark.parametrize(("name", "mode", "world"), spread(list(CASES), list(MODES), [1, 2, 4, 7]))
def test_layer(name: str, mode: str, world: int) -> None:
    wanted = on_the_whole_graph(name)
    for answer in pool(world)(on_a_part, name, mode):
        close(answer["out"], wanted["out"][answer["ids"]])
        close(answer["dx"], wanted["dx"][answer["all"]])
        for key, grad in wanted["grads"].items():
            close(answer["grads"][key], grad)
        if name == "hgt" and mode != "domain_parallel":
            assert any("sets of edges: dot_attention, kernel fused" in line for line in answer["notes"])


WRONG = {
    **dict.fromkeys(("read from the next row", "read from another type", "types in another order", "rows in another order"),
                    "in which those of their node type do not begin"),
    **dict.fromkeys(("written to the next row", "written to one type"), "where those of their node type do not begin"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_joined_tables_whose_rows_are_others_are_refused(wrong: str) -> None:
    """On several workers; one has the table as it is."""
    with (
        pytest.MonkeyPatch.context() as place,
        pytest.raises(AssertionError, match=WRONG[wrong]),
    ):
        place.setitem(CASES, "wrong", lambda: Joined(wrong))
        pool(2)(on_a_part, "wrong", "sar")
