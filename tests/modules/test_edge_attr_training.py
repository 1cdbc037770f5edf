"""Features of edges in a module of one's own, in training: any number of workers, blocks, samples; what is held; refusals."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, SampleConfig
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR, EdgeColumns
from sargnn.models.inputs import GraphShape
from sargnn.training.build import make_model
from tests.graphs import nasty_graph, typed_graph
from tests.models.shapes import PLAIN, TYPED
from tests.modules.attr_layers import with_attr
from tests.parity import cases
from tests.parity.covering import spread
from tests.pool import pool

MODULE = """import torch
from torch import nn
from torch_geometric.nn import GATv2Conv, GINEConv, MessagePassing
from torch_geometric.utils import trim_to_layer


class Own(MessagePassing):
    def __init__(self, width, edge_dim):
        super().__init__(aggr="mean")
        self.edge = nn.Linear(edge_dim, width)

    def forward(self, x, edge_index, edge_attr):
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_j, edge_attr):
        return torch.tanh(x_j + self.edge(edge_attr))


class Net(nn.Module):
    def __init__(self, in_channels, out_channels, edge_dim, hidden=6):
        super().__init__()
        assert edge_dim
        self.lin = nn.Linear(in_channels, hidden)
        self.convs = nn.ModuleList([GINEConv(nn.Linear(hidden, hidden), edge_dim=edge_dim), Own(hidden, edge_dim)])
        self.last = nn.Linear(hidden, out_channels)

    def forward(self, x, edge_index, edge_attr, num_sampled_nodes_per_hop, num_sampled_edges_per_hop):
        hops, x = (num_sampled_nodes_per_hop, num_sampled_edges_per_hop), self.lin(x)
        for number, conv in enumerate(self.convs):
            x, edge_index, edge_attr = trim_to_layer(number, *hops, x, edge_index, edge_attr)
            x = conv(x, edge_index, edge_attr).relu()
        return self.last(x)


class Gat(nn.Module):
    def __init__(self, in_channels, out_channels, edge_dim):
        super().__init__()
        self.convs = nn.ModuleList(
            [
                GATv2Conv(in_channels, 4, heads=2, edge_dim=edge_dim, dropout=0.3),
                GATv2Conv(8, out_channels, heads=1, edge_dim=edge_dim),
            ]
        )

    def forward(self, data):
        x = data.x
        for conv in self.convs:
            x = conv(x, data.edge_index, data.edge_attr)
        return x


class Flow(Gat):
    def forward(self, x, edge_index, edge_attr, num_sampled_nodes_per_hop, num_sampled_edges_per_hop):
        hops = num_sampled_nodes_per_hop, num_sampled_edges_per_hop
        for number, conv in enumerate(self.convs):
            x, edge_index, edge_attr = trim_to_layer(number, *hops, x, edge_index, edge_attr)
            x = conv(x, edge_index, edge_attr)
        return x


class Wide(nn.Module):
    def __init__(self, in_channels, out_channels, edge_dim, hidden=64):
        super().__init__()
        self.lin = nn.Linear(in_channels, hidden)
        self.conv = GINEConv(nn.Linear(hidden, out_channels), edge_dim=edge_dim)

    def forward(self, x, edge_index, edge_attr):
        return self.conv(self.lin(x), edge_index, edge_attr)


class Gat4(Gat):
    def __init__(self, in_channels, out_channels, edge_dim):
        super().__init__(in_channels, out_channels, 4 * edge_dim)


class Without(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = GATv2Conv(in_channels, out_channels)

    def forward(self, x, edge_index, edge_attr=None):
        assert edge_attr is None
        return self.conv(x, edge_index)


class Typed(nn.Module):
    def __init__(self, in_channels, out_channels, edge_dim):
        super().__init__()
        self.lin, self.edge = nn.Linear(in_channels, out_channels), nn.Linear(edge_dim or 2, out_channels)

    def forward(self, graph, x):
        out = self.lin(x["paper"])
        for source, name, destination in graph.canonical_etypes:
            relation = graph[source, name, destination]
            if destination == "paper":
                relation.srcdata["h"] = self.lin(x[source])
                relation.edata["e"] = self.edge(relation.edata["feat"])
                relation.update_all(lambda e: {"m": e.src["h"] * e.data["e"]}, lambda n: {"o": n.mailbox["m"].sum(1)})
                out = out + relation.dstdata["o"]
        return out
"""
PLAIN_GRAPH = with_attr(nasty_graph())
VIEWS: dict[str, dict[str, Any]] = {
    "whole": {},
    "mfg": {"mfg": True},
    "batches": {"batches": BatchesConfig(count=2)},
    "steps": {"batches": BatchesConfig(steps=2)},
    "samples": {"sample": SampleConfig(fanouts=[2, 3])},
}


@cache
def file_in(folder: Path) -> Path:
    path = folder / "module.py"
    path.write_text(MODULE)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return file_in(tmp_path_factory.mktemp("modules"))


def config(file: Path, name: str = "Net", loops: bool = False, **changes: object) -> RunConfig:
    run = cases.run_config(CustomSettings("custom", target=f"{file}:{name}"), **changes)  # type: ignore[arg-type]
    return dataclasses.replace(run, dataset=dataclasses.replace(run.dataset, add_self_loops=loops))


def losses(group: Group, run: RunConfig, graph: Dataset = PLAIN_GRAPH) -> list[float]:
    return cases.trainer_of(group, run, graph).run().losses


@pytest.mark.parametrize(
    ("mode", "world", "view", "loops"), spread(["sar", "one_shot", "domain_parallel"], [1, 3], list(VIEWS), [False, True])
)
def test_training(file: Path, mode: str, world: int, view: str, loops: bool) -> None:
    wanted = losses(Group.single(), config(file, loops=loops, **VIEWS[view]))
    for got in pool(world)(losses, config(file, loops=loops, mode=mode, world=world, **VIEWS[view])):
        np.testing.assert_allclose(got, wanted, rtol=1e-9)
    once = config(file, loops=loops, epochs=1, **VIEWS[view])
    assert losses(Group.single(), once, with_attr(nasty_graph(), seed=1)) != wanted[:1]


@pytest.mark.parametrize(("mode", "world", "width"), [("sar", 3, 5), ("no_remat", 2, 1), ("domain_parallel", 3, 1)])
def test_attention_with_dropout_and_loops_of_means(file: Path, mode: str, world: int, width: int) -> None:
    """Also of one feature, which a block holds as a tensor."""
    graph = with_attr(nasty_graph(), width)
    wanted = losses(Group.single(), config(file, "Gat"), graph)
    for got in pool(world)(losses, config(file, "Gat", mode=mode, world=world), graph):
        np.testing.assert_allclose(got, wanted, rtol=1e-9)


def test_a_block_gives_what_the_graph_gives(file: Path) -> None:
    wanted = losses(Group.single(), config(file, "Gat"))
    for world in (1, 3):
        for got in pool(world)(losses, config(file, "Flow", world=world, mfg=True)):
            np.testing.assert_allclose(got, wanted, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "partition", "width"), [("Gat", "empty", 1), pytest.param("Net", "empty", 3, marks=pytest.mark.long)]
)
def test_workers_without_edges(file: Path, name: str, partition: str, width: int) -> None:
    graph = with_attr(nasty_graph(60), width)
    wanted = losses(Group.single(), config(file, name), graph)
    for got in pool(9)(losses, config(file, name, world=9, partitioner=partition), graph):
        np.testing.assert_allclose(got, wanted, rtol=1e-9)


@pytest.mark.parametrize(("mode", "world"), [("sar", 3), ("one_shot", 2)])
def test_relations(file: Path, mode: str, world: int) -> None:
    graph = with_attr(typed_graph())
    wanted = losses(Group.single(), config(file, "Typed"), graph)
    for got in pool(world)(losses, config(file, "Typed", mode=mode, world=world), graph):
        np.testing.assert_allclose(got, wanted, rtol=1e-9)
    assert losses(Group.single(), config(file, "Typed", epochs=1), with_attr(typed_graph(), seed=1)) != wanted[:1]


class _Tables(TorchDispatchMode):
    """Notes the numbers of the largest table that an operation gives."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return out


def test_no_table_of_all_edges_is_made_forward_or_backward(file: Path, tmp_path: Path) -> None:
    """A map of features of edges to 64 columns, and the features themselves, which lie in a file: what is made is a run's."""
    graph = with_attr(nasty_graph(4000), width=40)
    np.save(tmp_path / "attr.npy", graph.columns[ATTR])
    mapped = EdgeColumns.of({ATTR: np.load(tmp_path / "attr.npy", mmap_mode="r")})
    wide = config(file, "Wide", epochs=2)
    wanted = losses(Group.single(), wide, graph)
    graph = dataclasses.replace(graph, columns=mapped)
    assert losses(Group.single(), wide, graph) == wanted
    trainer = cases.trainer_of(Group.single(), wide, graph)
    trainer.loop.steps.begin(0)
    tables = _Tables()
    with tables:
        trainer.loop.gradients(0)
    edge = next(p for name, p in trainer.model.named_parameters() if "conv.lin" in name)
    assert edge.grad is not None and edge.grad.norm() > 0
    assert graph.num_edges * 40 > 1.5 * tables.largest, (graph.num_edges, tables.largest)


def test_a_graph_without_features(file: Path) -> None:
    graph = nasty_graph()
    losses(Group.single(), config(file, "Without"), graph)
    with pytest.raises(ConfigError, match="(?s)forward needs 'edge_attr'.*no edge features.*sargnn help own data"):
        make_model(config(file, "Wide"), PLAIN)
    with pytest.raises(ConfigError, match="(?s)constructor failed.*edge_dim=None.*no edge features"):
        make_model(config(file, "Gat4"), PLAIN)
    with pytest.raises(ConfigError, match="(?s)edges have no field 'feat'.*no edge features.*sargnn help own data"):
        make_model(config(file, "Typed"), TYPED)


@pytest.mark.parametrize(("name", "shape"), [("Net", PLAIN), ("Gat", PLAIN), ("Typed", TYPED)])
def test_the_made_up_graph_has_them_where_the_graph_has(file: Path, name: str, shape: GraphShape) -> None:
    model = make_model(config(file, name), dataclasses.replace(shape, edge_width=3))
    assert "edge_dim=3" in " ".join(model.remarks())
