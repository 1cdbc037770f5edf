"""GraphSage or GAT in stock DGL, one process: what `scripts/modes_table.py` compares with.

    python scripts/stock_dgl.py DATASET_STORE [--model sage] [--epochs 5] [--dropout 0] [--threads 2] [--layers 3]
                                [--hidden 256] [--heads 4] [--out-heads 1] [--attn-dropout 0] [--self-loops]

DGL's SAGEConv or GATConv, PyTorch's batch norm, ReLU, dropout and Adam; the graph's formats are made beforehand, and the memory
baseline is taken once graph, features and parameters are read in. Prints one JSON object. THP_MEM_ALLOC_ENABLE=1 turns
huge pages on.
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
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--layers", type=int, default=3)
parser.add_argument("--hidden", type=int, default=256)
parser.add_argument("--model", choices=["sage", "gat"], default="sage")
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--out-heads", type=int, default=1)
parser.add_argument("--attn-dropout", type=float, default=0.0)
parser.add_argument("--self-loops", action="store_true")
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
csc = (torch.from_numpy(np.array(dataset.indptr, np.int32)), torch.from_numpy(np.array(dataset.indices)))
graph = dgl.graph(("csc", (*csc, torch.empty(0, dtype=torch.int32))), num_nodes=dataset.num_nodes)
if arguments.self_loops:
    graph = dgl.add_self_loop(dgl.remove_self_loop(graph))
if arguments.model == "sage":
    graph = graph.formats(["csc", "csr"])  # attention's scores need the edge list too
graph.create_formats_()
features = torch.from_numpy(np.array(dataset.features[0]))
labels = torch.from_numpy(np.array(dataset.labels))
train = torch.from_numpy(np.flatnonzero(np.asarray(dataset.split) == SPLITS["train"]))
heads = arguments.heads if arguments.model == "gat" else 1
widths = [features.shape[1], *[heads * arguments.hidden] * (arguments.layers - 1), dataset.num_classes]
pairs = list(zip(widths, widths[1:], strict=False))
if arguments.model == "gat":
    attentive = [(a, b // heads, heads) for a, b in pairs[:-1]] + [(*pairs[-1], arguments.out_heads)]
    convs = nn.ModuleList(
        dgl.nn.pytorch.GATConv(*sizes, attn_drop=arguments.attn_dropout, allow_zero_in_degree=True) for sizes in attentive
    )
else:
    convs = nn.ModuleList(dgl.nn.pytorch.SAGEConv(a, b, "mean") for a, b in pairs)
norms = nn.ModuleList(nn.BatchNorm1d(b) for _, b in pairs[:-1])
optimizer = torch.optim.Adam([*convs.parameters(), *norms.parameters()], lr=0.003)
meter = PeakMeter.here()

times, losses, peak = [], [], 0
for _ in range(arguments.epochs):
    meter.begin()
    started = time.perf_counter()
    h = features
    for conv, norm in zip(convs, [*norms, None], strict=True):
        h = conv(graph, h)
        if arguments.model == "gat":
            h = h.mean(1) if norm is None else h.flatten(1)
        if norm is not None:
            h = F.dropout(F.relu(norm(h)), arguments.dropout)
    loss = F.cross_entropy(h[train], labels[train])
    del h
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - started)
    losses.append(loss.item())
    peak = max(peak, meter.end())
print(json.dumps({"epoch_time_s": median(times[1:]), "peak_train_bytes": peak, "times_s": times, "losses": losses}))
