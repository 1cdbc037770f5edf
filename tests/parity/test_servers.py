"""Servers that preload: the same on any number of servers, and right; bounded, the same on any number of their workers."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, LabelsConfig, PreloadConfig, SampleConfig, SmoothConfig
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS
from sargnn.partition.preload import Bounds
from tests.graphs import assign, with_weights
from tests.parity import cases, oracle
from tests.parity.cases import MASKED, QUICK, REUSED, spread_models
from tests.parity.checks import assert_same_curve, check_step, first_step, together
from tests.parity.covering import only, spread
from tests.pool import pool

# (partitioner, workers, servers)
PLACES = [("metis", 4, 2), ("random", 2, 2), ("metis", 8, 2), ("random", 3, 3), ("given", 6, 3), ("apart", 4, 2)]
FLOWS = ["whole", "mfg", "batches", "steps", "sampled"]


def served(name: str, place: tuple[str, int, int], flow: str = "whole", norm: str = "batch", **choices: Any) -> RunConfig:
    """A run of servers that preload."""
    partitioner, world, servers = place
    changes = cases.known(name, norm=norm, num_layers=3, steps=3) | choices.pop("changes", {})
    if flow == "batches":
        choices["batches"] = BatchesConfig(count=2, by="random")
    if flow in ("steps", "sampled"):
        choices["batches"] = BatchesConfig(steps=3)
    if flow == "sampled":
        choices["sample"] = SampleConfig(fanouts=[3, 2, 2])
    model = cases.model_config(name, **changes)
    return cases.run_config(
        model, partitioner=partitioner, world=world, servers=servers, mfg=flow == "mfg", **choices
    )  # fmt: skip


@cache
def expected(name: str, flow: str, norm: str, labels: LabelsConfig, weighted: bool) -> dict[str, Any]:
    """The first step by dense matrices."""
    config = served(name, ("range", 1, 1), "whole" if flow == "batches" else flow, norm, labels=labels)
    graph = graph_of(name, weighted=weighted)
    start = cases.initial_parameters(Group.single(), config, graph)
    params = {key: torch.from_numpy(value) for key, value in start.items()}
    return oracle.first_step(cases.definition_of(config.model), config, graph, params)


def graph_of(name: str, *, weighted: bool = False) -> Dataset:
    graph = cases.graph_for(name)
    return with_weights(graph) if weighted else graph


@pytest.mark.parametrize(
    ("name", "mode", "kernel", "partitioner", "world", "servers", "flow", "norm", "labels"),
    spread_models(QUICK, PLACES, FLOWS, ["batch", "layer", "none"], [LabelsConfig(), MASKED, REUSED]),
)
def test_first_step(
    name: str, mode: str, kernel: str, partitioner: str, world: int, servers: int, flow: str, norm: str, labels: LabelsConfig
) -> None:
    """Losses and gradients, also of learned rows, are those of one process. Micro-batches have statistics of their own."""
    norm = "layer" if flow == "batches" and norm == "batch" else norm
    config = served(name, (partitioner, world, servers), flow, norm, mode=mode, kernel=kernel, labels=labels, message_rows=23)
    check_step(expected(name, flow, norm, labels, False), config, graph_of(name))


@pytest.mark.parametrize(
    ("name", "flow", "partitioner", "world", "servers"), spread(["sage", "gcn", "rgcn"], FLOWS, PLACES[:3])
)
def test_edge_weights(name: str, flow: str, partitioner: str, world: int, servers: int) -> None:
    config = served(name, (partitioner, world, servers), flow, "layer")
    check_step(expected(name, flow, "layer", LabelsConfig(), True), config, graph_of(name, weighted=True))


@pytest.mark.parametrize(("name", "partitioner"), [("sage", "empty"), ("rgcn", "by_type"), ("gcn", "apart")])
def test_workers_without_rows(name: str, partitioner: str) -> None:
    config = served(name, (partitioner, 4, 2), "mfg", labels=MASKED)
    check_step(expected(name, "mfg", "batch", MASKED, False), config, graph_of(name))


CURVES: dict[str, tuple[str, tuple[str, int, int], str, str, str, LabelsConfig]] = {
    "sage": ("sage", ("metis", 4, 2), "sar", "whole", "fp64", MASKED),
    "gat": ("gat", ("random", 8, 2), "no_remat", "whole", "fp64", LabelsConfig()),
    "rgcn": ("rgcn", ("metis", 4, 2), "sar", "mfg", "fp64", LabelsConfig()),
    "resgcn": ("resgcn", ("metis", 4, 4), "one_shot", "steps", "fp64", LabelsConfig()),
    "gcn, fp32": ("gcn", ("metis", 6, 3), "sar", "mfg", "fp32", LabelsConfig()),
    "sage, samples": ("sage", ("metis", 8, 4), "sar", "sampled", "fp64", LabelsConfig()),
    "gin": ("gin", ("random", 4, 2), "domain_parallel", "whole", "fp64", REUSED),
    "rgcn, bf16": ("rgcn", ("metis", 4, 2), "sar", "whole", "bf16", LabelsConfig()),
}


@pytest.mark.parametrize("name", only(["sage", "rgcn"], CURVES))
def test_curve(name: str) -> None:
    """With batch norm and dropout: losses and scores of one worker."""
    model, place, mode, flow, precision, labels = CURVES[name]
    epochs = 10 if flow in ("steps", "sampled") else cases.EPOCHS
    choices: dict[str, Any] = {"precision": precision, "labels": labels, "epochs": epochs}
    config = served(model, place, flow, mode=mode, **choices)
    single = served(model, ("range", 1, 1), flow, **choices)
    want = cases.curve(Group.single(), single, graph_of(model))
    answers = pool(config.world)(cases.curve, config, graph_of(model))
    assert_same_curve(answers[0]["losses"], want["losses"], precision)
    assert len({one["parameters"] for one in answers}) == 1
    if precision == "fp64":
        assert answers[0]["scores"] == want["scores"]


def smoothed(group: Group, config: RunConfig, dataset: Dataset) -> dict[str, Any]:
    trainer = cases.trainer_of(group, config, dataset)
    trainer.run()
    trainer.smooth()
    predicted = trainer.evaluator.predictions()
    return {
        "smoothed": trainer.loop.history.smoothed,
        "ids": trainer.ids[trainer.graph.labelled_rows].numpy(),
        "logits": predicted.double().numpy(),
    }  # fmt: skip


def test_smoothing_and_predictions() -> None:
    """Each node is predicted once; Correct & Smooth spreads over all workers."""
    choices: dict[str, Any] = {"epochs": 3, "smooth": SmoothConfig("cs", correct_steps=7, smooth_steps=5)}
    want = smoothed(Group.single(), served("sage", ("range", 1, 1), **choices), graph_of("sage"))
    answers = pool(4)(smoothed, served("sage", ("metis", 4, 2), **choices), graph_of("sage"))
    assert answers[0]["smoothed"] == pytest.approx(want["smoothed"])
    ids = np.concatenate([one["ids"] for one in answers])
    assert sorted(ids.tolist()) == list(range(graph_of("sage").num_nodes))
    found = np.concatenate([one["logits"] for one in answers])[np.argsort(ids)]
    assert np.abs(found - want["logits"][np.argsort(want["ids"])]).max() < 1e-9


def bounded(name: str, place: tuple[str, int, int], preload: PreloadConfig, **choices: Any) -> RunConfig:
    return dataclasses.replace(served(name, place, **choices), preload=preload)


@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "rgcn"])
def test_bounds_that_bound_nothing(name: str) -> None:
    """As many hops as layers and as many neighbours as there are: shared preloading."""
    config = bounded(name, ("metis", 4, 2), PreloadConfig("shared", max_hop=3, fanout=10**6))
    check_step(expected(name, "whole", "batch", LabelsConfig(), False), config, graph_of(name))


@pytest.mark.parametrize("name", ["sage", "gat"])
def test_bounded_step_is_that_of_each_servers_subgraph(name: str) -> None:
    """One hop: the sum over the servers of a dense step on the subgraph of its nodes and their in-neighbours."""
    place = ("metis", 4, 2)
    config = bounded(name, place, PreloadConfig("shared", max_hop=1), norm="layer")
    graph = graph_of(name)
    assignment = assign(graph, "metis", 4)
    start = cases.initial_parameters(Group.single(), served(name, ("range", 1, 1), norm="layer"), graph)
    total = 0.0
    grads: dict[str, Any] = {key: np.zeros_like(value) for key, value in start.items()}
    training = np.asarray(graph.split) == SPLITS["train"]
    for server in range(2):
        inner = assignment // 2 == server
        rows = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        held = inner.copy()
        held[np.asarray(graph.indices)[inner[rows]]] = True
        kept = held[rows] & held[graph.indices]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=graph.num_nodes))])
        own = dataclasses.replace(
            graph,
            indptr=indptr,
            indices=np.asarray(graph.indices)[kept],
            split=np.where(inner, graph.split, 0).astype(np.uint8),
        )
        params = {key: torch.from_numpy(value) for key, value in start.items()}
        one: dict[str, Any] = oracle.first_step(
            cases.definition_of(config.model), served(name, ("range", 1, 1), norm="layer"), own, params
        )  # fmt: skip
        share = float((training & inner).sum() / training.sum())
        total += share * float(one["loss"])
        for key, value in one["grads"].items():
            grads[key] = grads[key] + share * value.numpy()
    answers: list[dict[str, Any]] = pool(4)(first_step, config, graph)
    assert answers[0]["loss"] == pytest.approx(total, rel=1e-11)
    for key, value in together(answers).items():
        assert np.linalg.norm(value - grads[key]) <= 1e-10 * max(float(np.linalg.norm(grads[key])), 1e-3), key


@pytest.mark.parametrize("name", ["sage", pytest.param("rgcn", marks=pytest.mark.long)])
def test_bounded_curve_does_not_depend_on_workers(name: str) -> None:
    """The same servers, with one and two workers each; evaluations read the whole graph."""
    preload, graph = PreloadConfig("shared", max_hop=1, fanout=2), graph_of(name)
    servers = assign(graph, "metis", 2)
    found = [pool(world)(bounded_curve, bounded(name, ("metis", world, 2), preload), graph, servers) for world in (2, 4)]
    for answers in found[1:]:
        assert_same_curve(answers[0]["losses"], found[0][0]["losses"], "fp64")
        assert answers[0]["scores"] == found[0][0]["scores"]
    exact = cases.curve(Group.single(), served(name, ("range", 1, 1)), graph)
    assert abs(exact["losses"][-1] - found[0][0]["losses"][-1]) > 1e-6  # fewer edges


def bounded_curve(group: Group, config: RunConfig, dataset: Dataset, servers: np.ndarray) -> dict[str, Any]:
    """The curve where servers are given, and each one's workers are what is left of the id."""
    size = group.world // 2
    assignment = (servers * size + np.arange(len(servers)) % size).astype(np.int32)
    group = group.again(servers=2)
    bounds = Bounds(3, config.preload.max_hop, config.preload.fanout, config.seed)
    part = cases.preloaded_parts(dataset, assignment, 2, group.world, bounds)[group.rank]
    flat = list(cases.parts_of(dataset, assignment, group.world))[group.rank]
    trainer = cases.make_trainer(config, part, dataset.num_classes, group, flat=lambda: flat)
    history = trainer.run()
    return {"losses": history.losses, "scores": history.scores}


def test_other_settings_of_a_run() -> None:
    """A pass over layers that are computed again, and messages in bf16, know copies, too."""
    want = expected("resgcn", "whole", "batch", LabelsConfig(), False)
    check_step(want, served("resgcn", ("metis", 4, 2), keep_layers="sqrt"), graph_of("resgcn"))
    graph = graph_of("sage")
    rounded = pool(4)(first_step, served("sage", ("metis", 4, 2), precision="fp32", wire="bf16"), graph)
    single = first_step(Group.single(), served("sage", ("range", 1, 1), precision="fp32"), graph)
    assert rounded[0]["loss"] == pytest.approx(single["loss"], rel=1e-2)
