"""NBFNet (Zhu et al., NeurIPS 2021): which node answers a query (head, relation, ?), by all paths from the head.

Every node v has a row for each query q. The head's begins as the query relation's vector, others with zeros:

    h0_vq = [v is q's head] x_q        m_vq = h0_vq + sum over edges u -r-> v of h_uq * w_r
    h'_vq = h_vq + relu(norm(W [h_vq, m_vq]))        s_vq = MLP([h_vq, x_q])

sargnn train task=queries dataset=triples dataset.root=FOLDER model=custom model.target=examples/layers/nbfnet.py:NBFNet world=2
"""

import torch
from torch import nn
from torch_geometric.nn import MessagePassing


class Layer(MessagePassing):
    def __init__(self, width, num_relations):
        super().__init__(aggr="add", node_dim=0)
        self.relations = nn.Embedding(num_relations, width)
        self.linear, self.norm = nn.Linear(2 * width, width), nn.LayerNorm(width)

    def forward(self, h, start, edge_index, edge_type):
        sums = self.propagate(edge_index, h=h, relation=self.relations(edge_type))
        return self.norm(self.linear(torch.cat([h, sums + start], -1))).relu()

    def message(self, h_j, relation):
        return h_j * relation.unsqueeze(1)


class NBFNet(nn.Module):
    def __init__(self, num_relations, hidden=32, num_layers=6):
        super().__init__()
        self.queries = nn.Embedding(num_relations, hidden)
        self.layers = nn.ModuleList(Layer(hidden, num_relations) for _ in range(num_layers))
        self.scores = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, edge_index, edge_type, queries):
        asked = self.queries(queries.relations)
        h = start = queries.at_heads(asked)
        for layer in self.layers:
            h = h + layer(h, start, edge_index, edge_type)
        return self.scores(torch.cat([h, asked.expand_as(h)], -1)).squeeze(-1)
