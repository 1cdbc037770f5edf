"""What ``sargnn export`` writes into ``model.py``: the classes here that a model needs, as they are, with its settings.

Nothing here imports sargnn, so that the file works without it. Equations are those of ``sargnn.models``.

Letters: N nodes, E edges, F features, C classes, T node types, R relations.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg


class Sage(nn.Module):
    """GraphSage; with edge weights a weighted sum or mean."""

    def __init__(self, inputs: int, outputs: int, bias: bool, aggregator: str) -> None:
        super().__init__()
        self.aggregator = aggregator
        kind = "max" if aggregator == "pool" else aggregator
        self.conv = pyg.SAGEConv(inputs, outputs, aggr=kind, project=aggregator == "pool", bias=bias)

    def forward(self, x: Tensor, graph: SimpleNamespace) -> Tensor:
        if graph.weight is None:
            return self.conv(x, graph.edge_index)
        neighbours = pyg.SimpleConv(aggr="sum")(x, graph.edge_index, graph.weight)
        if self.aggregator == "mean":
            total = graph.inward[:, None]
            neighbours = torch.where(total > 0, neighbours / torch.where(total > 0, total, 1), 0)
        return self.conv.lin_l(neighbours) + self.conv.lin_r(x)


class Gcn(nn.Module):
    """GCN, with the degrees of an edge's source and destination."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(inputs, outputs, add_self_loops=False, normalize=False, bias=bias)

    def forward(self, x: Tensor, graph: SimpleNamespace) -> Tensor:
        return self.conv(x, graph.edge_index, graph.norm)


class Gcnii(nn.Module):
    """A convolution of GCNII, which also reads the first rows."""

    def __init__(self, width: int, alpha: float, theta: float, layer: int) -> None:
        super().__init__()
        self.conv = pyg.GCN2Conv(width, alpha, theta, layer, add_self_loops=False, normalize=False)

    def forward(self, x: Tensor, graph: SimpleNamespace) -> Tensor:
        return self.conv(x, graph.first, graph.edge_index, graph.norm)


class Gat(nn.Module):
    """GAT or GATv2; the heads of the last layer are averaged."""

    def __init__(
        self,
        inputs: int,
        width: int,
        heads: int,
        last: bool,
        bias: bool,
        v2: bool,
        residual: bool,
        slope: float,
        dropout: float,
        edge_width: int,
    ) -> None:
        super().__init__()
        kind = pyg.GATv2Conv if v2 else pyg.GATConv
        self.conv = kind(
            inputs,
            width,
            heads,
            concat=not last,
            negative_slope=slope,
            dropout=dropout,
            add_self_loops=False,
            edge_dim=edge_width or None,
            bias=bias,
            residual=residual,
        )

    def forward(self, x: Tensor, graph: SimpleNamespace) -> Tensor:
        return self.conv(x, graph.edge_index, graph.edge_attr)


class Gin(nn.Module):
    """GIN, or GINE where edges have features."""

    def __init__(self, widths: list[int], biases: list[bool], norm: str, activation: str, eps: float, edge_width: int) -> None:
        super().__init__()
        mlp: list[nn.Module] = []
        for k, bias in enumerate(biases):
            mlp.append(nn.Linear(widths[k], widths[k + 1], bias=bias))
            if k + 1 < len(biases):
                mlp += [*norm_of(norm, widths[k + 1], [0]), nn.ReLU() if activation == "relu" else nn.ELU()]
        network = nn.Sequential(*mlp)
        self.conv = pyg.GINEConv(network, eps, edge_dim=edge_width) if edge_width else pyg.GINConv(network, eps)

    def forward(self, x: Tensor, graph: SimpleNamespace) -> Tensor:
        if isinstance(self.conv, pyg.GINEConv):
            return self.conv(x, graph.edge_index, graph.edge_attr)
        if graph.weight is None:
            return self.conv(x, graph.edge_index)
        return self.conv.nn(pyg.SimpleConv(aggr="sum")(x, graph.edge_index, graph.weight) + (1 + self.conv.eps) * x)


class Rgcn(nn.Module):
    """R-GCN over all node types in one table."""

    def __init__(self, inputs: int, outputs: int, relations: int, bases: int | None, bias: bool) -> None:
        super().__init__()
        self.conv = pyg.RGCNConv(inputs, outputs, relations, num_bases=bases, bias=bias)

    def forward(self, x: Tensor, graph: SimpleNamespace) -> Tensor:
        return self.conv(x, graph.edge_index, graph.edge_type)


class Rgat(nn.Module):
    """RGAT: GAT's attention in each relation, their sum, and a map of a node's own row."""

    def __init__(
        self,
        inputs: int,
        width: int,
        heads: int,
        last: bool,
        bias: bool,
        relations: int,
        slope: float,
        dropout: float,
        edge_width: int,
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            pyg.GATConv(
                inputs,
                width,
                heads,
                negative_slope=slope,
                dropout=dropout,
                add_self_loops=False,
                edge_dim=edge_width or None,
                bias=False,
            )
            for _ in range(relations)
        )
        self.loop = nn.Linear(inputs, heads * width, bias=False)
        self.bias = nn.Parameter(torch.zeros(width if last else heads * width)) if bias else None
        self.heads, self.last = heads, last

    def forward(self, x: Tensor, graph: SimpleNamespace) -> Tensor:
        out = self.loop(x)
        for number, conv in enumerate(self.convs):
            own = graph.edge_type == number
            out = out + conv(x, graph.edge_index[:, own], None if graph.edge_attr is None else graph.edge_attr[own])
        out = out.view(len(out), self.heads, -1).mean(1) if self.last else out
        return out if self.bias is None else out + self.bias


class Linear(nn.Module):
    """A linear map of each row."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.map = nn.Linear(inputs, outputs, bias=bias)

    def forward(self, x: Tensor, graph: SimpleNamespace) -> Tensor:
        return self.map(x)


class TypedNorm(nn.Module):
    """A norm for each node type: rows of type t are ``offsets[t]`` up to ``offsets[t + 1]``."""

    def __init__(self, kind: type[nn.Module], width: int, offsets: list[int]) -> None:
        super().__init__()
        self.norms, self.offsets = nn.ModuleList(kind(width) for _ in offsets[1:]), offsets

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([norm(x[a:b]) for norm, a, b in zip(self.norms, self.offsets, self.offsets[1:], strict=False)])


def norm_of(norm: str, width: int, offsets: list[int]) -> list[nn.Module]:
    """Batch or layer norm, or nothing; one for each node type where there are several."""
    if norm == "none":
        return []
    kind: type[nn.Module] = nn.BatchNorm1d if norm == "batch" else nn.LayerNorm
    return [kind(width) if len(offsets) <= 2 else TypedNorm(kind, width, offsets)]


class Rows(nn.Module):
    """The rows of all node types in one table: features as they are, mapped, or learned."""

    def __init__(self, counts: list[int], widths: list[int], width: int) -> None:
        super().__init__()
        self.maps = nn.ModuleDict(
            {str(t): nn.Linear(w, width, bias=False) for t, w in enumerate(widths) if w not in (0, width)}
        )
        learned = {str(t): nn.Parameter(torch.zeros(counts[t], width)) for t, w in enumerate(widths) if w == 0}
        self.learned, self.types = nn.ParameterDict(learned), len(widths)

    def forward(self, x: list[Tensor | None]) -> Tensor:
        """``x``: features of each type, None for one without."""
        rows: list[Any] = []
        for t in range(self.types):
            name = str(t)
            rows.append(self.learned[name] if name in self.learned else self.maps[name](x[t]) if name in self.maps else x[t])
        return torch.cat(rows)


class Net(nn.Module):
    """The model. Settings are those of the training.

    ``forward`` gives logits [N, C] of all nodes; of a typed graph those of the type that was trained on count.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        s = self.settings = settings
        self.rows = Rows(**s["rows"]) if s["rows"] is not None else None
        kinds = {kind.__name__: kind for kind in KINDS}
        self.layers = nn.ModuleList(kinds[layer["kind"]](**layer["arguments"]) for layer in s["layers"])
        self.norms = nn.ModuleDict({str(k): norm_of(s["norm"], width, s["offsets"])[0] for k, width in s["norms"]})
        self.residuals = nn.ModuleDict({str(k): nn.Linear(a, b, bias=False) for k, a, b in s["residual_maps"]})

    def forward(
        self,
        x: Any,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        edge_type: Tensor | None = None,
    ) -> Tensor:
        """Args:
        x: [N, F], with columns of labels behind where they were inputs; of a typed graph a list of the types' tables.
        edge_index: int64 [2, E], sources and destinations; of a typed graph nodes are numbered type by type.
        edge_weight, edge_attr: [E], [E, D], where the model was trained with them.
        edge_type: int64 [E], the relation of each edge, of a typed graph.
        """
        s = self.settings
        h = self.rows(x) if self.rows is not None else x
        graph = self.graph(len(h), edge_index, edge_weight, edge_attr, edge_type, h)
        h = F.dropout(h, s["input_dropout"], self.training)
        if s["form"] == "sgc":
            for _ in range(s["steps"]):
                h = self.propagate(h, graph)
            return self.layers[0](h, graph)
        if s["form"] == "reversible":
            return self.reversible(h, graph)
        h = self.residual_stack(h, graph) if s["form"] == "resgcn" else self.stack(h, graph)
        if s["form"] == "appnp":
            first = h
            for _ in range(s["steps"]):
                h = (1 - s["alpha"]) * self.propagate(h, graph) + s["alpha"] * first
        return h

    def stack(self, h: Tensor, graph: SimpleNamespace) -> Tensor:
        """Layers with norm, activation and dropout between them, and residuals."""
        s, last, stream = self.settings, len(self.layers) - 1, None
        jumped: list[Tensor] = []
        for k in range(last + 1):
            if k == last and s["jumping"] != "last":
                h = torch.cat(jumped, 1) if s["jumping"] == "cat" else self.joined(jumped)
            out = self.layers[k](h, graph)
            own = h if stream is None else stream
            if str(k) in self.residuals:
                out = out + self.residuals[str(k)](own)
            elif k in s["identities"]:
                out = out + own
            if k == last:
                return out
            if not s["pre_norm"] and str(k) in self.norms:
                out = self.norms[str(k)](out)
            active = out if k in s["maps_only"] else self.activated(out)
            graph.first = active if k == 0 else graph.first
            h = F.dropout(active, s["dropout"], self.training)
            if k not in s["maps_only"]:
                jumped.append(h)
            stream = None
            if s["pre_norm"] and str(k) in self.norms:
                h, stream = self.norms[str(k)](h), h
        raise AssertionError

    def joined(self, jumped: list[Tensor]) -> Tensor:
        """The sum or the maximum of all layers' rows."""
        rows = torch.stack(jumped)
        return rows.sum(0) if self.settings["jumping"] == "sum" else rows.amax(0)

    def residual_stack(self, h: Tensor, graph: SimpleNamespace) -> Tensor:
        """Pre-activation blocks that add to a stream of rows."""
        stream = self.layers[0](h, graph)
        for k in range(1, len(self.layers)):
            h = self.read(k - 1, stream)
            if k == len(self.layers) - 1:
                return self.layers[k](h, graph)
            stream = stream + self.layers[k](h, graph)
        raise AssertionError

    def reversible(self, h: Tensor, graph: SimpleNamespace) -> Tensor:
        """Blocks of two halves."""
        a, b = self.layers[0](h, graph).chunk(2, 1)
        last = len(self.layers) - 1
        for k in range(1, last, 2):
            a = a + self.layers[k](self.read(k - 1, b), graph)
            b = b + self.layers[k + 1](self.read(k, a), graph)
        return self.layers[last](self.read(last - 1, torch.cat([a, b], 1)), graph)

    def read(self, k: int, h: Tensor) -> Tensor:
        """Norm, activation and dropout in front of a layer."""
        h = self.norms[str(k)](h) if str(k) in self.norms else h
        return F.dropout(self.activated(h), self.settings["dropout"], self.training)

    def activated(self, h: Tensor) -> Tensor:
        return F.relu(h) if self.settings["activation"] == "relu" else F.elu(h)

    def propagate(self, h: Tensor, graph: SimpleNamespace) -> Tensor:
        """D^-1/2 A D^-1/2 h."""
        return pyg.SimpleConv(aggr="sum")(h, graph.edge_index, graph.norm)

    def graph(
        self, count: int, edge_index: Tensor, weight: Tensor | None, attr: Tensor | None, kind: Tensor | None, like: Tensor
    ) -> SimpleNamespace:
        """Edges as the layers read them: with one self-loop a node where the training added these, and GCN's factors."""
        s = self.settings
        weight, attr = weight if s["weighted"] else None, attr if s["edge_width"] else None
        if s["self_loops"]:
            loops, kept = torch.arange(count, device=edge_index.device), edge_index[0] != edge_index[1]
            edge_index = edge_index[:, kept]
            if attr is not None:
                added = torch.zeros(count, attr.shape[1], dtype=torch.float64, device=attr.device)
                if s["loop_means"]:
                    degrees = torch.bincount(edge_index[1], minlength=count).clamp(min=1)[:, None]
                    added = added.index_add(0, edge_index[1], attr[kept].double()) / degrees
                attr = torch.cat([attr[kept], added.to(attr.dtype)])
            weight = None if weight is None else torch.cat([weight[kept], weight.new_ones(count)])
            edge_index = torch.cat([edge_index, torch.stack([loops, loops])], 1)
        outward, inward = (
            torch.zeros(count, dtype=like.dtype, device=like.device).index_add(
                0, ends, torch.ones_like(ends, dtype=like.dtype) if weight is None else weight.to(like.dtype)
            )
            for ends in edge_index
        )
        if weight is None:
            scales = [sums.clamp(min=1).rsqrt() for sums in (outward, inward)]
        else:
            scales = [torch.where(sums > 0, sums, 1).rsqrt() * (sums > 0) for sums in (outward, inward)]
        norm = scales[0][edge_index[0]] * scales[1][edge_index[1]] * (1 if weight is None else weight.to(like.dtype))
        of_edges = None if attr is None else attr.to(like.dtype)
        return SimpleNamespace(
            edge_index=edge_index,
            weight=None if weight is None else weight.to(like.dtype),
            edge_attr=of_edges,
            edge_type=kind,
            norm=norm,
            inward=inward,
            first=None,
        )


KINDS: list[Any] = [Sage, Gcn, Gcnii, Gat, Gin, Rgcn, Rgat, Linear]
