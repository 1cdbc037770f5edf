"""A deep GCN for a graph of few features, as one writes it for PyG: batch norm and a linear residual on every layer.

    sargnn train model=custom model.target=examples/pyg_gcn.py:DeepGCN model.args.num_layers=12
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv


class DeepGCN(nn.Module):
    def __init__(
        self, in_channels: int, out_channels: int, hidden_channels: int = 64, num_layers: int = 12, dropout: float = 0.2
    ) -> None:
        super().__init__()
        widths = [in_channels, *[hidden_channels] * num_layers]
        self.convs = nn.ModuleList(GCNConv(a, hidden_channels) for a in widths[:-1])
        self.lins = nn.ModuleList(nn.Linear(a, hidden_channels) for a in widths[:-1])
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden_channels) for _ in range(num_layers))
        self.head = nn.Linear(hidden_channels, out_channels)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, lin, norm in zip(self.convs, self.lins, self.norms, strict=True):
            x = norm(conv(x, edge_index) + lin(x)).relu()
            x = F.dropout(x, self.dropout, training=self.training)
        out: Tensor = self.head(x)
        return out
