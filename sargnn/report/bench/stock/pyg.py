"""GraphSage, GAT and R-GCN of PyG's own layers: ``SAGEConv``, ``GATConv``, and ``HeteroConv`` of a ``SAGEConv`` per relation.

The graph is made beforehand, self-loops included, in one of two forms (``FORMS``): an edge index sorted by destination, or a
CSR matrix of ``torch.sparse`` with a row for each destination, which PyG's layers take as ``adj_t``. Features of edges go to
``edge_dim`` of GAT, on an edge index. Weights of edges are not built: ``SAGEConv`` takes none on an edge index, and
``GATConv`` makes something else of them.

Letters: N nodes, E edges, D features of an edge.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR
from sargnn.report.bench.stock.network import PLAIN, PLAIN_GAT, Layered, StockNetwork, edge_weights
from sargnn.report.bench.stock.typed import Typed, relation_edges
from sargnn.training.build import edge_width


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
    """A layer is a convolution of PyG's.

    Attributes:
        options: what it is given beside rows and graph: the edges' features [E, D], where the model reads them.
    """

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
    """GraphSage with means."""

    builds: ClassVar[dict[str, Any]] = PLAIN | {"aggregator": "mean"}

    def __init__(self, config: RunConfig, dataset: Dataset, form: str) -> None:
        from torch_geometric.nn import SAGEConv

        super().__init__(config, dataset, form)
        model: Any = config.model
        self.convs = nn.ModuleList(SAGEConv(*pair) for pair in self.widths(config, dataset, model.hidden))


class PygGat(_Pyg):
    """GAT: heads are concatenated, those of the last layer averaged."""

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
    """R-GCN, a graph for each relation."""

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
