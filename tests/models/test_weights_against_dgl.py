"""Layers on a graph with edge weights against DGL's own, which are given the weights, on one and on four workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sargnn.interop.dgl import import_dgl
from tests.graphs import nasty_graph, with_weights
from tests.models.layers import HEADS, IN, inputs, make, run
from tests.parity.covering import spread
from tests.pool import pool

GRAPH = with_weights(nasty_graph(seed=2))
WIDTHS = (4, 20)
KINDS = ("mean", "sum", "gcn", "gat", "gatv2")
LOOPS = ("gcn", "gat", "gatv2")


def weighted_graph(self_loops: bool) -> tuple[Any, Tensor]:
    """DGL's graph and its edges' weights; loops that are added weigh 1."""
    dgl = import_dgl()
    source = torch.from_numpy(np.asarray(GRAPH.indices)).long()
    destination = torch.from_numpy(np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr)))
    weight = torch.from_numpy(np.asarray(GRAPH.columns.weight)).double()
    if self_loops:
        kept, every = source != destination, torch.arange(GRAPH.num_nodes)
        source, destination = torch.cat([source[kept], every]), torch.cat([destination[kept], every])
        weight = torch.cat([weight[kept], torch.ones(len(every)).double()])
    return dgl.graph((source, destination), num_nodes=GRAPH.num_nodes), weight


def by_dgl(kind: str, out: int) -> tuple[Any, dict[str, str], Callable[[Tensor], Tensor]]:
    """DGL's layer with the parameters of ours, which of its names are which of ours, and its outputs of rows."""
    conv, ours = import_dgl().nn.pytorch, dict(make(kind, out).named_parameters())
    graph, weight = weighted_graph(kind in LOOPS)
    theirs: Any
    if kind in ("mean", "sum"):
        # DGL's mean divides by the in-degree; the mean of these weights is that by their sum.
        into = graph.edges()[1]
        sums = torch.zeros(GRAPH.num_nodes).double().index_add_(0, into, weight)
        scale = torch.where(sums > 0, 1 / sums, 0) if kind == "mean" else torch.ones(GRAPH.num_nodes).double()
        weight = weight * (scale * graph.in_degrees().clamp(min=1))[into]
        theirs = conv.SAGEConv(IN, out, "mean").double()
        names = {"neigh.weight": "fc_neigh.weight", "self.weight": "fc_self.weight", "self.bias": "fc_self.bias"}
    elif kind == "gcn":
        # EdgeWeightNorm("both") refuses weights of 0, which count for nothing.
        kept = weight > 0
        graph = import_dgl().graph((graph.edges()[0][kept], graph.edges()[1][kept]), num_nodes=GRAPH.num_nodes)
        weight = conv.EdgeWeightNorm("both")(graph, weight[kept])
        theirs = conv.GraphConv(IN, out, norm="none", allow_zero_in_degree=True).double()
        names = {"linear.weight": "weight", "linear.bias": "bias"}
    elif kind == "gat":
        theirs = conv.GATConv(IN, out, HEADS, allow_zero_in_degree=True).double()
        names = {"linear.weight": "fc.weight", "attn_src": "attn_l", "attn_dst": "attn_r", "bias": "bias"}
    else:
        theirs = conv.GATv2Conv(IN, out, HEADS, allow_zero_in_degree=True).double()
        names = {f"{a}.{b}": f"fc_{a}.{b}" for a in ("src", "dst") for b in ("weight", "bias")} | {"attn": "attn"}
    shapes = {name: p.shape for name, p in theirs.named_parameters()}
    assert names.keys() == ours.keys()
    turned = {name: p.T if kind == "gcn" and name == "linear.weight" else p for name, p in ours.items()}
    theirs.load_state_dict({other: turned[name].reshape(shapes[other]) for name, other in names.items()})
    if kind != "gatv2":
        return theirs, names, lambda x: theirs(graph, x, edge_weight=weight).flatten(1)

    def weigh_attention(x: Tensor) -> Tensor:
        """GATv2Conv takes no weights: its attention, and the sum by hand."""
        _, attention = theirs(graph, x, get_attention=True)
        rows = theirs.fc_src(x).view(-1, HEADS, out)
        source, destination = graph.edges()
        messages = rows[source] * attention * weight[:, None, None]
        return torch.zeros_like(rows).index_add(0, destination, messages).flatten(1)

    return theirs, names, weigh_attention


@pytest.mark.parametrize(
    ("kind", "out", "world", "mode"), spread(KINDS, WIDTHS, (1, 4), ("sar", "no_remat", "one_shot", "domain_parallel"))
)
def test_layer(kind: str, out: int, world: int, mode: str) -> None:
    theirs, names, compute = by_dgl(kind, out)
    x, d_out = inputs(out * HEADS if kind.startswith("gat") else out)
    leaf = x.clone().requires_grad_()
    want = compute(leaf)
    want.backward(d_out)
    assert leaf.grad is not None
    found = dict(theirs.named_parameters())
    for answer in pool(world)(run, kind, out, kind in LOOPS, mode, GRAPH, 17):
        ids = answer["ids"]
        np.testing.assert_allclose(answer["out"], want.detach().numpy()[ids], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(answer["d_x"], leaf.grad.numpy()[ids], rtol=1e-9, atol=1e-9)
        assert answer["grads"].keys() == names.keys()
        for name, other in names.items():
            grad = found[other].grad.T if kind == "gcn" and other == "weight" else found[other].grad
            np.testing.assert_allclose(answer["grads"][name].reshape(grad.shape), grad, rtol=1e-9, atol=1e-9)
