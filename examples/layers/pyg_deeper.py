"""DeeperGCN for PyG (Li et al., "DeeperGCN: All You Need to Train Deeper GCNs", 2020), with features of edges.

Each block is h' = h + MLP(h + m), of rows h that a norm, ReLU and dropout have passed. m_i folds what comes along the edges
into i, relu(h_j + W f_e) + 1e-7: aggr="softmax" weights each by a softmax of t times itself, aggr="powermean" is a mean of p-th
powers, to the power of 1 / p. t and p are learned in every layer.

sargnn train model=custom model.target=examples/layers/pyg_deeper.py:DeeperGCN dataset=ogbn-proteins task=multilabel world=4
"""

import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GENConv


class DeeperGCN(nn.Module):
    def __init__(
        self, in_channels, out_channels, edge_dim=None, hidden_channels=64, num_layers=28, aggr="softmax", dropout=0.1
    ):
        super().__init__()
        learned = {"learn_t": True} if aggr == "softmax" else {"learn_p": True}
        self.convs = nn.ModuleList(
            GENConv(hidden_channels, hidden_channels, aggr=aggr, norm="layer", edge_dim=edge_dim, bias=True, **learned)
            for _ in range(num_layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_channels) for _ in range(num_layers))
        self.first, self.head = nn.Linear(in_channels, hidden_channels), nn.Linear(hidden_channels, out_channels)
        self.dropout = dropout

    def activate(self, number, x):
        return F.dropout(self.norms[number](x).relu(), self.dropout, training=self.training)

    def forward(self, x, edge_index, edge_attr=None):
        x = self.convs[0](self.first(x), edge_index, edge_attr)
        for number, conv in enumerate(self.convs[1:]):
            x = x + conv(self.activate(number, x), edge_index, edge_attr)
        return self.head(self.activate(-1, x))
