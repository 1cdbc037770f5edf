"""Two of DGL's layers, unmodified, with ReLU between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl.nn.pytorch as dglnn
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.modules.dgl_layers import edge_types, edge_weights

Make = Callable[[int, int], nn.Module]
KINDS: dict[str, Make] = {
    "sage_mean": lambda a, b: dglnn.SAGEConv(a, b, "mean"),
    "sage_pool": lambda a, b: dglnn.SAGEConv(a, b, "pool"),
    "sage_gcn": lambda a, b: dglnn.SAGEConv(a, b, "gcn"),
    "graphconv": lambda a, b: dglnn.GraphConv(a, b, allow_zero_in_degree=True),
    "weights": lambda a, b: dglnn.GraphConv(a, b, norm="right", allow_zero_in_degree=True),
    "gat": lambda a, b: dglnn.GATConv(a, b, 2, allow_zero_in_degree=True),
    "gatv2": lambda a, b: dglnn.GATv2Conv(a, b, 2, allow_zero_in_degree=True),
    "gin": lambda a, b: dglnn.GINConv(nn.Linear(a, b), "sum", learn_eps=True),
    "edgeconv": lambda a, b: dglnn.EdgeConv(a, b, allow_zero_in_degree=True),
    "relgraph": lambda a, b: dglnn.RelGraphConv(a, b, 3, regularizer="basis", num_bases=2),
}


class Stack(nn.Module):
    """Args: kind: of ``KINDS``."""

    def __init__(self, in_width: int, num_outputs: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList([KINDS[kind](in_width, 8), KINDS[kind](8, num_outputs)])

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        one, two = self.layers
        return self.layer(two, graph, F.relu(self.layer(one, graph, x, x)), x)

    def layer(self, layer: nn.Module, graph: Any, h: Tensor, x: Tensor) -> Tensor:
        if self.kind == "relgraph":
            return layer(graph, h, edge_types(graph, x))
        if self.kind == "weights":
            return layer(graph, h, edge_weight=edge_weights(graph, x))
        out: Tensor = layer(graph, h)
        return out.mean(1) if out.dim() == 3 else out


class Hetero(nn.Module):
    """Two ``HeteroGraphConv`` of SAGEConv and GraphConv."""

    def __init__(self, in_width: int, num_outputs: int, etypes: list[tuple[str, str, str]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            dglnn.HeteroGraphConv({etype: self._conv(k, a, b) for k, etype in enumerate(etypes)})
            for a, b in ((in_width, 8), (8, num_outputs))
        )

    def _conv(self, number: int, a: int, b: int) -> nn.Module:
        return dglnn.GraphConv(a, b) if number % 2 else dglnn.SAGEConv(a, b, "mean")

    def forward(self, graph: Any, x: dict[str, Tensor]) -> dict[str, Tensor]:
        one, two = self.layers
        found: dict[str, Tensor] = two(graph, {ntype: torch.relu(rows) for ntype, rows in one(graph, x).items()})
        return found
