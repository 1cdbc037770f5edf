"""What the networks of stock DGL and PyG have in common: layers between which stand PyTorch's norms, ReLU and dropout; R-GCN on
several types of nodes.

R-GCN: means over each relation, summed over the relations, plus a map of a node's own row that all types share; of edges with
weights, means divided by the sum of these. The last layer has the relations into the labelled type only. Rows of types without
features are parameters.

Letters: N nodes with labels' type, E edges, F features, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sargnn.config.models import StackSettings
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.tasks.base import load_task
from sargnn.tasks.kinds import in_split
from sargnn.training.build import uses_edge_weights

NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
"""``model.norm`` -> what stands between two layers, by their width."""
PLAIN: dict[str, Any] = {"norm": tuple(NORMS), "activation": "relu", "residual": False, "input_dropout": 0}
"""The settings that every stock network is built with."""
PLAIN_GAT: dict[str, Any] = PLAIN | {
    "v2": False,
    "linear_residual": False,
    "attn_dst": True,
    "symmetric_norm": False,
    "edge_dropout": 0,
}
"""Those of GAT."""


class StockNetwork(nn.Module, ABC):
    """A network on its graph. ``forward()`` gives logits [N, C]; where links are predicted, embeddings. Raises ``ConfigError``
    for labels that are no classes.

    Attributes:
        builds: settings of the model and the values with which this network is the same model; a tuple holds several.
        typed: whether it is for graphs with types.
        tasks: that it can be trained for.
        train_rows: int64, rows of N that the loss is taken on.
        labels: int64, theirs.
    """

    builds: ClassVar[dict[str, Any]] = PLAIN
    typed: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = ("nodes",)
    train_rows: Tensor
    labels: Tensor

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        super().__init__()
        if config.task == "nodes" and dataset.task != "classes":
            raise ConfigError(
                "Stock DGL and PyG are measured with classes only.",
                given=f"labels of the task {dataset.task}",
                hint="stock=false",
            )

    @abstractmethod
    def forward(self) -> Tensor:
        """Logits [N, C]."""

    def loss(self) -> Tensor:
        """Cross entropy over the training rows, in fp32 where they are bf16."""
        logits = self()[self.train_rows]
        return F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, self.labels)

    def train_epoch(self, optimizer: torch.optim.Optimizer) -> float:
        """One step on the whole graph; the loss before it."""
        loss = self.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def place(self, device: torch.device) -> None:
        """Parameters, graph, features and labels go to a device."""
        self.to(device)
        for name, value in vars(self).items():
            if not name.startswith("_"):  # not what a module keeps of its own
                moved = tree_map(lambda part: part.to(device) if isinstance(part, Tensor) else part, value)
                setattr(self, name, moved)

    def to_bf16(self) -> None:
        """Graph, features and parameters, as DGL's guide on mixed precision has it."""
        raise NotImplementedError


class Layered(StockNetwork):
    """Features [N, F] through one convolution after the other. ``pairs``: of links, int64 [2, P], heads and tails to train;
    else None."""

    tasks: ClassVar[tuple[str, ...]] = ("nodes", "links")
    convs: nn.ModuleList
    norms: nn.ModuleList

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.dropout = config.model.dropout if isinstance(config.model, StackSettings) else 0.0
        self.features = torch.from_numpy(np.array(dataset.features[0]))
        self.pairs, self._temperature = None, config.links.temperature or 1.0
        if config.predicts_links:
            load_task(config.task).check(config, dataset)
            assert dataset.pairs is not None
            chosen = np.flatnonzero(in_split(np.asarray(dataset.pairs.split), "train"))
            ends = np.stack([np.asarray(dataset.pairs.heads)[chosen], np.asarray(dataset.pairs.tails)[chosen]])
            self.pairs = torch.from_numpy(ends.astype(np.int64))
            return
        nodes = training_nodes(dataset)
        self.train_rows = torch.from_numpy(nodes)
        self.labels = torch.from_numpy(np.asarray(dataset.labels)[nodes].astype(np.int64))

    def loss(self) -> Tensor:
        """Of links the binary cross-entropy of products of embeddings: of each pair, and of its head and a node drawn
        uniformly."""
        if self.pairs is None:
            return super().loss()
        h, (heads, tails) = self(), self.pairs
        drawn = torch.randint(len(h), tails.shape, device=h.device)
        scores = torch.stack([(h[heads] * h[ends]).sum(1) for ends in (tails, drawn)]) / self._temperature
        wanted = torch.zeros_like(scores)
        wanted[0] = 1
        return F.binary_cross_entropy_with_logits(scores.float(), wanted.float())

    def widths(self, config: RunConfig, dataset: Dataset, hidden: int) -> list[tuple[int, int]]:
        """(input, output) of each layer; makes the norms between them. ``hidden``: between two layers."""
        model: Any = config.model
        outputs = config.num_outputs(dataset.num_classes)
        pairs = layer_widths(self.features.shape[1], hidden, outputs, model.num_layers)
        self.norms = nn.ModuleList(NORMS[model.norm](b) for _, b in pairs[:-1])
        return pairs

    def forward(self) -> Tensor:
        h = self.features
        for conv, norm in zip(self.convs, self.norms, strict=False):
            h = normed(norm, self.dropout, self.convolve(conv, h))
        return self.last(self.convs[-1], h)

    @abstractmethod
    def convolve(self, conv: nn.Module, rows: Tensor) -> Tensor:
        """A layer that is not the last."""

    def last(self, conv: nn.Module, rows: Tensor) -> Tensor:
        return self.convolve(conv, rows)


def edge_weights(config: RunConfig, dataset: Dataset) -> Tensor | None:
    """fp32 [E], in the dataset's order; None where there are none or the run uses none."""
    if dataset.columns.weight is None or not uses_edge_weights(config):
        return None
    return torch.from_numpy(np.array(dataset.columns.weight, np.float32))


def for_mean(graph: Any, weight: Tensor) -> Tensor:
    """Weights [E] with which DGL's mean over one relation, which divides by the in-degree, becomes that by their sum."""
    into = graph.edges()[1].long()
    degrees = graph.in_degrees().to(weight.dtype)
    sums = torch.zeros_like(degrees, dtype=torch.float64).index_add_(0, into, weight.double())
    scale = torch.where(sums > 0, degrees / sums, 0).to(weight.dtype)
    return weight * scale[into]


def training_nodes(dataset: Dataset) -> np.ndarray:
    """Ids, int64."""
    return np.flatnonzero(in_split(np.asarray(dataset.split), "train"))


def layer_widths(first: int, hidden: int, last: int, layers: int) -> list[tuple[int, int]]:
    """(input, output) of each layer."""
    widths = [first, *[hidden] * (layers - 1), last]
    return list(zip(widths, widths[1:], strict=False))


def normed(norm: Callable[[Tensor], Tensor], dropout: float, rows: Tensor) -> Tensor:
    return F.dropout(torch.relu(norm(rows)), dropout)


EdgeType = tuple[str, str, str]


def relation_edges(dataset: Dataset) -> Iterator[tuple[EdgeType, np.ndarray, np.ndarray, np.ndarray]]:
    """Of each relation its types and name, its sources and destinations, numbered within their types, and its edges' numbers.
    Destinations ascend."""
    schema = dataset.schema
    types = list(schema.node_types)
    destination = np.repeat(np.arange(schema.num_nodes), np.diff(dataset.indptr))
    relation = np.zeros(dataset.num_edges, np.uint8) if dataset.relation is None else np.asarray(dataset.relation)
    for number, edge_type in enumerate(schema.relations):
        own = np.flatnonzero(relation == number)
        source = np.asarray(dataset.indices)[own] - schema.offsets[edge_type.source]
        into = destination[own] - schema.offsets[edge_type.destination]
        yield (types[edge_type.source], edge_type.name, types[edge_type.destination]), source, into, own


class Typed(StockNetwork):
    """R-GCN with a full weight for each relation.

    Attributes:
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
