"""A layer by itself on every rank of a pool, and the graph that DGL's layers get."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sargnn.comm.group import Group, sum_flat
from sargnn.config.models import GatSettings, GinSettings
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.graph.dataset import Dataset
from sargnn.interop.dgl import import_dgl
from sargnn.models.base import LayerInput
from sargnn.models.gat import GatLayer, GatV2Layer
from sargnn.models.gcn import GcnLayer
from sargnn.models.gin import GinLayer
from sargnn.models.sage import LstmLayer, PoolLayer, SageLayer
from sargnn.models.stack import GraphLayer, LayerSpec
from sargnn.partition.cut import parts_of
from sargnn.plan.load import PlanSettings, load_plan, with_self_loops
from tests.graphs import assign, nasty_graph
from tests.parity import cases

GRAPH = nasty_graph(seed=2)
IN, HEADS = 11, 3


def spec(in_width: int, out_width: int, *, bias: bool = True) -> LayerSpec:
    """Of a first layer that is not the last one."""
    return LayerSpec(index=0, last=False, in_width=in_width, out_width=out_width, bias=bias)


def gin(**changes: Any) -> GinSettings:
    """Without norms."""
    settings = cases.model_config("gin", norm="none", eps=0.25, **changes)
    assert isinstance(settings, GinSettings)
    return settings


def gat(**changes: Any) -> GatSettings:
    """With all of its attention."""
    settings = cases.model_config("gat", **{"heads": HEADS, "attn_dropout": 0.0, **changes})
    assert isinstance(settings, GatSettings)
    return settings


KINDS = {
    "pool": lambda out: PoolLayer(spec(IN, out)),
    "lstm": lambda out: LstmLayer(spec(IN, out)),
    "gin": lambda out: GinLayer(spec(IN, out), gin(hidden=out, learn_eps=False)),
    "gin, eps learned": lambda out: GinLayer(spec(IN, out), gin(hidden=out, learn_eps=True, mlp_layers=1)),
    "gcn": lambda out: GcnLayer(spec(IN, out)),
    "gat": lambda out: GatLayer(spec(IN, HEADS * out), gat(hidden=out)),
    "gatv2": lambda out: GatV2Layer(spec(IN, HEADS * out, bias=False), gat(hidden=out, v2=True)),
}


def make(kind: str, out: int) -> GraphLayer:
    """A layer in fp64: one of ``KINDS``, or GraphSage with this aggregator; the same parameters each time."""
    torch.manual_seed(0)
    layer: GraphLayer = KINDS[kind](out) if kind in KINDS else SageLayer(spec(IN, out), aggregator=kind)
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return layer.double()


def inputs(out: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Input rows [N, IN] and gradients of output rows [N, out], fp64."""
    generator = torch.Generator().manual_seed(1)
    n = GRAPH.num_nodes
    return torch.randn(n, IN, generator=generator).double(), torch.randn(n, out, generator=generator).double()


def run(
    group: Group, kind: str, out: int, self_loops: bool, mode: str = "sar", graph: Dataset = GRAPH, message_rows: int = 2**31
) -> dict[str, Any]:
    """A layer forward and backward on this rank: own rows with their ids, and gradients summed over ranks."""
    part = list(parts_of(graph, assign(graph, "random", group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, kernel="auto", dtype=torch.float64))
    plan = load_plan(
        with_self_loops(part, group.rank) if self_loops else part,
        PlanSettings(group.rank, engine.mode.layout, message_rows=message_rows, dtype=torch.float64),
    )
    layer = make(kind, out)
    x, grad = inputs(layer.out_width)
    leaf = x[plan.node_ids].requires_grad_()
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


def dgl_graph(dataset: Dataset, self_loops: bool) -> Any:
    """DGL's graph of a homogeneous dataset's edges."""
    dgl = import_dgl()
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    ends = (torch.from_numpy(dataset.indices).long(), torch.from_numpy(destination))
    graph = dgl.graph(ends, num_nodes=dataset.num_nodes)
    return dgl.add_self_loop(dgl.remove_self_loop(graph)) if self_loops else graph
