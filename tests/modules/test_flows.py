"""Modules of users' on every kind of view, mode, world and partition: losses and gradients of one worker, and nobody waits.

The graphs are so small that workers have no rows, no edges, no targets, or one of each; types have three nodes, relations none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, SampleConfig
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset, by_destination
from sargnn.graph.schema import Relation
from sargnn.graph.typed import Edges, typed_dataset
from sargnn.interop.dgl import import_dgl
from sargnn.models.base import Model
from sargnn.models.custom import CustomModel
from sargnn.models.inputs import GraphShape
from sargnn.partition.cut import parts_of
from sargnn.partition.part import Part
from sargnn.training.build import make_trainer
from tests.graphs import assign, with_weights
from tests.parity import cases
from tests.parity.covering import covering
from tests.pool import pool

import_dgl()
from tests.parity.toys import flow_modules  # noqa: E402

BOUND = 1e-10
TOO_MANY = "more micro-batches than"
"""What is refused for workers with few targets; a case that ends so shows that all workers are told alike."""
VIEWS: dict[str, dict[str, Any]] = {
    "whole": {},
    "mfg": {"mfg": True},
    "batches": {"batches": BatchesConfig(count=2)},
    "steps": {"batches": BatchesConfig(steps=2)},
    "both": {"batches": BatchesConfig(steps=2, count=2)},
    "samples": {"sample": SampleConfig(fanouts=[2, 3])},
    "one sample": {"sample": SampleConfig(fanouts=[2, 2], every="run")},
}
MODES = ("sar", "no_remat", "one_shot", "domain_parallel")
WORLDS = (2, 5, 9)
PARTITIONS = {"plain": ("random", "range", "empty", "apart"), "typed": ("random", "range", "empty", "by_type")}
LAYERS = {"plain": tuple(flow_modules.LAYERS), "typed": tuple(flow_modules.TYPED)}


@dataclass(frozen=True)
class Known(CustomSettings):
    """A module of two layers that is not tried out beforehand, which ``models/test_probe.py`` does."""

    def build(self, shape: GraphShape) -> Model:
        model = super().build(shape)
        assert isinstance(model, CustomModel)
        model.num_layers = 2
        object.__setattr__(model, "try_out", lambda *_: None)
        return model


@cache
def dataset(name: str) -> Dataset:
    """``plain``: 40 nodes, a quarter of them isolated, one with 20 edges; labels to train on among the first 13. ``typed``."""
    rng = np.random.default_rng(0)
    if name == "typed":
        counts = {"author": 14, "paper": 20, "venue": 3}
        types = list(counts)

        def edges(source: str, relation: str, destination: str, number: int) -> Edges:
            ends = rng.integers(counts[source], size=number), rng.integers(counts[destination], size=number)
            return Edges(Relation(types.index(source), relation, types.index(destination)), *ends)

        relations = [
            edges("author", "writes", "paper", 50), edges("paper", "cites", "paper", 30), edges("paper", "in", "venue", 20),
            edges("venue", "hosts", "paper", 12), edges("paper", "by", "author", 30), edges("author", "knows", "author", 0),
        ]  # fmt: skip
        tables = [rng.standard_normal((count, 5)).astype(np.float32) for count in counts.values()]
        split = rng.choice([0, 1, 2, 3], p=[0.3, 0.3, 0.2, 0.2], size=20).astype(np.uint8)
        return typed_dataset("typed", 3, types, tables, relations, 1, rng.integers(3, size=20), split)
    source, destination = rng.integers(30, size=(2, 120))
    destination[:20] = 3
    indptr, indices = by_destination(source, destination, 40)
    split = np.zeros(40, np.uint8)
    split[:13] = rng.choice([1, 1, 2, 3], 13)
    split[-2:] = 2, 3
    features = rng.standard_normal((40, 5)).astype(np.float32)
    plain = Dataset.homogeneous("plain", 3, features, rng.integers(3, size=40), split, indptr, indices)
    return with_weights(plain) if name == "weighted" else plain


@cache
def parts(name: str, partition: str, world: int) -> list[Part]:
    return list(parts_of(dataset(name), assign(dataset(name), partition, world), world))


def gradients(group: Group, config: RunConfig, name: str) -> list[float]:
    """The first epoch's losses and gradients, without a step of the optimizer; then an evaluation."""
    part = parts(name, config.partitioner.name, group.world)[group.rank]
    trainer = make_trainer(config, part, dataset(name).num_classes, group)
    trainer.model.train()
    trainer.loop.steps.begin(0)
    found: list[float] = []
    for step in range(trainer.loop.steps.count):
        trainer.engine.epoch = step
        trainer.model.zero_grad()
        found.append(trainer.loop.gradients(step).value)
        for parameter in trainer.optimization.replicated:
            assert parameter.grad is not None
            found += parameter.grad.flatten().tolist()
    trainer.evaluator.evaluate()
    return found


def on_all_workers(config: RunConfig, name: str) -> list[list[float]]:
    """Each worker's ``gradients``; none where all workers are told that there are too few targets."""
    try:
        return pool(config.world)(gradients, config, name)
    except AssertionError as error:
        assert TOO_MANY in str(error)
        return []


def config_of(name: str, kind: str, view: str, mode: str = "one_shot", world: int = 1, partition: str = "range") -> RunConfig:
    module = "Hetero" if name == "typed" else "Net"
    settings = Known("custom", target=f"{flow_modules.__file__}:{module}", args={"kind": kind, "dropout": 0.3})
    return cases.run_config(settings, mode=mode, world=world, partitioner=partition, epochs=1, **VIEWS[view])


@cache
def of_one_worker(name: str, kind: str, view: str) -> list[float]:
    return gradients(Group.single(), config_of(name, kind, view), name)


def of_model(name: str, model: str, view: str, changes: dict[str, Any], **more: Any) -> RunConfig:
    settings = cases.model_config(model, **cases.known(model, num_layers=2, norm="layer"), **changes)
    return cases.run_config(settings, epochs=1, **VIEWS[view], **more)


@pytest.mark.parametrize(
    ("name", "model", "changes", "view", "mode", "world", "partition"),
    [
        ("plain", "sage", {"aggregator": "lstm"}, "whole", "domain_parallel", 5, "apart"),
        ("plain", "sage", {"aggregator": "lstm"}, "samples", "one_shot", 9, "apart"),
        ("plain", "sage", {"aggregator": "max"}, "mfg", "sar", 9, "range"),
        ("plain", "gat", {}, "batches", "no_remat", 9, "range"),
        ("weighted", "gcn", {}, "samples", "sar", 5, "random"),
        ("weighted", "sgc", {}, "steps", "sar", 9, "empty"),
        ("typed", "rgcn", {}, "samples", "sar", 9, "by_type"),
        ("typed", "rgcn", {"order": "aggregate_first"}, "mfg", "domain_parallel", 9, "by_type"),
    ],
)
def test_models(
    name: str, model: str, changes: dict[str, Any], view: str, mode: str, world: int, partition: str
) -> None:  # fmt: skip
    """This package's own, where workers have little."""
    expected = gradients(Group.single(), of_model(name, model, view, changes, mode="one_shot", partitioner="range"), name)
    config = of_model(name, model, view, changes, mode=mode, world=world, partitioner=partition)
    for found in on_all_workers(config, name):
        np.testing.assert_allclose(found[: len(expected)], expected, rtol=0, atol=BOUND)


def test_flows_on_disk(tmp_path: Path) -> None:
    """Micro-batches that lie on disk are those that are held."""
    config = config_of("plain", "gat", "batches")
    (part,) = parts("plain", "range", 1)
    losses = []
    for scratch in (None, tmp_path):
        trainer = make_trainer(config, part, dataset("plain").num_classes, Group.single(), scratch)
        assert not any("statistics" in one for one in trainer.remarks)  # it has no batch norm
        losses.append(trainer.run().losses)
        trainer.close()
    assert losses[0] == losses[1]


def designed(name: str) -> list[Any]:
    """Every value of the other axes, and every module in turn; ``long``: every two values of all."""
    others = (tuple(VIEWS), MODES, WORLDS, PARTITIONS[name])
    axes = (LAYERS[name], *others)
    few = {(number % len(LAYERS[name]), *case) for number, case in enumerate(sorted(covering(*others, strength=1)))}
    found = []
    for case in sorted(few | covering(*axes)):
        kind, view, mode, world, partition = values = [axis[place] for axis, place in zip(axes, case, strict=True)]
        if kind in flow_modules.WHOLE and mode not in ("one_shot", "domain_parallel"):
            continue
        marks = () if case in few else pytest.mark.long
        found.append(pytest.param(name, *values, marks=marks, id="-".join(map(str, (name, *values)))))
    return found


@pytest.mark.parametrize(("name", "kind", "view", "mode", "world", "partition"), [*designed("plain"), *designed("typed")])
def test_gradients(name: str, kind: str, view: str, mode: str, world: int, partition: str) -> None:
    config = config_of(name, kind, view, mode, world, partition)
    for found in on_all_workers(config, name):
        np.testing.assert_allclose(found, of_one_worker(name, kind, view), rtol=0, atol=BOUND)
