"""GraphSage and GAT of DGL's own layers, ``SAGEConv`` and ``GATConv``; a module of the user's, as it is; and GraphSage on DGL's
own neighbour sampler: ``NeighborSampler``, ``DataLoader`` and ``SAGEConv`` on the blocks that they give.

There an epoch goes through the training nodes in ``batches.steps`` shuffled batches. How many processes sample beside the one
that trains is found by trying: each number for an epoch, then the fastest for those that are measured.
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
from sargnn.models.inputs import GraphShape
from sargnn.report.bench.stock.network import PLAIN, PLAIN_GAT, Layered, edge_weights, for_mean, normed

_SAMPLERS = (0, 1, 2)


class _Homogeneous(Layered):
    """Graph, features and labels; a layer is a DGL convolution.

    Attributes:
        options: what a convolution is given beside graph and rows: the edges' weights, where there are any.
    """

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
    """GraphSage with means."""

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
    """GAT: heads are concatenated, those of the last layer averaged."""

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
        """Heads side by side."""
        out: Tensor = conv(self.graph, rows, **self.options).flatten(1)
        return out

    def last(self, conv: nn.Module, rows: Tensor) -> Tensor:
        """The heads' mean."""
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
        """Logits of all nodes."""
        out: Tensor = self.module(self.graph, self.features)
        return out


class StockSampledSage(StockSage):
    """GraphSage with means over sampled neighbours.

    Attributes:
        number_of_samplers: processes that sample; None: not found yet.
    """

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
