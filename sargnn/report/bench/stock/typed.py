"""R-GCN on several types of nodes; of DGL's own layers: ``HeteroGraphConv`` of a ``GraphConv`` per relation.

Means over each relation, summed over the relations, plus a map of a node's own row that all types share; of edges with
weights, means divided by the sum of these. The last layer has the relations into the labelled type only. Rows of types without
features are parameters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.report.bench.stock.network import (
    NORMS,
    PLAIN,
    StockNetwork,
    edge_weights,
    for_mean,
    layer_widths,
    normed,
    training_nodes,
)

EdgeType = tuple[str, str, str]


def relation_edges(dataset: Dataset) -> Iterator[tuple[EdgeType, np.ndarray, np.ndarray, np.ndarray]]:
    """Of each relation its types and name, its sources and destinations, numbered within their types, and its edges' numbers.

    Destinations come in ascending order.
    """
    schema = dataset.schema
    types = list(schema.node_types)
    destination = np.repeat(np.arange(schema.num_nodes), np.diff(dataset.indptr))
    relation = np.zeros(dataset.num_edges, np.uint8) if dataset.relation is None else np.asarray(dataset.relation)
    for number, edge_type in enumerate(schema.relations):
        own = np.flatnonzero(relation == number)
        source = np.asarray(dataset.indices)[own] - schema.offsets[edge_type.source]
        into = destination[own] - schema.offsets[edge_type.destination]
        yield (types[edge_type.source], edge_type.name, types[edge_type.destination]), source, into, own


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


class Typed(StockNetwork):
    """R-GCN with a full weight for each relation.

    Attributes:
        types: of nodes.
        labelled: that with labels.
        pairs: (input, output) of each layer.
        convs: of each layer the means over each relation, mapped and summed; subclasses make them.
        loops: of each layer the map of a node's own row.
        norms: between layers, by type.
    """

    builds: ClassVar[dict[str, Any]] = PLAIN | {"bases": None, "embedding": None}
    typed: ClassVar[bool] = True
    convs: nn.ModuleList

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        model: Any = config.model
        self.dropout: float = model.dropout
        schema = dataset.schema
        self.types = list(schema.node_types)
        widths = dataset.feature_widths
        width = max(widths)
        if set(widths) - {0, width}:
            raise ConfigError("Stock R-GCN is built for features of one width.", given=f"widths {widths}", hint="stock=false")
        self.features = {
            name: torch.from_numpy(np.array(dataset.features[n])) for n, name in enumerate(self.types) if widths[n]
        }
        self.embeddings = nn.ParameterDict(
            {
                name: nn.Parameter(torch.empty(schema.count(n), width).normal_(0, 0.1))
                for n, name in enumerate(self.types)
                if not widths[n]
            }
        )
        nodes = training_nodes(dataset)
        labelled = int(schema.types_of(nodes[:1])[0])
        self.labelled = self.types[labelled]
        self.train_rows = torch.from_numpy(nodes - schema.offsets[labelled])
        self.labels = torch.from_numpy(np.asarray(dataset.labels)[nodes].astype(np.int64))
        self.pairs = layer_widths(width, model.hidden, dataset.num_classes, model.num_layers)
        self.convs, self.loops, self.norms = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for a, b in self.pairs:
            self.loops.append(nn.Linear(a, b))
        for _, b in self.pairs[:-1]:
            self.norms.append(nn.ModuleDict({name: NORMS[model.norm](b) for name in self.types}))

    @abstractmethod
    def sums(self, layer: int, h: dict[str, Tensor]) -> dict[str, Tensor]:
        """What a layer's relations bring, by type; of the last layer those into the labelled type."""

    def forward(self) -> Tensor:
        """Logits of the labelled type's nodes."""
        h: dict[str, Tensor] = {**self.features, **self.embeddings}
        for layer, norms in enumerate(self.norms):
            mapped = self._layer(layer, h, self.types)
            h = {name: normed(norms[name], self.dropout, rows) for name, rows in mapped.items()}  # type: ignore[index]
            del mapped
        return self._layer(len(self.pairs) - 1, h, [self.labelled])[self.labelled]

    def _layer(self, layer: int, h: dict[str, Tensor], types: list[str]) -> dict[str, Tensor]:
        sums, loop = self.sums(layer, h), self.loops[layer]
        return {name: sums[name] + loop(h[name]) if name in sums else loop(h[name]) for name in types}


class StockRgcn(Typed):
    """Of DGL's layers."""

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
