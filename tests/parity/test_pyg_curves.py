"""Modules of PyG's: epochs on shards have the losses of PyG on the whole graph; flows and random draws those of one worker."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data

from sargnn.config.groups import BatchesConfig, SampleConfig
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.engine.modes import MODES
from sargnn.errors import ConfigError
from sargnn.graph.schema import SPLITS
from sargnn.models.custom import CustomModel
from sargnn.models.inputs import GraphShape
from sargnn.training.optim import learning_rate
from tests.graphs import nasty_graph, small_typed_graph
from tests.parity import cases
from tests.parity.covering import Axis, only, spread
from tests.parity.toys import pyg_stacks
from tests.parity.toys.pyg_stacks import KINDS, Flow, Pna, Stack
from tests.pool import pool

GRAPH = nasty_graph(seed=2)
FILE = Path(__file__).parent / "toys" / "pyg_stacks.py"
FIRST = ["sage", "gcn", "gat", "gin", "transformer", "reversed", "Pna", "Flow", "SGFormer"]
RUNS = spread(Axis([*KINDS, "Pna", "Flow", "SGFormer", "Performer"], FIRST), list(MODES), Axis([1, 2, 4, 7], [1, 2, 4]))
"""Steps of every layer: ``modules/test_pyg_layers.py``."""
DROPPED = CustomSettings("custom", target=f"{FILE}:Flow", args={"dropout": 0.4})
LISTS = CustomSettings("custom", target=f"{FILE}:Lists", args={"dropout": 0.4})
EDGES = CustomSettings("custom", target=f"{FILE}:DroppedEdges")
ALIKE: list[Any] = [
    (DROPPED, "sar", 4, {}),
    (DROPPED, "no_remat", 2, {"mfg": True}),
    (LISTS, "sar", 4, {"mfg": True}),
    (LISTS, "one_shot", 2, {"batches": BatchesConfig(count=3)}),
    (DROPPED, "sar", 3, {"batches": BatchesConfig(steps=2), "sample": SampleConfig(fanouts=[3, 2])}),
    (EDGES, "sar", 4, {}),
]


EXAMPLES = {kind: FILE.parents[3] / "examples" / "layers" / f"{kind.lower()}.py" for kind in ("SGFormer", "Performer")}


def settings(kind: str) -> CustomSettings:
    if kind in EXAMPLES:
        return CustomSettings("custom", target=f"{EXAMPLES[kind]}:{kind}", args={"hidden_channels": 8, "dropout": 0.0})
    if kind in ("Pna", "Flow", "Turned"):
        return CustomSettings("custom", target=f"{FILE}:{kind}")
    return CustomSettings("custom", target=f"{FILE}:Stack", args={"kind": kind})


def load(file: Path) -> ModuleType:
    """A module of Python's from its file."""
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def on_the_whole_graph(kind: str) -> list[float]:
    """The losses of PyG and PyTorch alone."""
    config = cases.run_config(settings(kind))
    destination = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    index = torch.from_numpy(np.stack([np.asarray(GRAPH.indices).astype(np.int64), destination]))
    torch.manual_seed(config.seed)
    x = torch.from_numpy(np.array(GRAPH.features[0])).double()
    module: torch.nn.Module
    if kind == "Pna":
        module = Pna(x.shape[1], GRAPH.num_classes, torch.bincount(torch.bincount(index[1], minlength=len(x))))
    elif kind == "Flow":
        module = Flow(x.shape[1], GRAPH.num_classes)
    elif kind in EXAMPLES:
        module = getattr(load(EXAMPLES[kind]), kind)(x.shape[1], GRAPH.num_classes, hidden_channels=8, dropout=0.0)
    else:
        module = Stack(x.shape[1], GRAPH.num_classes, kind)
    module = module.double()
    optimizer = torch.optim.Adam(module.parameters(), lr=config.optim.lr)
    rows = torch.from_numpy(np.flatnonzero(np.asarray(GRAPH.split) == SPLITS["train"]))
    labels = torch.from_numpy(np.asarray(GRAPH.labels))
    losses = []
    for epoch in range(config.epochs):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config.optim, epoch, config.epochs)
        out = module(Data(x, index)) if kind == "Pna" else module(x, index)
        loss = F.cross_entropy(out[rows], labels[rows])
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
    for answer in pool(world)(cases.curve, config, GRAPH):
        for loss, expected in zip(answer["losses"], wanted, strict=True):
            assert abs(loss - expected) <= 1e-8 * expected


@cache
def alone(model: int, views: str) -> list[float]:
    config = cases.run_config(ALIKE[model][0], **ALIKE[model][3])
    (answer,) = pool(1)(cases.curve, config, GRAPH)
    losses: list[float] = answer["losses"]
    return losses


@pytest.mark.parametrize("number", only([1, 2, 4, 5], range(len(ALIKE))))
def test_flows_and_draws(number: int) -> None:
    """Whatever is drawn, and however the work is cut, it is the same on any number of workers."""
    model, mode, world, views = ALIKE[number]
    config: RunConfig = cases.run_config(model, mode=mode, world=world, partitioner="metis", **views)
    wanted = alone(number, str(views))
    for answer in pool(world)(cases.curve, config, GRAPH):
        for loss, expected in zip(answer["losses"], wanted, strict=True):
            assert abs(loss - expected) <= 1e-8 * expected
    if model is DROPPED and set(views) == {"mfg"}:  # a flow leaves out what no labelled row needs, and nothing else
        (whole,) = pool(1)(cases.curve, cases.run_config(model), GRAPH)
        assert np.allclose(whole["losses"], wanted, rtol=1e-8)


@pytest.mark.parametrize("mfg", [False, True])
def test_an_index_that_is_turned_round_stays_so_where_it_is_trimmed(mfg: bool) -> None:
    config = cases.run_config(settings("Turned"), world=2, partitioner="metis", epochs=1, mfg=mfg)
    for answer in pool(2)(cases.curve, config, GRAPH):
        assert answer["losses"][0] == pytest.approx(on_the_whole_graph("Flow")[0], rel=1e-8)


@pytest.mark.filterwarnings("ignore:There exist node types:UserWarning")
@pytest.mark.parametrize(
    ("world", "mfg"),
    [(3, True), pytest.param(3, False, marks=pytest.mark.long), pytest.param(1, True, marks=pytest.mark.long)],
)
def test_flows_of_types(world: int, mfg: bool) -> None:
    model, graph = CustomSettings("custom", target=f"{FILE}:Typed"), small_typed_graph("features", seed=2)
    (wanted,) = pool(1)(cases.curve, cases.run_config(model), graph)
    config = cases.run_config(model, world=world, partitioner="metis", mfg=mfg)
    for answer in pool(world)(cases.curve, config, graph):
        np.testing.assert_allclose(answer["losses"], wanted["losses"], rtol=1e-8)


@cache
def types_on_the_whole_graph(kind: str) -> list[float]:
    """The losses of PyG and PyTorch alone, of types whose features differ in width."""
    config = cases.run_config(CustomSettings("custom", target=f"{FILE}:{kind}"))
    graph = small_typed_graph("widths", seed=2)
    torch.manual_seed(config.seed)
    names, bounds = graph.schema.node_types, graph.schema.offsets
    x = {name: torch.from_numpy(np.array(table)).double() for name, table in zip(names, graph.features, strict=True)}
    relations, edges = [], {}
    ends = np.stack([graph.indices, np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))]).astype(np.int64)
    for number, relation in enumerate(graph.schema.relations):
        etype = (names[relation.source], relation.name, names[relation.destination])
        relations.append(etype)
        firsts = np.array([[bounds[relation.source]], [bounds[relation.destination]]])
        edges[etype] = torch.from_numpy(ends[:, np.asarray(graph.relation) == number] - firsts)
    widths = {name: table.shape[1] for name, table in x.items()}
    made = getattr(pyg_stacks, kind)
    module = made(*((widths,) if kind == "Hgt" else ()), graph.num_classes, (list(names), relations))
    with torch.no_grad():
        module({name: table.float() for name, table in x.items()}, edges)  # for widths that come with the first rows
    module = module.double()
    optimizer = torch.optim.Adam(module.parameters(), lr=config.optim.lr)
    first, last = bounds[-2:]
    split, labels = (torch.from_numpy(np.array(table)[first:last]) for table in (graph.split, graph.labels))
    rows = torch.nonzero(split == SPLITS["train"])[:, 0]
    losses = []
    for epoch in range(config.epochs):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config.optim, epoch, config.epochs)
        loss = F.cross_entropy(module(x, edges)[names[-1]][rows], labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore:There exist node types:UserWarning")
@pytest.mark.parametrize(("kind", "world"), spread(["Widths", "Hgt", "Han", "Converted", "LazyWidths"], [1, 3]))
def test_types_whose_features_differ_in_width(kind: str, world: int) -> None:
    """They get what PyG gives them: their own features."""
    model, graph = CustomSettings("custom", target=f"{FILE}:{kind}"), small_typed_graph("widths", seed=2)
    for answer in pool(world)(cases.curve, cases.run_config(model, world=world, partitioner="metis"), graph):
        np.testing.assert_allclose(answer["losses"], types_on_the_whole_graph(kind), rtol=1e-8)


@pytest.mark.filterwarnings("ignore:There exist node types:UserWarning")
def test_learned_rows_as_wide_as_each_type_asks() -> None:
    graph = small_typed_graph("names", seed=2)
    model = CustomSettings("custom", target=f"{FILE}:LazyWidths", embedding={"values": 3, "type_s": 5})
    (wanted,) = pool(1)(cases.curve, cases.run_config(model), graph)
    for answer in pool(3)(cases.curve, cases.run_config(model, world=3, partitioner="metis"), graph):
        np.testing.assert_allclose(answer["losses"], wanted["losses"], rtol=1e-8)
    shape = GraphShape(graph.schema, graph.feature_widths, graph.num_classes)
    assert CustomModel(model, shape).inputs.whole_tables() == {"embeddings.00_values": (25, 3), "embeddings.01_type_s": (25, 5)}
    for given in ({"type.s": 3}, {"vlaues": 3}):
        with pytest.raises(ConfigError, match="no learned rows"):
            CustomModel(replace(model, embedding=given), shape)
    with pytest.raises(ConfigError, match="one width"):
        CustomModel(replace(model, target=f"{FILE}:Typed"), shape)
