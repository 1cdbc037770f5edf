"""DGL's layers, unmodified, and layers of our own, on a DGL graph or on a sharded one alike.

Letters: N nodes, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sargnn.interop.dgl import import_dgl

import_dgl()

import dgl.function as fn  # noqa: E402
import dgl.nn.pytorch as dglnn  # noqa: E402
from dgl.nn.functional import edge_softmax  # noqa: E402

IN, OUT = 6, 4


@dataclass(frozen=True)
class Case:
    """A layer.

    Attributes:
        make: the module. call: what it gives for a graph and rows [N, IN]. folds: whether it runs where not all rows are held.
    """

    make: Callable[[], nn.Module]
    call: Callable[[Any, Any, Tensor], Tensor] = lambda layer, graph, x: layer(graph, x)
    folds: bool = True


def edge_weights(graph: Any, x: Tensor) -> Any:
    """A positive number per edge, from its ends."""
    with graph.local_scope():
        graph.ndata["w"] = x[:, :1].sigmoid()
        graph.apply_edges(fn.u_mul_v("w", "w", "w"))
        return graph.edata["w"].squeeze(1) + 0.5


def edge_types(graph: Any, x: Tensor) -> Any:
    """A type 0, 1 or 2 of each edge, from its ends."""
    with graph.local_scope():
        graph.ndata["k"] = (x.detach()[:, :1] * 10).long().abs()
        graph.apply_edges(lambda edges: {"t": (edges.src["k"] + edges.dst["k"]) % 3})
        return graph.edata["t"].squeeze(1)


def _heads(layer: Any, graph: Any, x: Tensor) -> Tensor:
    out: Tensor = layer(graph, x).flatten(1)
    return out


class EdgeFeatures(nn.Module):
    """m_e = relu(W [h_j, d_e]), d_e = |h_j - h_i| summed; out_i = mean m_e."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(IN + 1, OUT)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["h"] = x
            graph.apply_edges(fn.u_sub_v("h", "h", "d"))
            graph.edata["d"] = graph.edata["d"].abs().sum(1, keepdim=True)
            graph.update_all(self.message, fn.mean("m", "out"))
            out: Tensor = graph.ndata["out"]
            return out

    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"m": F.relu(self.linear(torch.cat([edges.src["h"], edges.data["d"]], 1)))}


class OwnWeights(nn.Module):
    """Weights in a message function, in expressions and as a table: out_i = sum w_e W h_j + max |w_e| + mean of w."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(IN, OUT)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["h"] = self.linear(x)
            graph.update_all(lambda edges: {"m": edges.src["h"] * edges.data["w"][:, None]}, fn.sum("m", "first"))
            graph.edata["size"] = graph.edata["w"].abs()[:, None]
            graph.update_all(fn.copy_e("size", "m"), fn.max("m", "second"))
            graph.update_all(fn.u_mul_e("h", "w", "m"), fn.mean("m", "third"))
            out: Tensor = graph.ndata["first"] + graph.ndata["second"] + graph.ndata["third"]
            return out


class Written(nn.Module):
    """A message and a reduce function by hand, with node fields, a weight that is no parameter itself, and three folds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(IN, OUT))

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        weight = self.weight.tanh()

        def message(edges: Any) -> dict[str, Tensor]:
            return {"m": (edges.src["h"] * edges.dst["h"]) @ weight, "s": edges.src["h"][:, :1]}

        def reduce(nodes: Any) -> dict[str, Tensor]:
            m = nodes.mailbox["m"]
            soft = torch.softmax(nodes.mailbox["s"], dim=1)
            scaled = m * nodes.data["h"][:, :1].unsqueeze(1)
            return {"out": m.sum(1) + scaled.mean(dim=1) - m.max(1)[0] + m.min(dim=1).values + (soft * m).sum(1)}

        with graph.local_scope():
            graph.ndata["h"] = x
            graph.update_all(message, reduce)
            out: Tensor = graph.ndata["out"]
            return out


class Spreads(nn.Module):
    """Folds over neighbours that are made of others."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(IN, OUT)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        def reduce(nodes: Any) -> dict[str, Tensor]:
            m, h = nodes.mailbox["m"], nodes.data["h"]
            spread = (
                m.var(1, unbiased=False)
                + (torch.var(m, dim=1, correction=0) + 0.1).sqrt()
                + m.norm(dim=1)
                + torch.norm(m, 3, 1)
            )
            products = m.tanh().prod(1) + torch.einsum("nbd,nd->nd", m, h) + torch.einsum("nbd,nbe->nd", m, m)
            return {"out": spread + products + torch.nansum(m, 1) + m.sum(1) / m.shape[1]}

        with graph.local_scope():
            graph.ndata["h"] = self.linear(x)
            graph.update_all(fn.copy_u("h", "m"), reduce)
            out: Tensor = graph.ndata["out"]
            return out


class DotProducts(nn.Module):
    """Scores by u_dot_v, softmax of them, two softmaxes multiplied, and the attention itself given out of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(IN, OUT)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["h"], graph.ndata["z"] = x, self.linear(x)
            graph.apply_edges(fn.u_dot_v("h", "h", "s"))
            one = edge_softmax(graph, graph.edata["s"])
            graph.edata["a"] = one * edge_softmax(graph, -graph.edata["s"])
            graph.update_all(fn.u_mul_e("z", "a", "m"), fn.sum("m", "first"))
            graph.edata["b"] = one
            graph.update_all(fn.copy_e("b", "m"), fn.max("m", "second"))
            graph.update_all(fn.u_mul_e("z", "b", "m"), fn.sum("m", "third"))
            out: Tensor = graph.ndata["first"] + graph.ndata["second"] + graph.ndata["third"]
            return out


class ScaledProducts(nn.Module):
    """Attention of two heads by <k_j, q_i> / sqrt(C), with values of another width, written with edge fields."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = nn.Linear(IN, 2 * OUT), nn.Linear(IN, 2 * OUT), nn.Linear(IN, 2 * (OUT + 1))
        self.drop = nn.Dropout(0.0)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["k"], graph.ndata["q"] = self.key(x).view(-1, 2, OUT), self.query(x).view(-1, 2, OUT)
            graph.ndata["v"] = self.value(x).view(-1, 2, OUT + 1)
            graph.apply_edges(fn.u_mul_v("k", "q", "p"))
            scores = 0.5 * (graph.edata["p"] * 1.5).sum(dim=-1) / OUT**0.5
            graph.edata["a"] = self.drop(edge_softmax(graph, scores)).view(-1, 2, 1)
            graph.update_all(fn.u_mul_e("v", "a", "m"), fn.sum("m", "out"))
            out: Tensor = graph.ndata["out"].flatten(1)
            return out


class ProductsWithEdges(nn.Module):
    """Keys and values plus a linear map of what edges have."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(IN, 2 * OUT) for _ in range(3))
        self.edge = nn.Linear(3, 2 * OUT, bias=False)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            for name, layer in (("k", self.key), ("q", self.query), ("v", self.value)):
                graph.ndata[name] = layer(x).view(-1, 2, OUT)
            w = graph.edata["w"]
            f = torch.stack([w, w * w, 1 - w], 1)
            graph.edata["f"] = f.value() if hasattr(f, "value") else f  # a table, as data have it
            graph.apply_edges(fn.copy_e("f", "f"))
            graph.edata["e"] = self.edge(graph.edata["f"]).view(-1, 2, OUT)
            graph.apply_edges(fn.u_add_e("k", "e", "k"))
            graph.apply_edges(fn.u_add_e("v", "e", "v"))
            graph.apply_edges(fn.e_mul_v("k", "q", "p"))
            scores = graph.edata["p"].sum(-1) / OUT**0.5
            graph.edata["m"] = graph.edata["v"] * edge_softmax(graph, scores).view(-1, 2, 1)
            graph.update_all(fn.copy_e("m", "m"), fn.sum("m", "out"))
            out: Tensor = graph.ndata["out"].flatten(1)
            return out


class SumsOverHeads(nn.Module):
    """As many heads as columns, and scores summed over the heads: no attention per head."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(IN, OUT * OUT)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["h"] = self.linear(x).view(-1, OUT, OUT)
            graph.apply_edges(fn.u_mul_v("h", "h", "p"))
            graph.edata["a"] = edge_softmax(graph, graph.edata["p"].sum(1)).unsqueeze(-1)
            graph.update_all(fn.u_mul_e("h", "a", "m"), fn.sum("m", "out"))
            out: Tensor = graph.ndata["out"].flatten(1)
            return out


class Lasts(nn.Module):
    """A recurrent network over a node's neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(IN, OUT, batch_first=True)

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        _, (last, _) = self.lstm(nodes.mailbox["m"])
        return {"out": last.squeeze(0) + nodes.data["h"][:, :OUT]}

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["h"] = x
            graph.update_all(fn.copy_u("h", "m"), self.reduce)
            out: Tensor = graph.ndata["out"]
            return out


def _attention_given_out(layer: Any, graph: Any, x: Tensor) -> Tensor:
    out, weights = layer(graph, x, get_attention=True)
    with graph.local_scope():
        graph.edata["a"] = weights.square()
        graph.update_all(fn.copy_e("a", "m"), fn.sum("m", "a"))
        return torch.cat([out.flatten(1), graph.dstdata["a"].flatten(1)], 1)


def _sage(kind: str, **more: Any) -> Case:
    return Case(lambda: dglnn.SAGEConv(IN, OUT, kind, **more))


CASES: dict[str, Case] = {
    "sage_mean": _sage("mean"),
    "spreads": Case(Spreads),
    "sage_mean_wide": Case(lambda: dglnn.SAGEConv(IN, IN + 3, "mean")),
    "sage_gcn": _sage("gcn"),
    "sage_pool": _sage("pool"),
    "sage_lstm": Case(lambda: dglnn.SAGEConv(IN, OUT, "lstm"), folds=False),
    "sage_weights": Case(
        lambda: dglnn.SAGEConv(IN, OUT, "mean"), lambda layer, graph, x: layer(graph, x, edge_weight=edge_weights(graph, x))
    ),
    "sage_own_weights": Case(
        lambda: dglnn.SAGEConv(IN, OUT, "mean"), lambda layer, graph, x: layer(graph, x, edge_weight=graph.edata["w"])
    ),
    "graphconv_own_weights": Case(
        lambda: dglnn.GraphConv(IN, OUT, allow_zero_in_degree=True),
        lambda layer, graph, x: layer(graph, x, edge_weight=graph.edata["w"]),
    ),
    "gat_own_weights": Case(
        lambda: dglnn.GATConv(IN, OUT, 2, attn_drop=0.0, allow_zero_in_degree=True),
        lambda layer, graph, x: layer(graph, x, edge_weight=graph.edata["w"]).flatten(1),
    ),
    "own_weights_written": Case(OwnWeights),
    "graphconv": Case(lambda: dglnn.GraphConv(IN, OUT, allow_zero_in_degree=True)),
    "graphconv_right": Case(lambda: dglnn.GraphConv(IN, IN + 2, norm="right", allow_zero_in_degree=True)),
    "graphconv_weights": Case(
        lambda: dglnn.GraphConv(IN, OUT, norm="none", allow_zero_in_degree=True),
        lambda layer, graph, x: layer(graph, x, edge_weight=edge_weights(graph, x)),
    ),
    "gat": Case(lambda: dglnn.GATConv(IN, OUT, 3, allow_zero_in_degree=True), _heads),
    "gat_residual": Case(lambda: dglnn.GATConv(IN, OUT, 2, residual=True, activation=F.elu, allow_zero_in_degree=True), _heads),
    "gat_attention": Case(lambda: dglnn.GATConv(IN, OUT, 2, allow_zero_in_degree=True), _attention_given_out),
    "gat_weights": Case(
        lambda: dglnn.GATConv(IN, OUT, 2, allow_zero_in_degree=True),
        lambda layer, graph, x: layer(graph, x, edge_weight=edge_weights(graph, x)).flatten(1),
    ),
    "gatv2": Case(lambda: dglnn.GATv2Conv(IN, OUT, 3, allow_zero_in_degree=True), _heads),
    "gin": Case(lambda: dglnn.GINConv(nn.Linear(IN, OUT), "sum", learn_eps=True)),
    "gin_max": Case(lambda: dglnn.GINConv(nn.Linear(IN, OUT), "max")),
    "edgeconv": Case(lambda: dglnn.EdgeConv(IN, OUT, allow_zero_in_degree=True)),
    "relgraph": Case(
        lambda: dglnn.RelGraphConv(IN, OUT, 3, regularizer="basis", num_bases=2),
        lambda layer, graph, x: layer(graph, x, edge_types(graph, x)),
    ),
    "relgraph_full": Case(
        lambda: dglnn.RelGraphConv(IN, OUT, 3, layer_norm=True),
        lambda layer, graph, x: layer(graph, x, edge_types(graph, x), edge_weights(graph, x).unsqueeze(1)),
    ),
    "dotgat": Case(lambda: dglnn.DotGatConv(IN, OUT, 2, allow_zero_in_degree=True), _heads),
    "edge_features": Case(EdgeFeatures),
    "written": Case(Written),
    "dot_products": Case(DotProducts),
    "dotgat_attention": Case(lambda: dglnn.DotGatConv(IN, OUT, 2, allow_zero_in_degree=True), _attention_given_out),
    "scaled_products": Case(ScaledProducts),
    "sums_over_heads": Case(SumsOverHeads),
    "products_with_edges": Case(ProductsWithEdges),
    "recurrent": Case(Lasts, folds=False),
}
