"""Forward and every gradient against DGL's own layers with the same weights, on one and on four workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.interop.dgl import import_dgl
from sargnn.models.base import LayerInput
from sargnn.models.gat import GatLayer, GatV2Layer
from sargnn.models.gcn import GcnLayer
from sargnn.models.gin import GinLayer
from sargnn.models.sage import SageLayer
from sargnn.partition.cut import parts_of
from sargnn.plan.load import PlanSettings, load_plan, with_self_loops
from sargnn.rng import Draw, Purpose, neighbour_keys
from tests.graphs import assign
from tests.models.layers import GRAPH, HEADS, IN, dgl_graph, gat, inputs, make, run, spec
from tests.pool import pool


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("out", [4, 11, 20])  # narrower, equal, wider: transform first or aggregate first
@pytest.mark.parametrize(("kind", "self_loops"), [("mean", False), ("mean", True), ("gcn", True), ("gcn", False)])
def test_layer(kind: str, self_loops: bool, out: int, world: int) -> None:
    conv = import_dgl().nn.pytorch
    ours = make(kind, out)
    graph = dgl_graph(GRAPH, self_loops)
    theirs: Any
    if isinstance(ours, SageLayer):
        theirs = conv.SAGEConv(IN, out, "mean").double()
        theirs.load_state_dict(
            {"fc_neigh.weight": ours.neigh.weight, "fc_self.weight": ours.self.weight, "fc_self.bias": ours.self.bias}
        )
        names = {"neigh.weight": "fc_neigh.weight", "self.weight": "fc_self.weight", "self.bias": "fc_self.bias"}
    else:
        assert isinstance(ours, GcnLayer)
        theirs = conv.GraphConv(IN, out, norm="both", allow_zero_in_degree=True).double()
        theirs.load_state_dict({"weight": ours.linear.weight.T, "bias": ours.linear.bias})
        names = {"linear.weight": "weight", "linear.bias": "bias"}
    x, d_out = inputs(out)
    leaf = x.clone().requires_grad_()
    want = theirs(graph, leaf)
    want.backward(d_out)
    assert leaf.grad is not None
    theirs_by_name = dict(theirs.named_parameters())
    for answer in pool(world)(run, kind, out, self_loops):
        ids = answer["ids"]
        np.testing.assert_allclose(answer["out"], want.detach().numpy()[ids], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(answer["d_x"], leaf.grad.numpy()[ids], rtol=1e-10, atol=1e-10)
        for name, other in names.items():
            grad = theirs_by_name[other].grad.numpy()
            found = answer["grads"][name]
            np.testing.assert_allclose(found, grad if found.shape == grad.shape and other != "weight" else grad.T, atol=1e-9)


DGLS = {
    "neigh": "fc_neigh", "self": "fc_self", "pool": "fc_pool", "lstm": "lstm",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "mode"), [("pool", "sar"), ("pool", "one_shot"), ("lstm", "one_shot"), ("lstm", "domain_parallel")]
)
def test_sage_pool_and_lstm(kind: str, mode: str) -> None:
    """DGL's ``SAGEConv``; an LSTM reads a node's edges in the order of their numbers, which is made the drawn one."""
    ours = make(kind, 6)
    theirs = import_dgl().nn.pytorch.SAGEConv(IN, 6, kind).double()
    state = {f"{DGLS[name.partition('.')[0]]}.{name.partition('.')[2]}": value for name, value in ours.state_dict().items()}
    theirs.load_state_dict(state)
    graph = dgl_graph(GRAPH, False)
    source, destination = graph.edges()
    keys = neighbour_keys(source, destination, Draw(0, 0, Purpose.NEIGHBOURS, 0, 0.0))
    order = torch.from_numpy(np.lexsort((keys.numpy(), destination.numpy())))
    graph = import_dgl().graph((source[order], destination[order]), num_nodes=GRAPH.num_nodes)
    x, d_out = inputs(6)
    leaf = x.clone().requires_grad_()
    want = theirs(graph, leaf)
    want.backward(d_out)
    wanted = {name: p.grad for name, p in theirs.named_parameters()}
    assert leaf.grad is not None and len(wanted) == len(state)
    for answer in pool(4)(run, kind, 6, False, mode):
        ids = answer["ids"]
        np.testing.assert_allclose(answer["out"], want.detach().numpy()[ids], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(answer["d_x"], leaf.grad.numpy()[ids], rtol=1e-9, atol=1e-9)
        for (name, grad), theirs_name in zip(answer["grads"].items(), state, strict=True):
            np.testing.assert_allclose(grad, wanted[theirs_name].numpy(), rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("mode", ["sar", "domain_parallel"])
@pytest.mark.parametrize("out", [4, 20])
@pytest.mark.parametrize("kind", ["gin", "gin, eps learned"])
def test_gin_layer(kind: str, out: int, mode: str) -> None:
    """DGL's ``GINConv`` of the same perceptron."""
    ours = make(kind, out)
    assert isinstance(ours, GinLayer)
    maps = [one for one in ours.maps if isinstance(one, torch.nn.Linear)]
    perceptron = torch.nn.Sequential(maps[0]) if len(maps) == 1 else torch.nn.Sequential(maps[0], torch.nn.ReLU(), maps[1])
    learned = kind.endswith("learned")
    theirs = import_dgl().nn.pytorch.GINConv(perceptron, "sum", init_eps=0.25, learn_eps=learned).double()
    x, d_out = inputs(out)
    leaf = x.clone().requires_grad_()
    want = theirs(dgl_graph(GRAPH, False), leaf)
    want.backward(d_out)
    wanted = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    if learned:
        wanted["eps"] = theirs.eps.grad
    assert leaf.grad is not None and len(wanted) == len(list(ours.parameters()))
    for answer in pool(4)(run, kind, out, False, mode):
        ids = answer["ids"]
        np.testing.assert_allclose(answer["out"], want.detach().numpy()[ids], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(answer["d_x"], leaf.grad.numpy()[ids], rtol=1e-9, atol=1e-9)
        for name, grad in wanted.items():
            np.testing.assert_allclose(answer["grads"][name], grad.numpy(), rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("mode", ["sar", "domain_parallel"])
@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_attention_layer(kind: str, self_loops: bool, world: int, mode: str) -> None:
    conv, width = import_dgl().nn.pytorch, 7
    ours = make(kind, width)
    theirs: Any
    if kind == "gat":
        theirs = conv.GATConv(IN, width, HEADS, allow_zero_in_degree=True).double()
        names = {"linear.weight": "fc.weight", "attn_src": "attn_l", "attn_dst": "attn_r", "bias": "bias"}
    else:
        theirs = conv.GATv2Conv(IN, width, HEADS, allow_zero_in_degree=True).double()
        names = {f"{a}.{b}": f"fc_{a}.{b}" for a in ("src", "dst") for b in ("weight", "bias")} | {"attn": "attn"}
    own = dict(ours.named_parameters())
    assert names.keys() == own.keys()
    shapes = {name: p.shape for name, p in theirs.named_parameters()}
    theirs.load_state_dict({other: own[name].view(shapes[other]) for name, other in names.items()})
    x, d_out = inputs(ours.out_width)
    leaf = x.clone().requires_grad_()
    want = theirs(dgl_graph(GRAPH, self_loops), leaf).flatten(1)
    want.backward(d_out)
    assert leaf.grad is not None
    theirs_by_name = dict(theirs.named_parameters())
    for answer in pool(world)(run, kind, width, self_loops, mode):
        ids = answer["ids"]
        np.testing.assert_allclose(answer["out"], want.detach().numpy()[ids], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(answer["d_x"], leaf.grad.numpy()[ids], rtol=1e-10, atol=1e-10)
        for name, other in names.items():
            grad = theirs_by_name[other].grad.numpy()
            np.testing.assert_allclose(answer["grads"][name].reshape(grad.shape), grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_attention_is_initialised_from_the_same_distribution(kind: str) -> None:
    torch.manual_seed(0)
    conv = import_dgl().nn.pytorch
    ours: Any = (GatLayer if kind == "gat" else GatV2Layer)(spec(200, 360), gat(hidden=90, heads=4))
    theirs = (conv.GATConv if kind == "gat" else conv.GATv2Conv)(200, 90, 4)
    pairs = (
        {"linear.weight": "fc.weight", "attn_src": "attn_l"}
        if kind == "gat"
        else {"src.weight": "fc_src.weight", "attn": "attn"}
    )
    for name, other in pairs.items():
        a, b = (float(dict(m.named_parameters())[n].detach().std()) for m, n in ((ours, name), (theirs, other)))
        assert abs(a - b) <= 0.15 * b  # 360 numbers of a vector


@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_uniform_is_how_pyg_begins(kind: str) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    ours: Any = (GatLayer if kind == "gat" else GatV2Layer)(spec(200, 360), gat(hidden=90, heads=4, init="uniform"))
    theirs = (pyg.GATConv if kind == "gat" else pyg.GATv2Conv)(200, 90, 4)
    names = (
        {"linear.weight": "lin.weight", "attn_src": "att_src"}
        if kind == "gat"
        else {"src.weight": "lin_l.weight", "attn": "att"}
    )
    for name, other in names.items():
        a, b = (dict(m.named_parameters())[n].detach() for m, n in ((ours, name), (theirs, other)))
        assert abs(a.std() - b.std()) <= 0.15 * b.std() and abs(a.abs().max() - b.abs().max()) <= 0.05 * b.abs().max()
        assert a.abs().max() < 2 * a.std()  # as of no normal distribution


def test_last_layer_averages_its_heads() -> None:
    layer = GatLayer(replace(spec(IN, 5), last=True), gat(out_heads=2)).double()
    whole = GatLayer(spec(IN, 10, bias=False), gat(hidden=5, heads=2)).double()
    whole.load_state_dict({name: value for name, value in layer.state_dict().items() if name != "bias"})
    part = next(iter(parts_of(GRAPH, assign(GRAPH, "random", 1), 1)))
    plan = load_plan(with_self_loops(part, 0), PlanSettings(0, "sharded"))
    engine, x = Engine(Group.single(), EngineSettings(mode="sar", dtype=torch.float64)), inputs(5)[0]
    rows = LayerInput(x)
    torch.testing.assert_close(layer(engine, plan, rows), whole(engine, plan, rows).view(-1, 2, 5).mean(1))


@pytest.mark.parametrize("kind", ["mean", "gcn"])
def test_initialised_from_the_same_distribution(kind: str) -> None:
    torch.manual_seed(0)
    ours = GcnLayer(spec(200, 300)) if kind == "gcn" else SageLayer(spec(200, 300), aggregator=kind)
    conv = import_dgl().nn.pytorch
    theirs = conv.GraphConv(200, 300) if kind == "gcn" else conv.SAGEConv(200, 300, "mean")
    pairs = zip(sorted(p.shape[::-1] if kind == "gcn" and p.dim() == 2 else p.shape for p in ours.parameters()),
                sorted(p.shape for p in theirs.parameters()), strict=True)  # fmt: skip
    assert all(tuple(a) == tuple(b) for a, b in pairs)
    for a, b in zip(sorted(float(p.detach().std()) for p in ours.parameters()),
                    sorted(float(p.detach().std()) for p in theirs.parameters()), strict=True):  # fmt: skip
        assert abs(a - b) <= 0.1 * max(a, b)
