"""The networks of DGL's and of PyG's own layers, as a user without this project has them.

DGL's: GraphSage and GAT of ``SAGEConv`` and ``GATConv``; R-GCN of ``HeteroGraphConv`` of a ``GraphConv`` per relation; a module
of the user's, as it is; GraphSage on DGL's neighbour sampler (``NeighborSampler``, ``DataLoader``). There an epoch goes through
the training nodes in ``batches.steps`` shuffled batches. How many processes sample beside the one that trains is found by
trying: each number for an epoch, then the fastest for those that are measured.

PyG's: GraphSage, GAT and R-GCN of ``SAGEConv``, ``GATConv``, and ``HeteroConv`` of a ``SAGEConv`` per relation. The graph is
made beforehand, self-loops included, in one of two forms (``FORMS``): an edge index sorted by destination, or a CSR matrix of
``torch.sparse`` with a row for each destination, which PyG's layers take as ``adj_t``. Features of edges go to ``edge_dim`` of
GAT, on an edge index. Weights of edges are not built: ``SAGEConv`` takes none on an edge index, and ``GATConv`` makes something
else of them.

Letters: N nodes, E edges, D features of an edge.
"""

from __future__ import annotations

import time
from itertools import repeat
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR
from sargnn.models.inputs import GraphShape
from sargnn.report.bench.stock import (
    PLAIN,
    PLAIN_GAT,
    Layered,
    StockNetwork,
    Typed,
    edge_weights,
    for_mean,
    normed,
    relation_edges,
)
from sargnn.training.build import edge_width

_SAMPLERS = (0, 1, 2)


class _Homogeneous(Layered):
    """A layer is a DGL convolution. ``options``: what it is given beside graph and rows: the edges' weights, if any."""

    options: dict[str, Tensor]

    def __init__(self, config: RunConfig, dataset: Dataset, dgl: Any) -> None:
        super().__init__(config, dataset)
        columns = torch.from_numpy(np.array(dataset.indptr, np.int32)), torch.from_numpy(np.array(dataset.indices))
        graph = dgl.graph(("csc", (*columns, torch.empty(0, dtype=torch.int32))), num_nodes=dataset.num_nodes)
        if (weight := edge_weights(config, dataset)) is not None:
            graph.edata["w"] = weight
        if config.add_self_loops:
            graph = dgl.add_self_loop(dgl.remove_self_loop(graph), fill_data=1.0)
        self.graph = graph
        self.options = {"edge_weight": self.graph.edata["w"]} if "w" in self.graph.edata else {}

    def to_bf16(self) -> None:
        self.to(torch.bfloat16)
        self.features = self.features.bfloat16()
        self.options = {name: weight.bfloat16() for name, weight in self.options.items()}

    def convolve(self, conv: nn.Module, rows: Tensor) -> Tensor:
        out: Tensor = conv(self.graph, rows, **self.options)
        return out


class StockSage(_Homogeneous):
    builds: ClassVar[dict[str, Any]] = PLAIN | {"aggregator": "mean"}

    def __init__(self, config: RunConfig, dataset: Dataset, dgl: Any) -> None:
        super().__init__(config, dataset, dgl)
        if self.options:
            self.options = {"edge_weight": for_mean(self.graph, self.options["edge_weight"])}
        self.graph = self.graph.formats(["csc", "csr"])
        self.graph.create_formats_()
        model: Any = config.model
        pairs = self.widths(config, dataset, model.hidden)
        self.convs = nn.ModuleList(dgl.nn.pytorch.SAGEConv(a, b, "mean") for a, b in pairs)


class StockGat(_Homogeneous):
    """Heads are concatenated, those of the last layer averaged."""

    builds: ClassVar[dict[str, Any]] = PLAIN_GAT

    def __init__(self, config: RunConfig, dataset: Dataset, dgl: Any) -> None:
        super().__init__(config, dataset, dgl)
        self.graph.create_formats_()  # scores need the edge list, too
        model: Any = config.model
        pairs = self.widths(config, dataset, model.heads * model.hidden)
        sizes = [(a, model.hidden, model.heads) for a, _ in pairs[:-1]] + [(*pairs[-1], model.out_heads)]
        self.convs = nn.ModuleList(
            dgl.nn.pytorch.GATConv(
                *size, attn_drop=model.attn_dropout, negative_slope=model.negative_slope, allow_zero_in_degree=True
            )
            for size in sizes
        )

    def convolve(self, conv: nn.Module, rows: Tensor) -> Tensor:
        out: Tensor = conv(self.graph, rows, **self.options).flatten(1)
        return out

    def last(self, conv: nn.Module, rows: Tensor) -> Tensor:
        out: Tensor = conv(self.graph, rows, **self.options).mean(1)
        return out


class StockCustom(_Homogeneous):
    """A module with ``forward(graph, x)`` on DGL's own graph, every one of whose ``blocks`` it is."""

    builds: ClassVar[dict[str, Any]] = {}

    def __init__(self, config: RunConfig, dataset: Dataset, dgl: Any) -> None:
        if dataset.schema.typed:
            raise ConfigError("A module on stock DGL is measured with homogeneous graphs only.", hint="stock=false")
        super().__init__(config, dataset, dgl)
        self.graph.create_formats_()
        self.graph.blocks = repeat(self.graph)
        shape = GraphShape(dataset.schema, dataset.feature_widths, config.num_outputs(dataset.num_classes))
        self.module = config.model.build(shape).module

    def forward(self) -> Tensor:
        out: Tensor = self.module(self.graph, self.features)
        return out


class StockSampledSage(StockSage):
    """``number_of_samplers``: processes that sample; None: not found yet."""

    builds: ClassVar[dict[str, Any]] = PLAIN | {"aggregator": "mean"}
    tasks: ClassVar[tuple[str, ...]] = ("nodes",)

    def __init__(self, config: RunConfig, dataset: Dataset, dgl: Any) -> None:
        super().__init__(config, dataset, dgl)
        if self.options:
            raise ConfigError("Stock DGL's sampler is not measured with edge weights.", hint="dataset.edge_weights=false")
        model: Any = config.model
        fanouts = config.sample.fanouts or [-1] * model.num_layers
        self._steps, self._dgl = config.batches.steps, dgl
        self._sampler = dgl.dataloading.NeighborSampler(fanouts)
        self.graph = self.graph.long().formats(["csc"])  # DGL 2.1 crashes in backward on sampled blocks of int32 ids
        self._nodes = self.train_rows.to(self.graph.idtype)
        self._label_of = torch.zeros(dataset.num_nodes, dtype=torch.int64)
        self._label_of[self.train_rows] = self.labels
        self.number_of_samplers: int | None = None

    def forward_on(self, blocks: list[Any]) -> Tensor:
        """Logits of the last block's destinations."""
        h = self.features[blocks[0].srcdata[self._dgl.NID]]
        for conv, norm, block in zip(self.convs, self.norms, blocks, strict=False):
            h = normed(norm, self.dropout, conv(block, h))
        out: Tensor = self.convs[-1](blocks[-1], h)
        return out

    def train_epoch(self, optimizer: torch.optim.Optimizer) -> float:
        """All steps; the mean loss. The first call finds the number of samplers."""
        if self.number_of_samplers is None:
            times = {}
            for number in _SAMPLERS:
                started = time.perf_counter()
                self._run(optimizer, number)
                times[number] = time.perf_counter() - started
            self.number_of_samplers = min(times, key=times.__getitem__)
        return self._run(optimizer, self.number_of_samplers)

    def _run(self, optimizer: torch.optim.Optimizer, samplers: int) -> float:
        size = -(-len(self._nodes) // self._steps)
        loader = self._dgl.dataloading.DataLoader(
            self.graph, self._nodes, self._sampler, batch_size=size, shuffle=True, drop_last=False, num_workers=samplers
        )
        total = 0.0
        for _, wanted, blocks in loader:
            logits = self.forward_on(blocks)
            loss = F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, self._label_of[wanted])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(wanted)
        return total / len(self._nodes)


def typed_graph(dataset: Dataset, dgl: Any, weight: Tensor | None) -> Any:
    """The dataset as a heterograph, its formats made; ``edata["w"]`` holds weights [E] for means, if some are given."""
    schema = dataset.schema
    ends, weights = {}, {}
    for key, source, into, own in relation_edges(dataset):
        ends[key] = (torch.from_numpy(source.astype(np.int32)), torch.from_numpy(into.astype(np.int32)))
        weights[key] = None if weight is None else weight[torch.from_numpy(own)]
    counts = {name: schema.count(number) for number, name in enumerate(schema.node_types)}
    graph = dgl.heterograph(ends, num_nodes_dict=counts)
    for key, each in weights.items():
        if each is not None:
            graph.edges[key].data["w"] = for_mean(graph[key], each)
    graph = graph.formats(["csc", "csr"])
    graph.create_formats_()
    return graph


class StockRgcn(Typed):
    def __init__(self, config: RunConfig, dataset: Dataset, dgl: Any) -> None:
        super().__init__(config, dataset)
        graph = typed_graph(dataset, dgl, edge_weights(config, dataset))
        last = graph.edge_type_subgraph([edge_type for edge_type in graph.canonical_etypes if edge_type[2] == self.labelled])
        self.graphs = [graph] * (len(self.pairs) - 1) + [last]
        for (a, b), used in zip(self.pairs, self.graphs, strict=True):
            each = {
                name: dgl.nn.pytorch.GraphConv(a, b, norm="right", weight=True, bias=False, allow_zero_in_degree=True)
                for name in used.etypes
            }
            self.convs.append(dgl.nn.pytorch.HeteroGraphConv(each, aggregate="sum"))

    def to_bf16(self) -> None:
        self.to(torch.bfloat16)
        self.features = {name: rows.bfloat16() for name, rows in self.features.items()}
        for graph in {id(layer_graph): layer_graph for layer_graph in self.graphs}.values():
            for edge_type in graph.canonical_etypes:
                if "w" in graph.edges[edge_type].data:
                    graph.edges[edge_type].data["w"] = graph.edges[edge_type].data["w"].bfloat16()

    def sums(self, layer: int, h: dict[str, Tensor]) -> dict[str, Tensor]:
        graph = self.graphs[layer]
        options = {
            edge_type: {"edge_weight": graph.edges[edge_type].data["w"]}
            for edge_type in graph.etypes
            if "w" in graph.edges[edge_type].data
        }
        sums: dict[str, Tensor] = self.convs[layer](graph, h, mod_kwargs=options)
        return sums


def adjacency(form: str, source: np.ndarray, into: np.ndarray, shape: tuple[int, int]) -> Tensor:
    """The graph of edges in a form of ``FORMS``: int64 [2, E] or fp32 of ``shape``, CSR.

    Args:
        source, into: whole numbers [E], destinations ascending.
        shape: numbers of destinations and of sources.
    """
    sources, destinations = (torch.from_numpy(ends.astype(np.int64)) for ends in (source, into))
    if form == "edge_index":
        return torch.stack([sources, destinations])
    starts = torch.zeros(shape[0] + 1, dtype=torch.int64)
    starts[1:] = torch.bincount(destinations, minlength=shape[0]).cumsum(0)
    return torch.sparse_csr_tensor(starts, sources, torch.ones(len(sources)), shape, check_invariants=False)


def _refuse_weights(network: StockNetwork, config: RunConfig, dataset: Dataset) -> None:
    if edge_weights(config, dataset) is not None:
        raise ConfigError("Stock PyG is not measured with edge weights.", hint="dataset.edge_weights=false")


class _Pyg(Layered):
    """A layer is a convolution of PyG's. ``options``: the edges' features [E, D], where the model reads them."""

    options: dict[str, Tensor]

    def __init__(self, config: RunConfig, dataset: Dataset, form: str) -> None:
        super().__init__(config, dataset)
        _refuse_weights(self, config, dataset)
        nodes, attr = np.arange(dataset.num_nodes), None
        source, into = np.asarray(dataset.indices), np.repeat(nodes, np.diff(dataset.indptr))
        if edge_width(dataset.columns, config):
            attr = np.array(dataset.columns[ATTR])
        if config.add_self_loops:  # exactly one a node, as GATConv would make them anew in every layer of every epoch
            others = source != into
            source, into = np.concatenate([source[others], nodes]), np.concatenate([into[others], nodes])
            order = np.argsort(into, kind="stable")
            source, into = source[order], into[order]
            if attr is not None:
                attr = np.concatenate([attr[others], np.zeros((len(nodes), attr.shape[1]), attr.dtype)])[order]
        self.graph = adjacency(form, source, into, (dataset.num_nodes,) * 2)
        self.options = {} if attr is None else {"edge_attr": torch.from_numpy(attr)}

    def convolve(self, conv: nn.Module, rows: Tensor) -> Tensor:
        out: Tensor = conv(rows, self.graph, **self.options)
        return out


class PygSage(_Pyg):
    builds: ClassVar[dict[str, Any]] = PLAIN | {"aggregator": "mean"}

    def __init__(self, config: RunConfig, dataset: Dataset, form: str) -> None:
        from torch_geometric.nn import SAGEConv

        super().__init__(config, dataset, form)
        model: Any = config.model
        self.convs = nn.ModuleList(SAGEConv(*pair) for pair in self.widths(config, dataset, model.hidden))


class PygGat(_Pyg):
    builds: ClassVar[dict[str, Any]] = PLAIN_GAT | {"v2": (False, True)}

    def __init__(self, config: RunConfig, dataset: Dataset, form: str) -> None:
        from torch_geometric.nn import GATConv, GATv2Conv

        super().__init__(config, dataset, form)
        model: Any = config.model
        layer, width = GATv2Conv if model.v2 else GATConv, edge_width(dataset.columns, config) or None
        pairs = self.widths(config, dataset, model.heads * model.hidden)
        sizes = [(a, model.hidden, model.heads, True) for a, _ in pairs[:-1]] + [(*pairs[-1], model.out_heads, False)]
        self.convs = nn.ModuleList(
            layer(*size, model.negative_slope, model.attn_dropout, add_self_loops=False, edge_dim=width) for size in sizes
        )


class PygRgcn(Typed):
    def __init__(self, config: RunConfig, dataset: Dataset, form: str) -> None:
        from torch_geometric.nn import HeteroConv, SAGEConv

        super().__init__(config, dataset)
        _refuse_weights(self, config, dataset)
        counts = {name: dataset.schema.count(number) for number, name in enumerate(self.types)}
        graphs = {
            key: adjacency(form, source, into, (counts[key[2]], counts[key[0]]))
            for key, source, into, _ in relation_edges(dataset)
        }
        last = {key: graph for key, graph in graphs.items() if key[2] == self.labelled}
        self.graphs = [graphs] * (len(self.pairs) - 1) + [last]
        for (a, b), used in zip(self.pairs, self.graphs, strict=True):
            each = {key: SAGEConv((a, a), b, root_weight=False, bias=False) for key in used}
            self.convs.append(HeteroConv(each, aggr="sum"))

    def sums(self, layer: int, h: dict[str, Tensor]) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = self.convs[layer](h, self.graphs[layer])
        return sums
