"""Stacks of DGL's layers, unmodified: epochs on shards have the losses of DGL on the whole graph in plain PyTorch."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sargnn.config.models import CustomSettings
from sargnn.engine.modes import MODES
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS
from sargnn.training.optim import learning_rate
from tests.graphs import nasty_graph, small_typed_graph
from tests.parity import cases
from tests.parity.covering import spread
from tests.parity.toys.dgl_stacks import KINDS, Hetero, Stack
from tests.pool import pool

GRAPH, TYPED = nasty_graph(seed=2), small_typed_graph("features", seed=2)
FILE = Path(__file__).parent / "toys" / "dgl_stacks.py"
RUNS = spread([*KINDS, "hetero"], list(MODES), [1, 2, 4])


def settings(kind: str) -> CustomSettings:
    if kind == "hetero":
        return CustomSettings("custom", target=f"{FILE}:Hetero")
    return CustomSettings("custom", target=f"{FILE}:Stack", args={"kind": kind})


def graph_of(dataset: Dataset) -> Any:
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    source = np.asarray(dataset.indices).astype(np.int64)
    if not dataset.schema.typed:
        return dgl.graph((source, destination), num_nodes=dataset.num_nodes)
    names, offsets, edges = dataset.schema.node_types, dataset.schema.offsets, {}
    assert dataset.relation is not None
    for number, one in enumerate(dataset.schema.relations):
        chosen = np.asarray(dataset.relation) == number
        pair = source[chosen] - offsets[one.source], destination[chosen] - offsets[one.destination]
        edges[names[one.source], one.name, names[one.destination]] = pair
    return dgl.heterograph(edges, num_nodes_dict={name: dataset.schema.count(t) for t, name in enumerate(names)})


@cache
def on_the_whole_graph(kind: str) -> list[float]:
    """The losses of DGL and PyTorch alone."""
    dataset = TYPED if kind == "hetero" else GRAPH
    config, graph = cases.run_config(settings(kind)), graph_of(dataset)
    torch.manual_seed(config.seed)
    features = [torch.from_numpy(np.array(rows)).double() for rows in dataset.features]
    width = features[0].shape[1]
    names = dataset.schema.node_types
    if kind == "hetero":
        ends = [(names[one.source], one.name, names[one.destination]) for one in dataset.schema.relations]
        module: torch.nn.Module = Hetero(width, dataset.num_classes, ends).double()
        x: Any = dict(zip(names, features, strict=True))
    else:
        module, x = Stack(width, dataset.num_classes, kind).double(), features[0]
    optimizer = torch.optim.Adam(module.parameters(), lr=config.optim.lr)
    labelled = int(dataset.schema.types_of(np.flatnonzero(dataset.split)[:1])[0])
    first = dataset.schema.offsets[labelled]
    count = dataset.schema.count(labelled)
    rows = torch.from_numpy(np.flatnonzero(np.asarray(dataset.split)[first : first + count] == SPLITS["train"]))
    labels = torch.from_numpy(np.asarray(dataset.labels))[first : first + count]
    losses = []
    for epoch in range(config.epochs):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config.optim, epoch, config.epochs)
        out = module(graph, x)
        loss = F.cross_entropy((out[names[labelled]] if kind == "hetero" else out)[rows], labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("kind", "mode", "world"), RUNS)
def test_curve(kind: str, mode: str, world: int) -> None:
    config = cases.run_config(settings(kind), mode=mode, world=world, partitioner="metis")
    wanted = on_the_whole_graph(kind)
    assert wanted[-1] < wanted[0]
    for answer in pool(world)(cases.curve, config, TYPED if kind == "hetero" else GRAPH):
        for found, loss in zip(answer["losses"], wanted, strict=True):
            assert abs(found - loss) <= 1e-8 * loss
