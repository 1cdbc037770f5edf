"""R-GCN layers, forward and every gradient, against DGL's ``RelGraphConv`` and ``HeteroGraphConv`` with the same weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group, sum_flat
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.interop.dgl import import_dgl
from sargnn.models.base import LayerInput
from sargnn.models.rgcn import RgcnLayer
from sargnn.models.stack import LayerSpec
from sargnn.partition.cut import parts_of
from sargnn.plan.load import PlanSettings, load_plan
from tests.graphs import assign, typed_graph, with_weights
from tests.pool import pool

GRAPH = typed_graph(seed=2)
WEIGHTED = with_weights(GRAPH)
IN, OUT = 7, 9
SPEC = LayerSpec(index=0, last=False, in_width=IN, out_width=OUT, bias=True)


def make(order: str, bases: int | None) -> RgcnLayer:
    torch.manual_seed(0)
    layer = RgcnLayer(SPEC, relations=len(GRAPH.schema.relations), bases=bases, order=order)
    assert layer.bias is not None
    torch.nn.init.normal_(layer.bias)
    return layer.double()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(GRAPH.num_nodes, width, generator=generator).double() for width in (IN, OUT))  # type: ignore[return-value]


def run(group: Group, order: str, bases: int | None, mode: str, weighted: bool = False) -> dict[str, Any]:
    graph = WEIGHTED if weighted else GRAPH
    part = list(parts_of(graph, assign(graph, "random", group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, kernel="auto", dtype=torch.float64))
    plan = load_plan(part, PlanSettings(group.rank, engine.mode.layout, message_rows=20, dtype=torch.float64))
    layer = make(order, bases)
    x, grad = inputs()
    leaf = x[plan.node_ids].requires_grad_()
    layer.prepare(engine, plan)
    result = layer(engine, plan, LayerInput(leaf))
    result.backward(grad[plan.node_ids])
    grads = {name: p.grad for name, p in layer.named_parameters()}
    sum_flat(group, [g for g in grads.values() if g is not None])
    assert leaf.grad is not None
    return {
        "ids": plan.node_ids.numpy(),
        "out": result.detach().numpy(),
        "d_x": leaf.grad.numpy(),
        "grads": {name: g.numpy() for name, g in grads.items() if g is not None},
    }


def edges() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sources, destinations and relations."""
    assert GRAPH.relation is not None
    destination = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    return tuple(torch.from_numpy(np.asarray(a)).long() for a in (GRAPH.indices, destination, GRAPH.relation))  # type: ignore[return-value]


def close(answers: list[dict[str, Any]], out: torch.Tensor, d_x: torch.Tensor, grads: dict[str, torch.Tensor]) -> None:
    for answer in answers:
        np.testing.assert_allclose(answer["out"], out.detach().numpy()[answer["ids"]], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(answer["d_x"], d_x.numpy()[answer["ids"]], rtol=1e-10, atol=1e-10)
        assert answer["grads"].keys() == grads.keys()
        for name, grad in grads.items():
            np.testing.assert_allclose(answer["grads"][name], grad.numpy(), rtol=1e-9, atol=1e-9)


CHOICES = [(order, mode) for order in ("transform_first", "aggregate_first") for mode in ("sar", "one_shot", "domain_parallel")]


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize(("bases", "weighted"), [(None, False), (3, False), (3, True)])
@pytest.mark.parametrize(("order", "mode"), CHOICES)
def test_rel_graph_conv(order: str, mode: str, bases: int | None, weighted: bool, world: int) -> None:
    dgl = import_dgl()
    ours = dict(make(order, bases).named_parameters())
    regularizer = None if bases is None else "basis"
    theirs = dgl.nn.pytorch.RelGraphConv(IN, OUT, len(GRAPH.schema.relations), regularizer, bases).double()
    names = {"weight": "linear_r.W", "loop": "loop_weight", "bias": "h_bias"}
    if bases is not None:
        names["coefficients"] = "linear_r.coeff"
    assert names.keys() == ours.keys()
    theirs.load_state_dict({other: ours[name] for name, other in names.items()})
    source, destination, relation = edges()
    graph = dgl.graph((source, destination), num_nodes=GRAPH.num_nodes)
    counts = torch.zeros(GRAPH.num_nodes, len(GRAPH.schema.relations)).double()
    own = torch.ones(len(source)).double() if not weighted else torch.from_numpy(np.asarray(WEIGHTED.columns.weight)).double()
    counts.index_put_((destination, relation), own, accumulate=True)
    x, d_out = inputs()
    leaf = x.clone().requires_grad_()
    out = theirs(graph, leaf, relation, norm=(own / counts[destination, relation].clamp(min=1e-30))[:, None])
    out.backward(d_out)
    assert leaf.grad is not None
    found = dict(theirs.named_parameters())
    close(
        pool(world)(run, order, bases, mode, weighted),
        out,
        leaf.grad,
        {name: found[other].grad for name, other in names.items()},
    )


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize(("order", "mode"), CHOICES)
def test_hetero_graph_conv(order: str, mode: str, world: int) -> None:
    """Its ``GraphConv`` with mean over each relation, summed over relations; the own rows' map is added by hand."""
    dgl = import_dgl()
    ours = {name: p.detach().clone().requires_grad_() for name, p in make(order, None).named_parameters()}
    schema = GRAPH.schema
    source, destination, relation = edges()
    ends = {}
    for r, one in enumerate(schema.relations):
        own = relation == r
        key = (schema.node_types[one.source], one.name, schema.node_types[one.destination])
        ends[key] = (source[own] - schema.offsets[one.source], destination[own] - schema.offsets[one.destination])
    counts = {t: schema.count(i) for i, t in enumerate(schema.node_types)}
    graph = dgl.heterograph(ends, num_nodes_dict=counts)
    conv = dgl.nn.pytorch.GraphConv
    convs = {
        one.name: conv(IN, OUT, norm="right", weight=True, bias=False, allow_zero_in_degree=True) for one in schema.relations
    }
    theirs = dgl.nn.pytorch.HeteroGraphConv(convs, aggregate="sum").double()
    with torch.no_grad():
        for r, one in enumerate(schema.relations):
            convs[one.name].weight.copy_(ours["weight"][r])
    x, d_out = inputs()
    leaf = x.clone().requires_grad_()
    tables = dict(zip(schema.node_types, leaf.split(list(counts.values())), strict=True))
    sums = theirs(graph, tables)
    rows = torch.cat([sums.get(t, torch.zeros(n, OUT).double()) for t, n in counts.items()])
    out = rows + leaf @ ours["loop"] + ours["bias"]
    out.backward(d_out)
    assert leaf.grad is not None and ours["loop"].grad is not None and ours["bias"].grad is not None
    grads = [convs[one.name].weight.grad for one in schema.relations]
    weight = torch.stack([torch.zeros(IN, OUT).double() if g is None else g for g in grads])
    wanted = {"weight": weight, "loop": ours["loop"].grad, "bias": ours["bias"].grad}
    close(pool(world)(run, order, None, mode), out, leaf.grad, wanted)


@pytest.mark.parametrize("bases", [None, 4])
def test_initialised_from_the_same_distribution(bases: int | None) -> None:
    torch.manual_seed(0)
    ours = RgcnLayer(dataclasses.replace(SPEC, in_width=60, out_width=80), relations=6, bases=bases)
    theirs = import_dgl().nn.pytorch.RelGraphConv(60, 80, 6, None if bases is None else "basis", bases)
    names = {"weight": "linear_r.W", "loop": "loop_weight"} | ({} if bases is None else {"coefficients": "linear_r.coeff"})
    for name, other in names.items():
        a, b = dict(ours.named_parameters())[name].detach(), dict(theirs.named_parameters())[other].detach()
        assert a.shape == b.shape
        assert abs(float(a.std()) - float(b.std())) <= (0.05 if a.numel() > 100 else 0.4) * float(b.std())
