"""ULTRA (Galkin et al., ICLR 2024): a model of knowledge graphs that knows no relation by name, and so answers on any of them.

Relations are nodes of a graph of their own: an edge a -> b of kind (head, head), (head, tail), (tail, head) or (tail, tail)
says that some node is that end of an edge of a and that end of one of b. NBFNet on this graph, asked from the query's relation,
gives each relation a vector for each query; with these in place of learned ones NBFNet answers on the graph itself. The graph
of relations is small: every worker has all of it.

sargnn train task=queries dataset=triples dataset.root=FOLDER model=custom model.target=examples/layers/ultra.py:Ultra
    model.args.triples=FOLDER/train.txt world=2
"""

from pathlib import Path

import torch
from torch import nn
from torch_geometric.nn import MessagePassing


def relation_graph(triples, num_relations):
    """Edges [2, E] between relations and their kinds [E], from text triples; relation r + half is the inverse of r."""
    lines = [line.split("\t") for line in Path(triples).read_text(encoding="utf-8").splitlines()]
    numbers = {name: number for number, name in enumerate(sorted({relation for _, relation, _ in lines}))}
    nodes = {name: number for number, name in enumerate(sorted({end for head, _, tail in lines for end in (head, tail)}))}
    half = num_relations // 2
    ends = torch.zeros(2, len(nodes), num_relations)
    for head, name, tail in lines:
        a, r, b = nodes[head], numbers[name], nodes[tail]
        ends[0, a, r] = ends[1, b, r] = ends[0, b, r + half] = ends[1, a, r + half] = 1
    pairs = [(torch.nonzero(ends[i].T @ ends[j]).T, 2 * i + j) for i in (0, 1) for j in (0, 1)]
    kinds = [torch.full((edges.shape[1],), kind) for edges, kind in pairs]
    return torch.cat([edges for edges, _ in pairs], 1), torch.cat(kinds)


class Layer(MessagePassing):
    """One step of NBFNet with vectors of relations [R, Q, D]."""

    def __init__(self, width):
        super().__init__(aggr="add", node_dim=0)
        self.linear, self.norm = nn.Linear(2 * width, width), nn.LayerNorm(width)

    def forward(self, h, start, edge_index, edge_type, relations):
        sums = self.propagate(edge_index, h=h, relation=relations[edge_type])
        return self.norm(self.linear(torch.cat([h, sums + start], -1))).relu()

    def message(self, h_j, relation):
        return h_j * relation


class Ultra(nn.Module):
    def __init__(self, num_relations, triples, hidden=32, num_layers=3):
        super().__init__()
        edges, kinds = relation_graph(triples, num_relations)
        self.register_buffer("edges", edges, persistent=False)
        self.register_buffer("kinds", kinds, persistent=False)
        self.num_relations = num_relations
        self.meetings = nn.ModuleList(nn.Embedding(4, hidden) for _ in range(num_layers))
        self.of_relations = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(num_layers))
        self.maps = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(num_layers))
        self.layers = nn.ModuleList(Layer(hidden) for _ in range(num_layers))
        self.scores = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def vectors(self, asked):
        """[R, Q, D]: NBFNet on the graph of relations, from the relation asked for."""
        is_asked = torch.nn.functional.one_hot(asked, self.num_relations).T.to(self.scores[0].weight.dtype)
        z = start = is_asked.unsqueeze(2) * torch.ones_like(self.meetings[0].weight[0])
        degrees = torch.bincount(self.edges[1], minlength=self.num_relations).clamp(min=1).view(-1, 1, 1)
        for meeting, linear in zip(self.meetings, self.of_relations, strict=True):
            messages = z[self.edges[0]] * meeting(self.kinds).unsqueeze(1)
            sums = torch.zeros_like(z).index_add(0, self.edges[1], messages) / degrees
            z = z + linear(torch.cat([z, sums + start], -1)).relu()
        return z

    def forward(self, edge_index, edge_type, queries):
        vectors = self.vectors(queries.relations)
        asked = vectors[queries.relations, torch.arange(len(queries.relations))]
        h = start = queries.at_heads(asked)
        for layer, linear in zip(self.layers, self.maps, strict=True):
            h = h + layer(h, start, edge_index, edge_type, linear(vectors))
        return self.scores(torch.cat([h, asked.expand_as(h)], -1)).squeeze(-1)
