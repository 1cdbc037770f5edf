"""Ordinary modules that compute what models of the package do, with layers that know nothing of workers.

They draw their parameters in the same order, so that the same seed gives the same ones.
"""

from __future__ import annotations

from typing import Any

import dgl.function as fn
import torch
import torch.nn.functional as F
from dgl.nn import APPNPConv
from dgl.nn.functional import edge_softmax
from torch import Tensor, nn


class SageLayer(nn.Module):
    def __init__(self, in_width: int, out_width: int, *, bias: bool) -> None:
        super().__init__()
        self.neigh = nn.Linear(in_width, out_width, bias=False)
        self.self = nn.Linear(in_width, out_width, bias=bias)
        for one in (self.self, self.neigh):
            nn.init.xavier_uniform_(one.weight, gain=nn.init.calculate_gain("relu"))

    def forward(self, graph: Any, h: Tensor) -> Tensor:
        with graph.local_scope():
            graph.srcdata["h"] = h
            graph.update_all(fn.copy_u("h", "m"), fn.mean("m", "n"))
            own = h[: graph.num_dst_nodes()] if graph.is_block else h
            return self.self(own) + self.neigh(graph.dstdata["n"])


class GatLayer(nn.Module):
    def __init__(self, in_width: int, width: int, heads: int, *, drop: float, concat: bool, bias: bool) -> None:
        super().__init__()
        self.heads, self.width, self.concat = heads, width, concat
        self.bias = nn.Parameter(torch.zeros(heads * width if concat else width)) if bias else None
        self.linear = nn.Linear(in_width, heads * width, bias=False)
        nn.init.xavier_normal_(self.linear.weight, gain=nn.init.calculate_gain("relu"))
        self.source, self.destination = self._vector(), self._vector()
        self.drop = nn.Dropout(drop)

    def _vector(self) -> nn.Parameter:
        vector = torch.empty(1, self.heads, self.width)
        nn.init.xavier_normal_(vector, gain=nn.init.calculate_gain("relu"))
        return nn.Parameter(vector[0])

    def forward(self, graph: Any, h: Tensor) -> Tensor:
        with graph.local_scope():
            z = self.linear(h).view(-1, self.heads, self.width)
            own = z[: graph.number_of_dst_nodes()] if graph.is_block else z
            graph.srcdata["z"], graph.srcdata["el"] = z, (z * self.source).sum(-1, keepdim=True)
            graph.dstdata["er"] = (own * self.destination).sum(-1, keepdim=True)
            graph.apply_edges(fn.u_add_v("el", "er", "e"))
            graph.edata["a"] = self.drop(edge_softmax(graph, F.leaky_relu(graph.edata.pop("e"), 0.2)))
            graph.update_all(fn.u_mul_e("z", "a", "m"), fn.sum("m", "out"))
            out = graph.dstdata["out"]
        out = out.flatten(1) if self.concat else out.mean(1)
        return out if self.bias is None else out + self.bias


class Sage(nn.Module):
    """As ``model=sage``."""

    def __init__(
        self, in_width: int, num_outputs: int, hidden: int, num_layers: int, dropout: float, input_dropout: float
    ) -> None:
        super().__init__()
        widths = [in_width, *[hidden] * (num_layers - 1), num_outputs]
        self.layers = nn.ModuleList(self._layer(widths[k], widths[k + 1], last=k == num_layers - 1) for k in range(num_layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths[1:-1])
        self.dropout, self.input_dropout = nn.Dropout(dropout), input_dropout

    def _layer(self, in_width: int, out_width: int, *, last: bool) -> nn.Module:
        return SageLayer(in_width, out_width, bias=last)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        h = F.dropout(x, self.input_dropout, self.training)
        for number, (layer, block) in enumerate(zip(self.layers, graph.blocks, strict=False)):
            h = layer(block, h)
            if number < len(self.norms):
                h = self.dropout(F.relu(self.norms[number](h)))
        return h


class Gat(Sage):
    """As ``model=gat``."""

    def __init__(
        self, in_width: int, num_outputs: int, hidden: int, num_layers: int, heads: int, dropout: float, attn_dropout: float
    ) -> None:
        self._heads, self._hidden, self._drop, self._outputs = heads, hidden, attn_dropout, num_outputs
        super().__init__(in_width, num_outputs, heads * hidden, num_layers, dropout, 0.0)

    def _layer(self, in_width: int, out_width: int, *, last: bool) -> nn.Module:
        heads, width = (1, self._outputs) if last else (self._heads, self._hidden)
        return GatLayer(in_width, width, heads, drop=self._drop, concat=not last, bias=last)


class Propagated(nn.Module):
    """DGL's APPNPConv, which drops edges by a tensor of ones that it makes itself."""

    def __init__(self, in_width: int, num_outputs: int) -> None:
        super().__init__()
        self.linear, self.steps = nn.Linear(in_width, num_outputs), APPNPConv(k=2, alpha=0.1, edge_drop=0.5)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        return self.steps(graph, self.linear(x))


class Written(nn.Module):
    """Writes in place to sums of the constant input."""

    def __init__(self, in_width: int, num_outputs: int) -> None:
        super().__init__()
        self.map = nn.Linear(in_width, num_outputs)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.srcdata["x"] = x
            graph.update_all(fn.copy_u("x", "m"), fn.sum("m", "n"))
            n = graph.dstdata["n"]
        n.mul_(0.25).add_(1)
        return self.map(n)
