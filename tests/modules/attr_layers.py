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


def _pna() -> nn.Module:
    scalers, degrees = ["identity", "amplification"], torch.ones(9).long()
    return gnn.PNAConv(IN, OUT, ["mean", "max", "std"], scalers, degrees, edge_dim=D, towers=2, divide_input=False)


CASES: dict[str, Callable[[], nn.Module]] = {
    "gine": lambda: gnn.GINEConv(_mlp(IN, 6, OUT), train_eps=True, edge_dim=D),
    "gat": lambda: gnn.GATConv(IN, OUT, heads=2, edge_dim=D),
    "gat_without_loops": lambda: gnn.GATConv(IN, OUT, heads=2, edge_dim=D, add_self_loops=False),
    "gat_zeros": lambda: gnn.GATConv(IN, OUT, heads=2, edge_dim=D, fill_value=0.5),
    "gat_reversed": lambda: gnn.GATConv(IN, OUT, heads=2, edge_dim=D, flow="target_to_source"),
    "gatv2": lambda: gnn.GATv2Conv(IN, OUT, heads=2, edge_dim=D),
    "gatv2_without_loops": lambda: gnn.GATv2Conv(IN, OUT, heads=2, edge_dim=D, add_self_loops=False),
    "transformer": lambda: gnn.TransformerConv(IN, OUT, heads=2, edge_dim=D, beta=True),
    "nn": lambda: gnn.NNConv(IN, OUT, _mlp(D, 6, IN * OUT)),
    "nn_max": lambda: gnn.NNConv(IN, OUT, _mlp(D, 6, IN * OUT), aggr="max"),
    "pna": _pna,
    "gen": lambda: gnn.GENConv(IN, OUT, edge_dim=D, learn_t=True),
    "gen_power": lambda: gnn.GENConv(IN, OUT, edge_dim=D, aggr="powermean", learn_p=True),
    "res_gated": lambda: gnn.ResGatedGraphConv(IN, OUT, edge_dim=D),
    "cg": lambda: gnn.CGConv(IN, dim=D),
    "gmm": lambda: gnn.GMMConv(IN, OUT, dim=D, kernel_size=3),
    "gmm_separate": lambda: gnn.GMMConv(IN, OUT, dim=D, kernel_size=3, separate_gaussians=True),
    "pdn": lambda: gnn.PDNConv(IN, OUT, edge_dim=D, hidden_channels=6),
    "pdn_without_loops": lambda: gnn.PDNConv(IN, OUT, edge_dim=D, hidden_channels=6, add_self_loops=False, normalize=False),
    "general": lambda: gnn.GeneralConv(IN, OUT, in_edge_channels=D),
    "general_attention": lambda: gnn.GeneralConv(IN, OUT, in_edge_channels=D, heads=2, attention=True),
    "model_gat": lambda: gnn.GAT(IN, 6, 2, OUT, heads=2, v2=True, edge_dim=D),
    "categories": Categories,
    "own": Own,
    "normed": Normed,
}
