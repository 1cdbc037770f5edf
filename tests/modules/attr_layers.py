"""Layers of PyG's that read features of edges, as ``test_edge_attr.py`` calls them, and graphs that have some."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.utils import softmax

from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR, EdgeColumns

IN, OUT, D = 8, 4, 5


def with_attr(dataset: Dataset, width: int = D, seed: int = 0) -> Dataset:
    """The same graph with features of edges, and nothing else on them."""
    rows = np.random.default_rng(seed).standard_normal((dataset.num_edges, width)).astype(np.float32)
    return dataclasses.replace(dataset, columns=EdgeColumns.of({ATTR: rows}))


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    """Whether they are the same but for rounding in fp64."""
    assert got.shape == wanted.shape
    assert np.linalg.norm(got - wanted) <= 1e-9 * max(float(np.linalg.norm(wanted)), 1e-2)


class Own(gnn.MessagePassing):
    """A message function of one's own, and a softmax of scores that read the features, too."""

    def __init__(self) -> None:
        super().__init__(aggr="mean")
        self.lin, self.edge, self.score = nn.Linear(IN, OUT), nn.Linear(D, OUT), nn.Linear(D + IN, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        rows: Tensor = self.propagate(edge_index, x=self.lin(x), h=x, edge_attr=edge_attr)
        upward = edge_attr[:, 0] > 0
        return rows + self.propagate(edge_index[:, upward], x=self.lin(x), h=x, edge_attr=edge_attr[upward])

    def message(self, x_j: Tensor, h_i: Tensor, edge_attr: Tensor, index: Tensor, ptr: Any, size_i: Any) -> Tensor:
        gate = softmax(self.score(torch.cat([edge_attr, h_i], -1)), index, ptr, size_i)
        return gate * torch.tanh(x_j + self.edge(edge_attr)) + (x_j * edge_attr[:, :1]).square()


class Categories(gnn.MessagePassing):
    """Features that are numbers of categories, and their mean over all edges."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, IN)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        kinds = edge_attr[:, 1].abs().long().clamp(max=3)
        rows: Tensor = self.propagate(edge_index, x=x, edge_attr=self.embedding(kinds))
        return rows * edge_attr.mean(0)[0]

    def message(self, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        return x_j * edge_attr


class Normed(gnn.MessagePassing):
    """Batch norm over all edges."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(D, IN), nn.BatchNorm1d(D)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        rows: Tensor = self.propagate(edge_index, x=x, edge_attr=self.norm(edge_attr))
        return rows

    def message(self, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        return x_j * self.lin(edge_attr)


def _mlp(*widths: int) -> nn.Module:
    return nn.Sequential(nn.Linear(widths[0], widths[1]), nn.ReLU(), nn.Linear(widths[1], widths[2]))


def _pna(**arguments: Any) -> nn.Module:
    scalers = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]
    return gnn.PNAConv(IN, OUT, ["mean", "max", "std"], scalers, torch.ones(9).long(), edge_dim=D, **arguments)


class Blocks(nn.Module):
    """Layers in residual blocks of PyG's, one after and one before its norm."""

    def __init__(self) -> None:
        super().__init__()
        first, second = (gnn.GENConv(IN, IN, aggr=aggr, norm="layer", edge_dim=D, **kw) for aggr, kw in _LEARNED.items())
        self.first = gnn.DeepGCNLayer(first, gnn.LayerNorm(IN), nn.ReLU(inplace=True), "res+")
        self.second = gnn.DeepGCNLayer(second, nn.BatchNorm1d(IN), nn.ReLU(inplace=True), "dense")

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        rows: Tensor = self.second(self.first(x, edge_index, edge_attr), edge_index, edge_attr)
        return rows


_LEARNED: dict[str, Any] = {"softmax": {"learn_t": True}, "powermean": {"learn_p": True}}


CASES: dict[str, Callable[[], nn.Module]] = {
    "gine": lambda: gnn.GINEConv(_mlp(IN, 6, OUT), train_eps=True, edge_dim=D),
    "gat": lambda: gnn.GATConv(IN, OUT, heads=2, edge_dim=D),
    "gat_without_loops": lambda: gnn.GATConv(IN, OUT, heads=2, edge_dim=D, add_self_loops=False),
    "gat_zeros": lambda: gnn.GATConv(IN, OUT, heads=2, edge_dim=D, fill_value=0.5),
    "gat_largest": lambda: gnn.GATConv(IN, OUT, heads=2, edge_dim=D, fill_value="max", concat=False, residual=True),
    "gat_reversed": lambda: gnn.GATConv(IN, OUT, heads=2, edge_dim=D, flow="target_to_source"),
    "gatv2": lambda: gnn.GATv2Conv(IN, OUT, heads=2, edge_dim=D),
    "gatv2_products": lambda: gnn.GATv2Conv(IN, OUT, heads=2, edge_dim=D, fill_value="mul", share_weights=True, residual=True),
    "gatv2_without_loops": lambda: gnn.GATv2Conv(IN, OUT, heads=2, edge_dim=D, add_self_loops=False),
    "transformer": lambda: gnn.TransformerConv(IN, OUT, heads=2, edge_dim=D, beta=True),
    "transformer_mean": lambda: gnn.TransformerConv(IN, OUT, heads=2, edge_dim=D, concat=False, root_weight=False),
    "nn": lambda: gnn.NNConv(IN, OUT, _mlp(D, 6, IN * OUT)),
    "nn_max": lambda: gnn.NNConv(IN, OUT, _mlp(D, 6, IN * OUT), aggr="max"),
    "pna": lambda: _pna(towers=2, divide_input=False),
    "pna_deep": lambda: _pna(towers=2, divide_input=True, pre_layers=2, post_layers=2),
    "gen": lambda: gnn.GENConv(IN, OUT, edge_dim=D, learn_t=True),
    "gen_constant_weights": lambda: gnn.GENConv(IN, OUT, edge_dim=D, aggr="softmax_sg", t=0.7),
    "gen_power": lambda: gnn.GENConv(IN, OUT, edge_dim=D, aggr="powermean", learn_p=True),
    "gen_several": lambda: gnn.GENConv(
        IN, OUT, edge_dim=D, aggr=["max", "var", "softmax"], msg_norm=True, learn_msg_scale=True
    ),
    "gen_blocks": Blocks,
    "res_gated": lambda: gnn.ResGatedGraphConv(IN, OUT, edge_dim=D),
    "res_gated_max": lambda: gnn.ResGatedGraphConv(IN, OUT, act=nn.Tanh(), edge_dim=D, aggr="max"),
    "cg": lambda: gnn.CGConv(IN, dim=D),
    "cg_norm": lambda: gnn.CGConv(IN, dim=D, batch_norm=True, aggr="mean"),
    "gmm": lambda: gnn.GMMConv(IN, OUT, dim=D, kernel_size=3),
    "gmm_separate": lambda: gnn.GMMConv(IN, OUT, dim=D, kernel_size=3, separate_gaussians=True),
    "pdn": lambda: gnn.PDNConv(IN, OUT, edge_dim=D, hidden_channels=6),
    "pdn_without_loops": lambda: gnn.PDNConv(IN, OUT, edge_dim=D, hidden_channels=6, add_self_loops=False, normalize=False),
    "general": lambda: gnn.GeneralConv(IN, OUT, in_edge_channels=D),
    "general_attention": lambda: gnn.GeneralConv(IN, OUT, in_edge_channels=D, heads=2, attention=True),
    "general_dot": lambda: gnn.GeneralConv(
        IN,
        OUT,
        in_edge_channels=D,
        heads=2,
        attention=True,
        attention_type="dot_product",
        l2_normalize=True,
        directed_msg=False,
    ),
    "model_gat": lambda: gnn.GAT(IN, 6, 2, OUT, heads=2, v2=True, edge_dim=D),
    "model_pna": lambda: gnn.PNA(
        IN, 6, 2, OUT, aggregators=["mean", "min"], scalers=["attenuation"], deg=torch.ones(9).long(), edge_dim=D
    ),
    "categories": Categories,
    "own": Own,
    "normed": Normed,
}
