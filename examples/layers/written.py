"""A message and a reduce function by hand: attention by dot products, beside the maximum over the neighbours.

sargnn train model=custom model.target=examples/layers/written.py:Net model.args.hidden=32 world=2
"""

import torch
from torch import nn


def message(edges):
    score = (edges.src["z"] * edges.dst["z"]).sum(1, keepdim=True)
    return {"m": edges.src["z"], "score": score / edges.src["z"].shape[1] ** 0.5}


def reduce(nodes):
    m = nodes.mailbox["m"]  # [nodes, neighbours, width]
    weights = torch.softmax(nodes.mailbox["score"], dim=1)
    return {"n": torch.cat([(weights * m).sum(1), m.max(1)[0]], 1)}


class Layer(nn.Module):
    def __init__(self, in_width, out_width):
        super().__init__()
        self.map, self.out = nn.Linear(in_width, out_width), nn.Linear(3 * out_width, out_width)

    def forward(self, graph, h):
        z = self.map(h)
        own = z[: graph.num_dst_nodes()]
        with graph.local_scope():
            graph.srcdata["z"], graph.dstdata["z"] = z, own
            graph.update_all(message, reduce)
            return self.out(torch.cat([own, graph.dstdata["n"]], 1))


class Net(nn.Module):
    def __init__(self, in_width, num_outputs, hidden=64, dropout=0.5):
        super().__init__()
        self.first, self.second, self.dropout = Layer(in_width, hidden), Layer(hidden, num_outputs), nn.Dropout(dropout)

    def forward(self, graph, x):
        h = self.dropout(torch.relu(self.first(graph.blocks[0], x)))
        return self.second(graph.blocks[1], h)
