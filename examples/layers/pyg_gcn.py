"""A deep GCN for PyG: batch norm and a linear residual on every layer.

sargnn train model=custom model.target=examples/layers/pyg_gcn.py:DeepGCN model.args.num_layers=3 world=2
"""

import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GCNConv


class DeepGCN(nn.Module):
    def __init__(self, in_channels, out_channels, hidden_channels=64, num_layers=12, dropout=0.2):
        super().__init__()
        widths = [in_channels, *[hidden_channels] * num_layers]
        self.convs = nn.ModuleList(GCNConv(width, hidden_channels) for width in widths[:-1])
        self.lins = nn.ModuleList(nn.Linear(width, hidden_channels) for width in widths[:-1])
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden_channels) for _ in range(num_layers))
        self.head, self.dropout = nn.Linear(hidden_channels, out_channels), dropout

    def forward(self, x, edge_index):
        for conv, lin, norm in zip(self.convs, self.lins, self.norms, strict=True):
            x = norm(conv(x, edge_index) + lin(x)).relu()
            x = F.dropout(x, self.dropout, training=self.training)
        return self.head(x)
