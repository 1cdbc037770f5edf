"""A typed graph: a GraphConv of DGL's for each relation, joined by HeteroGraphConv.

sargnn train model=custom model.target=examples/layers/typed.py:Net dataset=mag_like dataset.scale=0.002 world=2
"""

import torch
from dgl.nn import GraphConv, HeteroGraphConv
from torch import nn


class Net(nn.Module):
    def __init__(self, in_width, num_outputs, hidden=64, etypes=()):
        super().__init__()
        ends = (in_width, hidden), (hidden, num_outputs)
        self.first, self.second = (HeteroGraphConv({name: GraphConv(a, b) for _, name, _ in etypes}) for a, b in ends)

    def forward(self, graph, x):
        h = self.first(graph.blocks[0], x)
        return self.second(graph.blocks[1], {node_type: torch.relu(rows) for node_type, rows in h.items()})
