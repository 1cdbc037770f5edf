"""A user's module is tried out before the run: how many layers it has is seen, and nothing of it stays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.models import CustomSettings
from sargnn.errors import ConfigError
from sargnn.models.custom import CustomModel
from sargnn.models.inputs import GraphShape
from sargnn.training import checkpoint
from sargnn.training.build import make_model
from sargnn.training.trainer import Trainer
from tests.graphs import nasty_graph, typed_graph
from tests.models.shapes import PLAIN, TYPED
from tests.parity import cases

FLOWS = Path(__file__).parent.parent / "parity" / "toys" / "flow_modules.py"
MODULES = """import torch
from torch import nn


def copy(edges):
    return {"m": edges.src["h"]}


def mean(nodes):
    return {"s": nodes.mailbox["m"].mean(1)}


def neighbours(graph, h):
    graph.srcdata["h"] = h
    graph.update_all(copy, mean)
    return graph.dstdata["s"]


class Deep(nn.Module):
    def __init__(self, in_width, num_outputs, depth=3, blocks=True):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(in_width, in_width) for _ in range(depth - 1)])
        self.layers.append(nn.Linear(in_width, num_outputs))
        self.blocks = blocks

    def forward(self, graph, h):
        for layer, block in zip(self.layers, graph.blocks if self.blocks else [graph] * len(self.layers)):
            h = torch.tanh(layer(neighbours(block, h)))
        return h


class Lazy(nn.Module):
    def __init__(self, in_width, num_outputs):
        super().__init__()
        self.first, self.norm, self.last = nn.LazyLinear(7), nn.LazyBatchNorm1d(), nn.LazyLinear(num_outputs)

    def forward(self, graph, h):
        return self.last(self.norm(self.first(neighbours(graph, h))))


class Keeps(nn.Module):
    def __init__(self, in_width, num_outputs):
        super().__init__()
        self.linear, self.norm, self.kept = nn.Linear(in_width, num_outputs), nn.BatchNorm1d(in_width), None
        self.frozen = nn.Parameter(torch.rand(3), requires_grad=False)
        self.register_buffer("mask", torch.arange(in_width) > 1)

    def forward(self, graph, h):
        if self.kept is None:
            self.kept = neighbours(graph, h)
        return self.linear(self.norm(self.kept + h * self.mask))


class Unpacks(nn.Module):
    def __init__(self, in_width, num_outputs):
        super().__init__()
        self.linear = nn.Linear(in_width, num_outputs)

    def blocks(self, graph):
        one, other = graph.blocks
        return one, other

    def forward(self, graph, h):
        one, other = self.blocks(graph)
        return self.linear(h) + one.srcdata["no_such_field"]


class Counts(Unpacks):
    def blocks(self, graph):
        return [graph.blocks[k] for k in range(len(graph.blocks))][:1] * 2


class Typed(nn.Module):
    def __init__(self, in_width, num_outputs, ntypes, etypes):
        super().__init__()
        self.ntypes, self.etypes = ntypes, etypes
        self.maps = nn.ModuleDict({name: nn.Linear(in_width, num_outputs) for name in ntypes})

    def forward(self, graph, h):
        return {name: self.maps[name](rows) for name, rows in h.items()}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("modules") / "modules.py"
    path.write_text(MODULES)
    return path


def made(file: Path, name: str, shape: GraphShape = PLAIN, args: dict[str, Any] | None = None, **changes: Any) -> CustomModel:
    settings = CustomSettings("custom", target=f"{file}:{name}", args=args or {})
    model = make_model(cases.run_config(settings, **changes), shape)
    assert isinstance(model, CustomModel)
    return model


@pytest.mark.parametrize("mode", ["sar", "domain_parallel"])
@pytest.mark.parametrize("depth", [1, 3])
def test_layers_are_counted(file: Path, depth: int, mode: str) -> None:
    assert made(file, "Deep", args={"depth": depth}, mode=mode).uses_edges == [True] * depth
    assert made(file, "Deep", args={"depth": depth}, mode=mode, mfg=True).uses_edges == [True] * depth
    assert made(file, "Deep", args={"depth": depth, "blocks": False}, mode=mode).uses_edges == [True]


def test_message_flow_needs_blocks(file: Path) -> None:
    """But for a module of one layer."""
    assert made(file, "Deep", args={"depth": 1, "blocks": False}, mfg=True).uses_edges == [True]
    with pytest.raises(ConfigError, match="graph.blocks") as caught:
        made(file, "Deep", args={"depth": 2, "blocks": False}, mfg=True)
    line = next(k for k, text in enumerate(MODULES.splitlines(), start=1) if "def forward" in text)
    assert all(word in str(caught.value) for word in ("mfg=true", f"{file} line {line}"))


def test_parameters_without_a_shape_get_one_and_the_seed_decides_them(file: Path) -> None:
    one, same, other = (made(file, "Lazy", seed=seed, precision="fp32") for seed in (1, 1, 2))
    double = made(file, "Lazy", seed=1, precision="fp64")
    shapes = {name: tuple(value.shape) for name, value in one.module.state_dict().items()}
    assert shapes["first.weight"] == (7, 5) and shapes["last.weight"] == (3, 7) and shapes["norm.running_mean"] == (7,)
    for name, value in one.module.named_parameters():
        assert torch.equal(value, same.module.get_parameter(name)) and torch.equal(
            value, double.module.get_parameter(name).float()
        )
    assert not torch.equal(one.module.get_parameter("first.weight"), other.module.get_parameter("first.weight"))


def test_nothing_of_the_trial_stays(file: Path) -> None:
    model = made(file, "Keeps")
    after = torch.rand(3)
    torch.manual_seed(3)
    built = model.source.build({"in_width": 5, "num_outputs": 3})
    assert model.module.kept is None
    for name, value in model.module.state_dict().items():
        assert torch.equal(value, built.state_dict()[name]), name
    assert torch.equal(after, torch.rand(3)), "the generator stands where it stood"


def test_types_by_name_and_learnable_rows(file: Path) -> None:
    model = made(file, "Typed", TYPED)
    assert model.module.ntypes == ["author", "paper"]
    assert model.module.etypes == [("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "by", "author")]
    assert model.inputs.width == 5 and model.inputs.whole_tables() == {"embeddings.00_author": (40, 5)}
    given = made(file, "Typed", TYPED, args={"ntypes": ["paper", "author"], "etypes": []})
    assert given.module.ntypes == ["paper", "author"] and given.module.etypes == []


def test_labels_widen_the_input(file: Path) -> None:
    shape = GraphShape(PLAIN.schema, (5,), 3, label_columns=3, labelled=0)
    assert made(file, "Deep", shape, args={"depth": 1}).module.get_parameter("layers.0.weight").shape == (3, 8)


def test_a_model_of_one_layer_in_types_is_trained(file: Path) -> None:
    """On a graph with several types the labelled type's rows are picked from a mapping."""
    settings = CustomSettings("custom", target=f"{file}:Typed")
    graph = typed_graph()
    trainer = cases.trainer_of(Group.single(), cases.run_config(settings, epochs=2), graph)
    assert isinstance(trainer.model, CustomModel) and graph.schema.node_types[trainer.model.labelled] == "paper"
    assert np.isfinite(trainer.run().losses).all()


def forget(trainer: Trainer) -> None:
    """Let the module aggregate again."""
    module: Any = trainer.model.module
    module.kept = None


def test_buffers_of_whole_numbers_and_frozen_parameters_survive(file: Path, tmp_path: Path) -> None:
    """In double precision, in a checkpoint, and what is read from it."""
    settings = CustomSettings("custom", target=f"{file}:Keeps")
    config = cases.run_config(settings, precision="fp64", epochs=3)
    graph = nasty_graph(60)
    trainer = cases.trainer_of(Group.single(), config, graph)
    for epoch in range(2):
        forget(trainer)
        trainer.loop.train_epoch(epoch)
    checkpoint.save(trainer, config, "a dataset", tmp_path, 2)
    other = cases.trainer_of(Group.single(), config, graph)
    assert checkpoint.load(other, checkpoint.path_of(tmp_path, 2)) == 2
    saved, found = trainer.model.state_dict(), other.model.state_dict()
    assert saved["module.norm.num_batches_tracked"].item() == 2
    for name, value in saved.items():
        assert value.dtype == found[name].dtype and value.shape == found[name].shape and torch.equal(value, found[name]), name
    assert saved["module.norm.num_batches_tracked"].dtype == torch.int64 and saved["module.mask"].dtype == torch.bool
    losses = []
    for one in (trainer, other):
        forget(one)
        losses.append(one.loop.train_epoch(2).loss)
    assert losses[0] == losses[1]


def test_the_last_layers_input_is_not_known(file: Path) -> None:
    assert not CustomSettings("custom").has_embeddings
    config = cases.run_config(CustomSettings("custom", target=f"{file}:Deep"))
    trainer = cases.trainer_of(Group.single(), config, nasty_graph(60))
    with pytest.raises(ConfigError, match=re.escape(CustomSettings.no_embeddings)):
        trainer.evaluator.predictions(hidden=True)


@pytest.mark.parametrize("way", ["zipped", "blocks first", "unpacked", "indexed", "counted"])
def test_blocks_are_a_list(way: str) -> None:
    """However a forward asks for them, also one that must know beforehand how many there are."""
    losses = []
    for asked in ("zipped", way):
        settings = CustomSettings("custom", target=f"{FLOWS}:Net", args={"kind": "graphconv", "way": asked})
        for mfg in (False, True):
            config = cases.run_config(settings, epochs=1, mfg=mfg)
            assert make_model(config, PLAIN).uses_edges == [True, True]
        losses.append(cases.curve(Group.single(), config, nasty_graph(40))["losses"])
    assert losses[0] == losses[1]


def test_what_fails_with_any_number_of_blocks_is_said(file: Path) -> None:
    for name in ("Unpacks", "Counts"):
        with pytest.raises(ConfigError, match="no_such_field"):
            made(file, name)


@pytest.mark.parametrize("mode", ["sar", "no_remat", "one_shot", "domain_parallel"])
@pytest.mark.parametrize("kind", ["agnn", "gat"])
def test_one_layer_without_blocks_has_message_flows(kind: str, mode: str) -> None:
    """Backward of one output after the other: each needs a forward pass of its own where rows are kept for one only."""
    settings = CustomSettings("custom", target=f"{FLOWS}:Single", args={"kind": kind})
    assert make_model(cases.run_config(settings, mode=mode, mfg=True), PLAIN).uses_edges == [True]
