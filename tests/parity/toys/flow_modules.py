"""Modules of two layers as users write them, on blocks: layers of DGL's and of one's own, plain and typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl.function as fn
import dgl.nn.pytorch as dglnn
import torch
import torch.nn.functional as F
from dgl.nn.functional import edge_softmax
from torch import Tensor, nn

ZERO: dict[str, Any] = {"allow_zero_in_degree": True}
HIDDEN = 4


class DotProduct(nn.Module):
    """Attention with scores q_i k_j."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(in_width, 3), nn.Linear(in_width, 3)
        self.value, self.own = nn.Linear(in_width, out_width), nn.Linear(in_width, out_width)

    def forward(self, graph: Any, h: Tensor) -> Tensor:
        own = h[: graph.num_dst_nodes()]
        with graph.local_scope():
            graph.srcdata["k"], graph.srcdata["v"], graph.dstdata["q"] = self.key(h), self.value(h), self.query(own)
            graph.apply_edges(fn.u_dot_v("k", "q", "s"))
            graph.edata["a"] = edge_softmax(graph, graph.edata["s"])
            graph.update_all(fn.u_mul_e("v", "a", "m"), fn.sum("m", "n"))
            out: Tensor = self.own(own) + graph.dstdata["n"]
            return out


class Written(nn.Module):
    """A message and a reduce function by hand."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * in_width, out_width)

    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"m": torch.tanh(self.linear(torch.cat([edges.src["h"], edges.dst["h"]], 1)))}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"n": nodes.mailbox["m"].max(1)[0] + nodes.mailbox["m"].mean(1)}

    def forward(self, graph: Any, h: Tensor) -> Tensor:
        with graph.local_scope():
            graph.srcdata["h"] = h
            graph.dstdata["h"] = h[: graph.num_dst_nodes()]
            graph.update_all(self.message, self.reduce)
            out: Tensor = graph.dstdata["n"]
            return out


class Recurrent(nn.Module):
    """A network over all messages of a node, for modes that hold all rows."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(in_width, out_width, batch_first=True)

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"n": self.lstm(nodes.mailbox["m"])[1][0].squeeze(0)}

    def forward(self, graph: Any, h: Tensor) -> Tensor:
        with graph.local_scope():
            graph.srcdata["h"] = h
            graph.update_all(fn.copy_u("h", "m"), self.reduce)
            out: Tensor = graph.dstdata["n"]
            return out


class EdgeTable(nn.Module):
    """Scores of all edges as a table, over which a number is found for all of them together."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_width, out_width)

    def forward(self, graph: Any, h: Tensor) -> Tensor:
        with graph.local_scope():
            graph.srcdata["h"], graph.dstdata["w"] = self.linear(h), torch.sigmoid(h[: graph.num_dst_nodes(), :1])
            graph.srcdata["w"] = torch.sigmoid(h[:, :1])
            graph.apply_edges(fn.u_mul_v("w", "w", "w"))
            weights = graph.edata["w"]
            graph.edata["w"] = weights.view(weights.shape[0], -1) + float((weights > 0.2).any())
            graph.update_all(fn.u_mul_e("h", "w", "m"), fn.sum("m", "n"))
            out: Tensor = graph.dstdata["n"]
            return out


class Reshaped(nn.Module):
    """Rows in other shapes, and in tables that are not written row by row, on their way to a sum."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(in_width, 6), nn.Linear(6, out_width)

    def forward(self, graph: Any, h: Tensor) -> Tensor:
        heads = self.first(h).view(h.shape[0], 2, -1)
        rows = F.elu((heads.reshape(heads.shape[0], -1).t() * 2).t()).unsqueeze(0).squeeze(0)
        with graph.local_scope():
            graph.srcdata["h"] = rows
            graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "n"))
            out: Tensor = self.second(graph.dstdata["n"])
            return out


class FirstColumns(nn.Module):
    """Some columns of the input, of which a sum is mapped."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2, out_width)

    def forward(self, graph: Any, h: Tensor) -> Tensor:
        with graph.local_scope():
            graph.srcdata["h"] = h[:, :2].contiguous().mul_(2)
            graph.update_all(fn.copy_u("h", "m"), fn.mean("m", "n"))
            out: Tensor = self.linear(graph.dstdata["n"])
            return out


Make = Callable[[int, int], nn.Module]
LAYERS: dict[str, Make] = {
    "graphconv": lambda a, b: dglnn.GraphConv(a, b, **ZERO),
    "graphconv_right": lambda a, b: dglnn.GraphConv(a, b, norm="right", **ZERO),
    "sage_mean": lambda a, b: dglnn.SAGEConv(a, b, "mean"),
    "sage_gcn": lambda a, b: dglnn.SAGEConv(a, b, "gcn"),
    "sage_pool": lambda a, b: dglnn.SAGEConv(a, b, "pool"),
    "gat": lambda a, b: dglnn.GATConv(a, b, 2, attn_drop=0.3, **ZERO),
    "gat_residual": lambda a, b: dglnn.GATConv(a, b, 2, residual=True, **ZERO),
    "gatv2": lambda a, b: dglnn.GATv2Conv(a, b, 2, **ZERO),
    "agnn": lambda a, b: dglnn.AGNNConv(**ZERO),
    "gin": lambda a, b: dglnn.GINConv(nn.Linear(a, b), "sum", learn_eps=True),
    "gin_max": lambda a, b: dglnn.GINConv(nn.Linear(a, b), "max"),
    "edgeconv": lambda a, b: dglnn.EdgeConv(a, b, **ZERO),
    "dotgat": lambda a, b: dglnn.DotGatConv(a, b, 2, **ZERO),
    "dot_product": DotProduct,
    "written": Written,
    "edge_table": EdgeTable,
    "reshaped": Reshaped,
    "first_columns": FirstColumns,
    "recurrent": Recurrent,
}
WHOLE = ("recurrent",)
"""For modes that hold all rows."""
WAYS = ("zipped", "blocks first", "unpacked", "indexed", "counted")
"""How a forward asks for its blocks."""


class Net(nn.Module):
    """Two layers of one kind.

    Args:
        kind: a key of ``LAYERS``. way: one of ``WAYS``.
    """

    def __init__(self, in_width: int, num_outputs: int, kind: str, way: str = "zipped", dropout: float = 0.0) -> None:
        super().__init__()
        keeps_width = kind == "agnn"
        self.before = nn.Linear(in_width, HIDDEN) if keeps_width else nn.Identity()
        widths = [HIDDEN] * 3 if keeps_width else [in_width, HIDDEN, num_outputs]
        self.layers = nn.ModuleList(LAYERS[kind](a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.after = nn.Linear(HIDDEN, num_outputs) if keeps_width else nn.Identity()
        self.way, self.drop = way, nn.Dropout(dropout)

    def blocks(self, graph: Any) -> list[Any]:
        blocks = graph.blocks
        if self.way == "unpacked":
            one, other = blocks
            return [one, other]
        if self.way == "indexed":
            return [blocks[0], blocks[-1]]
        if self.way == "counted":
            return [blocks[number] for number in range(len(blocks))]
        if self.way == "blocks first":
            return [block for block, _ in zip(blocks, self.layers, strict=False)]
        return [block for _, block in zip(self.layers, blocks, strict=False)]

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        h = self.before(x)
        for number, block in enumerate(self.blocks(graph)):
            h = self.layers[number](block, h)
            h = h.mean(1) if h.dim() == 3 else h
            h = self.drop(torch.tanh(h)) if number == 0 else h
        out: Tensor = self.after(h)
        return out


class Single(nn.Module):
    """One layer on the graph itself, without blocks.

    Args:
        kind: a key of ``LAYERS``.
    """

    def __init__(self, in_width: int, num_outputs: int, kind: str) -> None:
        super().__init__()
        self.before, self.layer = nn.Linear(in_width, HIDDEN), LAYERS[kind](HIDDEN, HIDDEN)
        self.after = nn.Linear(HIDDEN, num_outputs)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        h = self.layer(graph, torch.relu(self.before(x)))
        out: Tensor = self.after(h.mean(1) if h.dim() == 3 else h)
        return out


TYPED: dict[str, Make] = {
    "sage": lambda a, b: dglnn.SAGEConv(a, b, "mean"),
    "pool": lambda a, b: dglnn.SAGEConv(a, b, "pool"),
    "gat": lambda a, b: dglnn.GATConv(a, b, 2, **ZERO),
    "gatv2": lambda a, b: dglnn.GATv2Conv(a, b, 2, **ZERO),
    "conv": lambda a, b: dglnn.GraphConv(a, b, norm="right", **ZERO),
}


class Hetero(nn.Module):
    """Two layers with a module for each relation.

    Args:
        ntypes, etypes: the graph's. kind: a key of ``TYPED``.
    """

    def __init__(self, in_width: int, num_outputs: int, ntypes: Any, etypes: Any, kind: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.before = nn.ModuleDict({name: nn.Linear(in_width, HIDDEN) for name in ntypes})
        make = TYPED[kind]
        self.first, self.second = (
            dglnn.HeteroGraphConv({etype: make(HIDDEN, width) for etype in etypes}, aggregate="sum")
            for width in (HIDDEN, num_outputs)
        )

    def forward(self, graph: Any, x: dict[str, Tensor]) -> dict[str, Tensor]:
        h = {name: torch.tanh(self.before[name](rows)) for name, rows in x.items()}
        first, second = graph.blocks
        h = {name: self.drop(torch.relu(_joined(rows))) for name, rows in self.first(first, h).items()}
        return {name: _joined(rows) for name, rows in self.second(second, h).items()}


def _joined(rows: Tensor) -> Tensor:
    return rows.mean(1) if rows.dim() == 3 else rows
