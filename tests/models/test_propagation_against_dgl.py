"""SGC, APPNP and GCNII against DGL's own modules with the same weights: outputs and every gradient, on one and four workers.

On a graph with edges both ways: DGL's ``SGConv`` and ``GCN2Conv`` take in-degrees for both sides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sargnn.comm.group import Group, sum_flat
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.graph.dataset import Dataset, by_destination
from sargnn.graph.schema import Schema
from sargnn.interop.dgl import import_dgl
from sargnn.models import MODELS
from sargnn.models.base import LayerInput, Model
from sargnn.models.inputs import GraphShape
from sargnn.partition.cut import parts_of
from sargnn.plan.load import PlanSettings, load_plan, with_self_loops
from sargnn.resolve import resolve
from tests.graphs import NUM_CLASSES, NUM_FEATURES, assign, nasty_graph
from tests.models.layers import dgl_graph
from tests.parity import cases
from tests.pool import pool

STEPS, ALPHA, THETA, LAYERS = 4, 0.15, 0.6, 3
SETTINGS: dict[str, dict[str, Any]] = {
    "sgc": {"steps": STEPS},
    "appnp": {"steps": STEPS, "alpha": ALPHA, "edge_dropout": 0.0, "num_layers": 2, "norm": "none", "dropout": 0.0},
    "gcnii": {"alpha": ALPHA, "theta": THETA, "num_layers": LAYERS, "norm": "none", "dropout": 0.0},
}


def both_ways() -> Dataset:
    one = nasty_graph(seed=2)
    source, destination = np.asarray(one.indices), np.repeat(np.arange(one.num_nodes), np.diff(one.indptr))
    ends = np.concatenate([source, destination]), np.concatenate([destination, source])
    indptr, indices = by_destination(*ends, one.num_nodes)
    return Dataset.homogeneous("both ways", NUM_CLASSES, one.features[0], one.labels, one.split, indptr, indices)


GRAPH = both_ways()


def make(name: str, drops_input: bool) -> Model:
    """A model that takes its rows for constant, or does not."""
    config = cases.model_config(name, **SETTINGS[name], input_dropout=0.5 if drops_input else 0.0)
    torch.manual_seed(0)
    model: Model = config.build(GraphShape(Schema.homogeneous(GRAPH.num_nodes), (NUM_FEATURES,), NUM_CLASSES))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return model.double()


def rows_and_gradient() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    n = GRAPH.num_nodes
    return tuple(torch.randn(n, width, generator=generator).double() for width in (NUM_FEATURES, NUM_CLASSES))  # type: ignore[return-value]


def run(group: Group, name: str, mode: str, drops_input: bool) -> dict[str, Any]:
    part = list(parts_of(GRAPH, assign(GRAPH, "random", group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, kernel="auto", dtype=torch.float64))
    plan = load_plan(with_self_loops(part, group.rank), PlanSettings(group.rank, engine.mode.layout))
    model, (x, grad) = make(name, drops_input), rows_and_gradient()
    model.eval()  # nothing is dropped
    plans = [plan] * len(model.uses_edges)
    out = model(engine, plans, LayerInput(x[plan.node_ids]))
    out.backward(grad[plan.node_ids])
    grads = {key: p.grad for key, p in model.named_parameters()}
    sum_flat(group, [g for g in grads.values() if g is not None])
    with torch.no_grad():
        hidden = model(engine, plans, LayerInput(x[plan.node_ids]), hidden=True)
    return {
        "ids": plan.node_ids.numpy(), "out": out.detach().numpy(), "hidden": hidden.numpy(),
        "grads": {key: g.numpy() for key, g in grads.items() if g is not None},
    }  # fmt: skip


def by_dgl(name: str, params: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The logits, and what the last linear map reads."""
    conv, graph = import_dgl().nn.pytorch, dgl_graph(GRAPH, self_loops=True)
    F = nn.functional

    def linear(h: Tensor, where: str) -> Tensor:
        return F.linear(h, params[f"{where}.weight"], params[f"{where}.bias"])

    if name == "sgc":
        module = conv.SGConv(NUM_FEATURES, NUM_CLASSES, k=STEPS).double()
        with torch.no_grad():
            propagated = conv.SGConv(NUM_FEATURES, NUM_FEATURES, k=STEPS, bias=False).double()
            propagated.fc.weight.copy_(torch.eye(NUM_FEATURES))
            hidden = propagated(graph, x)
        weights = {"fc.weight": params["linear.weight"], "fc.bias": params["linear.bias"]}
        return torch.func.functional_call(module, weights, (graph, x)), hidden
    if name == "appnp":
        hidden, module = torch.relu(linear(x, "mlp.layers.0.linear")), conv.APPNPConv(k=STEPS, alpha=ALPHA)
        ones = torch.ones(graph.num_edges()).double()  # its own are fp32
        return module(graph, linear(hidden, "mlp.layers.1.linear"), ones), module(graph, hidden, ones)
    h = first = torch.relu(linear(x, "layers.0.linear"))
    for layer in range(1, LAYERS + 1):
        module = conv.GCN2Conv(h.shape[1], layer, alpha=ALPHA, lambda_=THETA, bias=False).double()
        h = torch.relu(torch.func.functional_call(module, {"weight1": params[f"layers.{layer}.weight"].T}, (graph, h, first)))
    return linear(h, f"layers.{LAYERS + 1}.linear"), h


@pytest.mark.parametrize("mode", ["sar", "domain_parallel"])
@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize(("name", "drops_input"), [("sgc", False), ("sgc", True), ("appnp", False), ("gcnii", False)])
def test_model(name: str, drops_input: bool, world: int, mode: str) -> None:
    x, grad = rows_and_gradient()
    leaves = {key: p.detach().clone().requires_grad_() for key, p in make(name, drops_input).named_parameters()}
    want, hidden = by_dgl(name, leaves, x)
    want.backward(grad)
    for answer in pool(world)(run, name, mode, drops_input):
        np.testing.assert_allclose(answer["out"], want.detach().numpy()[answer["ids"]], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(answer["hidden"], hidden.detach().numpy()[answer["ids"]], rtol=1e-9, atol=1e-9)
        assert answer["grads"].keys() == leaves.keys()
        for key, leaf in leaves.items():
            assert leaf.grad is not None
            np.testing.assert_allclose(answer["grads"][key], leaf.grad.numpy(), rtol=1e-9, atol=1e-9)


def test_initialised_as_the_papers_code() -> None:
    assert set(SETTINGS) <= set(MODELS)
    shape = GraphShape(Schema.homogeneous(1000), (300,), 40)
    sgc = resolve("model", MODELS, "sgc")(name="sgc", steps=1, input_dropout=0.0).build(shape)
    theirs = import_dgl().nn.pytorch.SGConv(300, 40)
    assert abs(sgc.linear.weight.std() - theirs.fc.weight.std()) < 0.1 * theirs.fc.weight.std() and not sgc.linear.bias.any()
    deep = cases.model_config("gcnii", hidden=100).build(shape)
    weight = deep.layers[1].weight
    assert 0.098 < weight.abs().max() <= 0.1 and abs(weight.std() - 0.2 / 12**0.5) < 0.001
