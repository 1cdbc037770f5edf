"""The graph's weights in a module of one's own, in training: on any number of workers, in blocks, with self-loops."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.models.inputs import GraphShape
from sargnn.training.build import make_model
from tests.graphs import nasty_graph, with_weights
from tests.models.shapes import PLAIN, TYPED
from tests.parity import cases
from tests.parity.covering import spread
from tests.pool import pool

MODULE = '''import torch
from torch import nn
import dgl.function as fn


class Net(nn.Module):
    """Two layers: tanh of a weighted sum, and a sum of messages that are written by hand."""

    def __init__(self, in_width, num_outputs):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(in_width, 6), nn.Linear(6, num_outputs)])

    def forward(self, graph, h):
        for number, (layer, block) in enumerate(zip(self.layers, graph.blocks)):
            weights = block.edata["w"]
            assert not weights.requires_grad and weights.dtype == h.dtype and weights.shape == (block.num_edges(),)
            block.srcdata["h"] = layer(h)
            block.edata["w"] = weights
            message = fn.u_mul_e("h", "w", "m") if number else lambda edges: {"m": edges.src["h"] * edges.data["w"][:, None]}
            block.update_all(message, fn.sum("m", "h"))
            h = torch.tanh(block.dstdata["h"]) if number else block.dstdata["h"]
        return h


class Typed(nn.Module):
    def __init__(self, in_width, num_outputs):
        super().__init__()
        self.linear = nn.Linear(in_width, num_outputs)

    def forward(self, graph, x):
        for etype in graph.canonical_etypes:
            source, _, destination = etype
            one = graph[etype]
            one.srcdata["h"] = self.linear(x[source])
            one.update_all(fn.u_mul_e("h", "w", "m"), fn.sum("m", "out"))
        graph.to_homogeneous().edata["w"].sum()
        return {"author": self.linear(x["author"]), "paper": graph.dstnodes["paper"].data["out"]}
'''
GRAPH = with_weights(nasty_graph(), lowest=-1)


@cache
def file_in(folder: Path) -> Path:
    path = folder / "module.py"
    path.write_text(MODULE)
    return path


def config(file: Path, loops: bool, name: str = "Net", **changes: object) -> RunConfig:
    run = cases.run_config(CustomSettings("custom", target=f"{file}:{name}"), epochs=4, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(run, dataset=dataclasses.replace(run.dataset, add_self_loops=loops))


def losses(group: Group, run: RunConfig) -> list[float]:
    return cases.trainer_of(group, run, GRAPH).run().losses


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return file_in(tmp_path_factory.mktemp("modules"))


@pytest.mark.parametrize(
    ("mode", "world", "mfg", "loops"), spread(["sar", "one_shot", "domain_parallel"], [1, 2], [False, True], [False, True])
)
def test_training(file: Path, mode: str, world: int, mfg: bool, loops: bool) -> None:
    wanted = losses(Group.single(), config(file, loops))
    for found in pool(world)(losses, config(file, loops, mode=mode, world=world, mfg=mfg)):
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
    other = dataclasses.replace(config(file, loops), dataset=cases.run_config(config(file, loops).model).dataset)
    assert loops == (losses(Group.single(), other) != wanted)


@pytest.mark.parametrize(("name", "shape"), [("Net", PLAIN), ("Typed", TYPED)])
def test_the_made_up_graph_has_them_where_the_graph_has(file: Path, name: str, shape: GraphShape) -> None:
    make_model(config(file, False, name), dataclasses.replace(shape, weighted=True))
    with pytest.raises(ConfigError, match="(?s)edges have no field 'w'.*no edge weights"):
        make_model(config(file, False, name), shape)


def test_without_their_use_there_is_no_such_field(file: Path) -> None:
    run = config(file, False)
    run = dataclasses.replace(run, dataset=dataclasses.replace(run.dataset, edge_weights=False))
    with pytest.raises(ConfigError, match="field 'w'"):
        losses(Group.single(), run)


def test_weights_have_no_gradient_and_are_nobodys_to_change(file: Path) -> None:
    trainer = cases.trainer_of(Group.single(), config(file, False), GRAPH)
    plan = trainer.training.flow.plans[0]
    one, other = plan.edge_column("weight"), plan.edge_column("weight")
    one.zero_()
    assert GRAPH.columns.weight is not None and torch.equal(
        torch.sort(other)[0], torch.sort(torch.tensor(GRAPH.columns.weight))[0]
    )
