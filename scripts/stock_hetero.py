"""R-GCN in stock DGL, one process: ``HeteroGraphConv`` of a ``GraphConv`` per relation, on a typed dataset store.

    python scripts/stock_hetero.py DATASET_STORE [--epochs 5] [--dropout 0.5] [--threads 2] [--layers 3] [--hidden 256]

Means over each relation, summed over relations, plus a map of a node's own row that all types share; the last layer has the
relations into the labelled type only; PyTorch's batch norm per node type, ReLU, dropout and Adam; rows of types without
features are parameters. Formats are made beforehand, and the memory baseline is taken once graph, features and parameters are
read in. Prints one JSON object. THP_MEM_ALLOC_ENABLE=1 turns huge pages on.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median

parser = argparse.ArgumentParser()
parser.add_argument("store", type=Path)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--dropout", type=float, default=0.5)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--layers", type=int, default=3)
parser.add_argument("--hidden", type=int, default=256)
arguments = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(arguments.threads)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from sargnn.data.dataset import SPLITS, open_dataset  # noqa: E402
from sargnn.interop.dgl import import_dgl  # noqa: E402
from sargnn.tracking.memory import PeakMeter  # noqa: E402

dgl = import_dgl()
torch.set_num_threads(arguments.threads)
torch.manual_seed(0)
dataset = open_dataset(arguments.store, verify=False)
schema = dataset.schema
types = list(schema.node_types)
destination = np.repeat(np.arange(schema.num_nodes), np.diff(dataset.indptr))
ends = {}
for number, one in enumerate(schema.relations):
    own = np.flatnonzero(np.asarray(dataset.relation) == number)
    source = np.asarray(dataset.indices)[own] - schema.offsets[one.source]
    key = (types[one.source], one.name, types[one.destination])
    ends[key] = (torch.from_numpy(source.astype(np.int32)),
                 torch.from_numpy((destination[own] - schema.offsets[one.destination]).astype(np.int32)))  # fmt: skip
graph = dgl.heterograph(ends, num_nodes_dict={name: schema.count(number) for number, name in enumerate(types)})
del ends, destination
graph = graph.formats(["csc", "csr"])
graph.create_formats_()
widths = [dataset.feature_widths[number] for number in range(len(types))]
width = max(widths)
features = {name: torch.from_numpy(np.array(dataset.features[n])) for n, name in enumerate(types) if widths[n]}
embeddings = nn.ParameterDict({name: nn.Parameter(torch.empty(schema.count(n), width).normal_(0, 0.1))
                               for n, name in enumerate(types) if not widths[n]})  # fmt: skip
labels = np.asarray(dataset.labels)
split = np.asarray(dataset.split)
labelled = int(schema.types_of(np.flatnonzero(split)[:1])[0])
nodes = np.flatnonzero(split == SPLITS["train"])
train = torch.from_numpy(nodes - schema.offsets[labelled])
wanted = torch.from_numpy(labels[nodes].astype(np.int64))
sizes = [width, *[arguments.hidden] * (arguments.layers - 1), dataset.num_classes]
convs, loops, norms = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
last = graph.edge_type_subgraph([one for one in graph.canonical_etypes if one[2] == types[labelled]])
graphs = [graph] * (arguments.layers - 1) + [last]
for a, b, used in zip(sizes, sizes[1:], graphs, strict=False):
    each = {name: dgl.nn.pytorch.GraphConv(a, b, norm="right", weight=True, bias=False, allow_zero_in_degree=True)
            for name in used.etypes}  # fmt: skip
    convs.append(dgl.nn.pytorch.HeteroGraphConv(each, aggregate="sum"))
    loops.append(nn.Linear(a, b))
    norms.append(nn.ModuleDict({name: nn.BatchNorm1d(b) for name in types}))
parameters = [*convs.parameters(), *loops.parameters(), *norms[:-1].parameters(), *embeddings.parameters()]
optimizer = torch.optim.Adam(parameters, lr=0.01)
meter = PeakMeter.here()

times, losses, peak = [], [], 0
for _ in range(arguments.epochs):
    meter.begin()
    started = time.perf_counter()
    h = {**features, **embeddings}
    for layer, (conv, loop, norm) in enumerate(zip(convs, loops, norms, strict=True)):
        sums = conv(graphs[layer], h)
        wanted_types = types if layer < len(convs) - 1 else [types[labelled]]
        h = {name: sums[name] + loop(h[name]) if name in sums else loop(h[name]) for name in wanted_types}
        del sums
        if layer < len(convs) - 1:
            h = {name: F.dropout(F.relu(norm[name](rows)), arguments.dropout) for name, rows in h.items()}
    loss = F.cross_entropy(h[types[labelled]][train], wanted)
    del h
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - started)
    losses.append(loss.item())
    peak = max(peak, meter.end())
print(json.dumps({"epoch_time_s": median(times[1:]), "peak_train_bytes": peak, "times_s": times, "losses": losses}))
