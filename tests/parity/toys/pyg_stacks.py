"""Two of PyG's layers, unmodified, with ReLU between them; and one for message flows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.utils import dropout_edge, dropout_node, trim_to_layer

Make = Callable[[int, int], nn.Module]
KINDS: dict[str, Make] = {
    "sage": lambda a, b: gnn.SAGEConv(a, b),
    "sage_max": lambda a, b: gnn.SAGEConv(a, b, aggr="max"),
    "gcn": lambda a, b: gnn.GCNConv(a, b, cached=True),
    "gat": lambda a, b: gnn.GATConv(a, b, heads=2, concat=False),
    "gatv2": lambda a, b: gnn.GATv2Conv(a, b, heads=2, concat=False),
    "gin": lambda a, b: gnn.GINConv(nn.Sequential(nn.Linear(a, b), gnn.BatchNorm(b)), train_eps=True),
    "graph": lambda a, b: gnn.GraphConv(a, b, aggr="mean"),
    "transformer": lambda a, b: gnn.TransformerConv(a, b, heads=2, concat=False),
    "edge": lambda a, b: gnn.EdgeConv(nn.Sequential(nn.Linear(2 * a, b), nn.ReLU(), nn.Linear(b, b))),
    "cheb": lambda a, b: gnn.ChebConv(a, b, 2),
    "general": lambda a, b: gnn.GeneralConv(a, b, attention=True),
    "reversed": lambda a, b: gnn.DirGNNConv(gnn.SAGEConv(a, b)),
}


class Stack(nn.Module):
    """Args: kind: of ``KINDS``."""

    def __init__(self, in_channels: int, out_channels: int, kind: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList([KINDS[kind](in_channels, 8), KINDS[kind](8, out_channels)])
        self.norm = gnn.GraphNorm(8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first, second = self.layers
        out: Tensor = second(self.norm(F.relu(first(x, edge_index))), edge_index)
        return out


class Pna(nn.Module):
    """What the data know beside the widths: the degrees."""

    def __init__(self, in_channels: int, out_channels: int, deg: Tensor) -> None:
        super().__init__()
        self.conv = gnn.PNAConv(in_channels, out_channels, ["mean", "max", "std"], ["identity", "amplification"], deg)

    def forward(self, data: Any) -> Tensor:
        out: Tensor = self.conv(data.x, data.edge_index)
        return out


class Flow(nn.Module):
    """Layers that work on what the next ones need."""

    def __init__(self, in_channels: int, out_channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList([gnn.SAGEConv(in_channels, 8), gnn.GATConv(8, 8, heads=2, concat=False, dropout=dropout)])
        self.skips = nn.ModuleList([nn.Linear(in_channels, 8), nn.Linear(8, 8)])
        self.last, self.dropout = nn.Linear(8, out_channels), dropout

    def forward(
        self, x: Tensor, edge_index: Tensor, num_sampled_nodes_per_hop: Any = None, num_sampled_edges_per_hop: Any = None
    ) -> Tensor:
        for number, (layer, skip) in enumerate(zip(self.layers, self.skips, strict=True)):
            if num_sampled_edges_per_hop is not None:
                hops = num_sampled_nodes_per_hop, num_sampled_edges_per_hop
                x, edge_index, _ = trim_to_layer(number, *hops, x, edge_index)
            x = F.dropout(F.elu(layer(x, edge_index) + skip(x)), self.dropout, self.training)
        out: Tensor = self.last(x)
        return out


class Lists(Flow):
    """The same, with the edges of each layer in a list."""

    def forward(self, x: Tensor, edge_indices: Any) -> Tensor:  # type: ignore[override]
        for layer, skip, edge_index in zip(self.layers, self.skips, edge_indices, strict=False):
            x = F.dropout(F.elu(layer(x, edge_index) + skip(x)), self.dropout, self.training)
        out: Tensor = self.last(x)
        return out


class Turned(Flow):
    """The same by layers that read an index whose rows are exchanged."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        for layer in self.layers:
            layer.flow = "target_to_source"  # type: ignore[assignment]

    def forward(
        self, x: Tensor, edge_index: Tensor, num_sampled_nodes_per_hop: Any = None, num_sampled_edges_per_hop: Any = None
    ) -> Tensor:
        return super().forward(x, edge_index.flip(0), num_sampled_nodes_per_hop, num_sampled_edges_per_hop)


class DroppedEdges(nn.Module):
    """Edges that are dropped by themselves and with their nodes."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = gnn.GCNConv(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, _ = dropout_edge(edge_index, 0.4, training=self.training)
        edge_index, _, _ = dropout_node(edge_index, 0.2, training=self.training)
        out: Tensor = self.conv(torch.tanh(x), edge_index)
        return out


class Typed(nn.Module):
    """A layer for each relation, on what the next layers need."""

    def __init__(self, in_channels: int, out_channels: int, metadata: Any) -> None:
        super().__init__()
        widths = (in_channels, 8), (8, out_channels)
        convs = [{etype: gnn.SAGEConv((a, a), b) for etype in metadata[1]} for a, b in widths]
        self.convs = nn.ModuleList(gnn.HeteroConv(by_relation) for by_relation in convs)

    def forward(
        self, x_dict: Any, edge_index_dict: Any, num_sampled_nodes_dict: Any = None, num_sampled_edges_dict: Any = None
    ) -> Any:
        for number, conv in enumerate(self.convs):
            hops = num_sampled_nodes_dict, num_sampled_edges_dict
            x_dict, edge_index_dict, _ = trim_to_layer(number, *hops, x_dict, edge_index_dict)
            x_dict = {name: torch.tanh(rows) for name, rows in conv(x_dict, edge_index_dict).items()}
        return x_dict


class Widths(nn.Module):
    """Types whose features differ in width: authors have 3, papers 11."""

    def __init__(self, out_channels: int, metadata: Any) -> None:
        super().__init__()
        widths = {"author": 3, "paper": 11}
        first = {etype: gnn.SAGEConv((widths[etype[0]], widths[etype[2]]), 8) for etype in metadata[1]}
        second = {etype: gnn.SAGEConv((8, 8), out_channels) for etype in metadata[1]}
        self.convs = nn.ModuleList([gnn.HeteroConv(first), gnn.HeteroConv(second)])

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        for conv in self.convs:
            x_dict = {name: torch.tanh(rows) for name, rows in conv(x_dict, edge_index_dict).items()}
        return x_dict


class LazyWidths(Widths):
    """Widths that come with the first rows."""

    def __init__(self, out_channels: int, metadata: Any) -> None:
        nn.Module.__init__(self)
        convs = [{etype: gnn.SAGEConv((-1, -1), b) for etype in metadata[1]} for b in (8, out_channels)]
        self.convs = nn.ModuleList(gnn.HeteroConv(by_relation) for by_relation in convs)


class Hgt(nn.Module):
    """Widths by type, as HGTConv takes them."""

    def __init__(self, in_channels: dict[str, int], out_channels: int, metadata: Any) -> None:
        super().__init__()
        self.conv, self.last = gnn.HGTConv(in_channels, 8, metadata, heads=2), nn.Linear(8, out_channels)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        return {name: self.last(torch.tanh(rows)) for name, rows in self.conv(x_dict, edge_index_dict).items()}


class Han(nn.Module):
    """The same of HANConv."""

    def __init__(self, out_channels: int, metadata: Any) -> None:
        super().__init__()
        self.conv, self.last = gnn.HANConv({"author": 3, "paper": 11}, 8, metadata, heads=2), nn.Linear(8, out_channels)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        out = self.conv(x_dict, edge_index_dict)
        return {name: self.last(rows) for name, rows in out.items() if rows is not None}


class Plain(nn.Module):
    """For ``to_hetero``."""

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.first, self.second = gnn.SAGEConv((-1, -1), 8), gnn.SAGEConv((-1, -1), out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.second(torch.tanh(self.first(x, edge_index)), edge_index)
        return out


def Converted(out_channels: int, metadata: Any) -> nn.Module:
    """A module that PyG has converted."""
    return gnn.to_hetero(Plain(out_channels), metadata)


class Vgae(nn.Module):
    """The encoder of a variational graph autoencoder, with PyG's own draw (``VGAE.reparametrize``)."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first, self.mean, self.log_deviation = (
            gnn.GCNConv(a, b) for a, b in ((in_channels, 8), (8, out_channels), (8, out_channels))
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x, edge_index).relu()
        out: Tensor = gnn.VGAE.reparametrize(self, self.mean(h, edge_index), self.log_deviation(h, edge_index).clamp(max=10))
        return out
