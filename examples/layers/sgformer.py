"""SGFormer (Wu et al., 2023): attention of every node to every node in linear time, and a GCN beside it.

    out_i = (N v_i + q_i (sum_j k_j^T v_j)) / (N + q_i . sum_j k_j),   q and k divided by their norms over all nodes

sargnn train model=custom model.target=examples/layers/sgformer.py:SGFormer world=4
"""

import torch
from torch import nn
from torch_geometric.nn import GCNConv


class LinearAttention(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(channels, channels * heads) for _ in range(3))
        self.heads = heads

    def forward(self, x):
        q, k, v = (linear(x).view(x.size(0), self.heads, -1) for linear in self.maps)
        q, k = q / torch.norm(q), k / torch.norm(k)
        summed = torch.einsum("nhm,nhd->hmd", k, v)
        above = torch.einsum("nhm,hmd->nhd", q, summed) + x.size(0) * v
        below = torch.einsum("nhm,hm->nh", q, k.sum(0)) + x.size(0)
        return (above / below[..., None]).mean(1)


class SGFormer(nn.Module):
    def __init__(self, in_channels, out_channels, hidden_channels=64, num_layers=2, heads=1, graph_weight=0.8, dropout=0.2):
        super().__init__()
        self.first = nn.Linear(in_channels, hidden_channels)
        self.attentions = nn.ModuleList(LinearAttention(hidden_channels, heads) for _ in range(num_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_channels) for _ in range(num_layers + 1))
        self.convs = nn.ModuleList([GCNConv(in_channels, hidden_channels), GCNConv(hidden_channels, hidden_channels)])
        self.head = nn.Linear(hidden_channels, out_channels)
        self.drop, self.graph_weight = nn.Dropout(dropout), graph_weight

    def forward(self, x, edge_index):
        h = self.drop(self.norms[0](self.first(x)).relu())
        for attention, norm in zip(self.attentions, self.norms[1:], strict=True):
            h = self.drop(norm((attention(h) + h) / 2).relu())
        for conv in self.convs:
            x = self.drop(conv(x, edge_index).relu())
        return self.head(self.graph_weight * x + (1 - self.graph_weight) * h)
