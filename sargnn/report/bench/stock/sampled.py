"""GraphSage on DGL's own neighbour sampler: ``NeighborSampler``, ``DataLoader`` and ``SAGEConv`` on the blocks that they give.

An epoch goes through the training nodes in ``batches.steps`` shuffled batches. How many processes sample beside the one that
trains is found by trying: each number for an epoch, then the fastest for those that are measured.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.report.bench.stock.homogeneous import StockSage
from sargnn.report.bench.stock.network import PLAIN, normed

_SAMPLERS = (0, 1, 2)


class StockSampledSage(StockSage):
    """GraphSage with means over sampled neighbours.

    Attributes:
        number_of_samplers: processes that sample; None: not found yet.
    """

    builds: ClassVar[dict[str, Any]] = PLAIN | {"aggregator": "mean"}

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
