"""Performer's attention (Choromanski et al., 2021) over all nodes, in blocks with a GCN beside it as GraphGPS has them.

    out_i = f(q_i) (sum_j f(k_j)^T v_j) / (f(q_i) . sum_j f(k_j)),   f(x) = exp(W x - |x|^2 / 2 - c) + eps, W given

For queries c is the largest of a node's own exponents, for keys that of all nodes'.

sargnn train model=custom model.target=examples/layers/performer.py:Performer world=4
"""

import torch
from torch import nn
from torch_geometric.nn import GCNConv


class RandomFeatures(nn.Module):
    def __init__(self, channels, heads, features=32):
        super().__init__()
        self.heads, self.width = heads, channels // heads
        self.maps = nn.ModuleList(nn.Linear(channels, channels) for _ in range(3))
        self.register_buffer("projection", torch.randn(features, self.width))

    def positive(self, x, dims):
        x = x / self.width**0.25
        exponents = x @ self.projection.T - x.square().sum(-1, keepdim=True) / 2
        return torch.exp(exponents - torch.amax(exponents, dims, keepdim=True).detach()) + 1e-4

    def forward(self, x):
        q, k, v = (linear(x).view(x.size(0), self.heads, self.width) for linear in self.maps)
        q, k = self.positive(q, -1), self.positive(k, (0, -1))
        summed = torch.einsum("nhm,nhd->hmd", k, v)
        below = torch.einsum("nhm,hm->nh", q, k.sum(0))
        return (torch.einsum("nhm,hmd->nhd", q, summed) / below[..., None]).flatten(1)


class Block(nn.Module):
    def __init__(self, channels, heads, dropout):
        super().__init__()
        self.conv, self.attention = GCNConv(channels, channels), RandomFeatures(channels, heads)
        self.norms = nn.ModuleList(nn.BatchNorm1d(channels) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(channels, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, channels))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, edge_index):
        local = self.norms[0](x + self.drop(self.conv(x, edge_index)))
        everywhere = self.norms[1](x + self.drop(self.attention(x)))
        x = local + everywhere
        return self.norms[2](x + self.drop(self.mlp(x)))


class Performer(nn.Module):
    def __init__(self, in_channels, out_channels, hidden_channels=64, num_layers=2, heads=4, dropout=0.2):
        super().__init__()
        self.first, self.head = nn.Linear(in_channels, hidden_channels), nn.Linear(hidden_channels, out_channels)
        self.blocks = nn.ModuleList(Block(hidden_channels, heads, dropout) for _ in range(num_layers))

    def forward(self, x, edge_index):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, edge_index)
        return self.head(x)
