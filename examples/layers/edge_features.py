"""Features of edges: d_e = |P h_j - P h_i| of each edge e = j -> i; h'_i = W h_i + mean of relu(U [h_j, d_e]).

sargnn train model=custom model.target=examples/layers/edge_features.py:Net model.args.hidden=32 world=2
"""

import dgl.function as fn
import torch
from torch import nn


class Distances(nn.Module):
    def __init__(self, in_width, out_width, edge_width=4):
        super().__init__()
        self.places = nn.Linear(in_width, edge_width)
        self.messages = nn.Linear(in_width + edge_width, out_width)
        self.own = nn.Linear(in_width, out_width)

    def message(self, edges):
        return {"m": torch.relu(self.messages(torch.cat([edges.src["h"], edges.data["d"]], 1)))}

    def forward(self, graph, h):
        own, places = h[: graph.num_dst_nodes()], self.places(h)
        with graph.local_scope():
            graph.srcdata.update({"h": h, "p": places})
            graph.dstdata["p"] = places[: graph.num_dst_nodes()]
            graph.apply_edges(fn.u_sub_v("p", "p", "d"))
            graph.edata["d"] = graph.edata["d"].abs()
            graph.update_all(self.message, fn.mean("m", "n"))
            return self.own(own) + graph.dstdata["n"]


class Net(nn.Module):
    def __init__(self, in_width, num_outputs, hidden=64, dropout=0.5):
        super().__init__()
        self.first, self.second = Distances(in_width, hidden), Distances(hidden, num_outputs)
        self.norm, self.dropout = nn.BatchNorm1d(hidden), nn.Dropout(dropout)

    def forward(self, graph, x):
        h = self.dropout(torch.relu(self.norm(self.first(graph.blocks[0], x))))
        return self.second(graph.blocks[1], h)
