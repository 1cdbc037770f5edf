"""SGC, APPNP, GCNII and GIN of DGL's own modules in a plain training loop, with the settings of their experiments on Cora.

    python scripts/cora_stock.py 5 dataset.root=FOLDER 'cases=sgc;appnp;gcnii;gin'

The first argument is the number of seeds, the others are overrides of ``sargnn train``; ``cases`` chooses models. Prints a
Markdown table of test accuracies, mean and standard deviation over the seeds: at the best validation accuracy, which is what a
run's summary has, at the lowest validation loss, by which the published figures were chosen, and after the last epoch.
"""

from __future__ import annotations

import sys
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from composed import config_of
from torch import Tensor, nn
from torch.nn import functional as F

from sargnn.config.models import AppnpSettings, GcniiSettings, GinSettings, SgcSettings
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.graph.schema import SPLITS
from sargnn.interop.dgl import import_dgl
from sargnn.sources.prepare import prepare_dataset

CASES = ("sgc", "appnp", "gcnii", "gin")


class Network(nn.Module):
    """One of the four models, of DGL's modules."""

    def __init__(self, config: RunConfig, width: int, classes: int) -> None:
        super().__init__()
        conv, self.model = import_dgl().nn.pytorch, config.model
        model: Any = config.model
        if isinstance(model, SgcSettings):
            self.first: nn.Module = conv.SGConv(width, classes, k=model.steps, cached=not model.input_dropout)
            return
        if isinstance(model, GinSettings):
            ends = [width, *[model.hidden] * (model.num_layers - 1), classes]
            self.convolutions = nn.ModuleList(
                conv.GINConv(nn.Sequential(nn.Linear(a, model.hidden), nn.ReLU(), nn.Linear(model.hidden, b)), "sum", model.eps)
                for a, b in zip(ends, ends[1:], strict=False)
            )
            return
        self.first, self.last = nn.Linear(width, model.hidden), nn.Linear(model.hidden, classes)
        if isinstance(model, AppnpSettings):
            self.propagate = conv.APPNPConv(k=model.steps, alpha=model.alpha, edge_drop=model.edge_dropout)
        else:
            choices = {"alpha": model.alpha, "lambda_": model.theta, "bias": False}
            layers = range(1, model.num_layers + 1)
            self.convolutions = nn.ModuleList(conv.GCN2Conv(model.hidden, layer, **choices) for layer in layers)
            for one in self.convolutions:  # DGL's own, a normal distribution, is not that of the authors' code
                nn.init.uniform_(one.get_parameter("weight1"), -(model.hidden**-0.5), model.hidden**-0.5)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        model: Any = self.model

        def drop(h: Tensor, p: float) -> Tensor:
            return F.dropout(h, p, self.training)

        x = drop(x, model.input_dropout)
        if isinstance(model, SgcSettings):
            return self.first(graph, x)
        if isinstance(model, GinSettings):
            for one in self.convolutions[:-1]:
                x = drop(torch.relu(one(graph, x)), model.dropout)
            return self.convolutions[-1](graph, x)
        h = initial = torch.relu(self.first(x))
        for one in self.convolutions if isinstance(model, GcniiSettings) else ():
            h = torch.relu(one(graph, drop(h, model.dropout), initial))
        h = self.last(drop(h, model.dropout))
        return self.propagate(graph, h) if isinstance(model, AppnpSettings) else h

    def groups(self, config: RunConfig) -> list[dict[str, Any]]:
        """Parameters with their weight decay."""
        own = config.optim.weight_decay_of or {}
        named = {name: getattr(self, name, nn.ModuleList()) for name in ("first", "convolutions")}
        chosen = {id(p): decay for name, decay in own.items() for p in named[name].parameters()}
        decay = config.optim.weight_decay
        return [{"params": [p], "weight_decay": chosen.get(id(p), decay)} for p in self.parameters()]


def graph_of(dataset: Dataset, *, self_loops: bool) -> Any:
    """The graph in DGL, each node with one self-loop if asked for."""
    dgl = import_dgl()
    destinations = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    ends = torch.from_numpy(np.array(dataset.indices)).long(), torch.from_numpy(destinations)
    graph = dgl.graph(ends, num_nodes=dataset.num_nodes)
    return dgl.add_self_loop(dgl.remove_self_loop(graph)) if self_loops else graph


def trained(config: RunConfig, dataset: Dataset) -> tuple[float, float, float]:
    """Test accuracy at the best validation accuracy, at the lowest validation loss, and after the last epoch."""
    torch.manual_seed(config.seed)
    graph = graph_of(dataset, self_loops=not isinstance(config.model, GinSettings))
    x = torch.from_numpy(np.array(dataset.features[0]))
    labels, split = (torch.from_numpy(np.array(one)) for one in (dataset.labels, dataset.split))
    train, valid, test = (split == SPLITS[name] for name in ("train", "valid", "test"))
    network = Network(config, x.shape[1], dataset.num_classes)
    optimizer = torch.optim.Adam(network.groups(config), lr=config.optim.lr)
    best, lowest, at_best, at_lowest, accuracy = -1.0, float("inf"), 0.0, 0.0, 0.0
    for _ in range(config.epochs):
        network.train()
        optimizer.zero_grad()
        F.cross_entropy(network(graph, x)[train], labels[train]).backward()
        optimizer.step()
        network.eval()
        with torch.no_grad():
            logits = network(graph, x)
        right = (logits.argmax(1) == labels).double()
        loss, score, accuracy = (
            float(F.cross_entropy(logits[valid], labels[valid])),
            float(right[valid].mean()),
            float(right[test].mean()),
        )
        if score > best:
            best, at_best = score, accuracy
        if loss < lowest:
            lowest, at_lowest = loss, accuracy
    return at_best, at_lowest, accuracy


def spread(values: list[float]) -> str:
    return f"{mean(values):.4f} +- {stdev(values) if len(values) > 1 else 0:.4f}"


def main() -> None:
    seeds, *given = sys.argv[1:]
    words = [one for one in given if not one.startswith("cases=")]
    chosen = next((one.removeprefix("cases=").split(";") for one in given if one.startswith("cases=")), list(CASES))
    print("| | at best validation accuracy | at lowest validation loss | last epoch |\n|---|---|---|---|")
    for name in chosen:
        rows = []
        for seed in range(int(seeds)):
            config = config_of([f"experiment=cora_{name}", "dataset.add_inverse_edges=false", *words, f"seed={seed}"])
            path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
            rows.append(trained(config, open_dataset(path, verify=False)))
        print(f"| `{name}` | " + " | ".join(spread(list(one)) for one in zip(*rows, strict=True)) + " |", flush=True)


if __name__ == "__main__":
    main()
