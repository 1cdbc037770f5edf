"""Whole runs on the pretended device: the losses of a CPU, no mix of tensors, and no step that waits but for its loss."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, CheckpointConfig, LabelsConfig, PreloadConfig, SampleConfig, SmoothConfig
from sargnn.config.run import Metric, RunConfig
from sargnn.tasks.base import Targets
from sargnn.tasks.metrics import measure
from sargnn.training import checkpoint
from sargnn.training.evaluation import write_predictions
from tests.device.pretended import DEVICE, Present, host_of, noted
from tests.device.runs import on_ranks, there
from tests.graphs import nasty_graph
from tests.parity import cases

EPOCHS = 2
LOSS = "training/loop.py"
ORACLE = "backends/torch/", "backends/block.py"
"""Where the reference kernel waits, which is none of a GPU's."""
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "sage": ("sage", {}),
    "gat": ("gat", {}),
    "rgcn": ("rgcn", {}),
    "gin": ("gin", {}),  # with a number that is learned
    "labels": ("sage", {"labels": LabelsConfig("masked", 0.5, 1), "smooth": SmoothConfig("cs")}),
    "flows": ("gat", {"mfg": True, "labels": LabelsConfig("masked", 0.5)}),
    "layers": ("gat", {"keep_layers": "sqrt", "mode": "no_remat"}),
    "baseline": ("sage", {"mode": "domain_parallel"}),
    "merged": ("rgcn", {"mode": "one_shot"}),
}
SEVERAL, LONG = ("gat", "labels"), ("gin", "layers", "baseline", "merged")
"""Which also run on several ranks, and which take long."""
DRAWN: dict[str, tuple[str, dict[str, Any]]] = {
    "batches": ("gat", {"batches": BatchesConfig(count=2)}),
    "samples": (
        "gcn",
        {
            "batches": BatchesConfig(steps=2, count=2),
            "sample": SampleConfig(fanouts=[3, 3, 3]),
            "labels": LabelsConfig("masked", 0.5),
        },
    ),
}
"""Steps whose views are made, or read, while they are under way."""


def config_of(model: str, world: int, **choices: Any) -> RunConfig:
    settings: dict[str, Any] = {"epochs": EPOCHS, "world": world, "kernel": "reference", "partitioner": "random"} | choices
    config = cases.run_config(cases.model_config(model, input_dropout=0.2 * (model != "gin")), **settings)
    return dataclasses.replace(config, optim=dataclasses.replace(config.optim, clip=0.5))


def trained(group: Group, config: RunConfig, model: str) -> dict[str, Any]:
    """What a run comes to, and what the epochs after the first have waited for."""
    trainer = cases.trainer_of(group, config, cases.graph_for(model))
    losses, waits = [], []
    for epoch in range(config.epochs):
        with noted("read", "size", "copy") as events:
            losses.append(trainer.loop.train_epoch(epoch).loss)
        waits += [event for event in events if epoch and not event.place.startswith(ORACLE)]
    scores = trainer.evaluator.evaluate().scores
    trainer.smooth()
    logits = host_of(trainer.evaluator.predictions()).numpy()
    return {"losses": losses, "scores": scores, "smoothed": trainer.loop.history.smoothed, "logits": logits, "waits": waits}


def assert_alike(away: list[dict[str, Any]], here: list[dict[str, Any]]) -> None:
    for mine, other in zip(away, here, strict=True):
        np.testing.assert_allclose(mine["losses"], other["losses"], rtol=1e-12)
        np.testing.assert_allclose(mine["logits"], other["logits"], rtol=1e-9, atol=1e-12)
        assert (mine["scores"], mine["smoothed"]) == (other["scores"], other["smoothed"])


@pytest.mark.parametrize(
    ("name", "world"),
    [
        pytest.param(name, world, marks=[] if world == 1 + (name in SEVERAL) and name not in LONG else [pytest.mark.long])
        for name in RUNS
        for world in (1, 2, 3)
    ],
)
def test_losses_are_those_of_a_cpu(name: str, world: int) -> None:
    """Each rank reads the loss once an epoch; nothing else makes the host wait."""
    model, choices = RUNS[name]
    config = config_of(model, world, **choices)
    away = on_ranks(there(config), trained, model)
    assert_alike(away, on_ranks(config, trained, model))
    for answer in away:
        assert [(event.kind, event.place.startswith(LOSS)) for event in answer["waits"]] == [("read", True)] * (EPOCHS - 1)


@pytest.mark.parametrize("name", [pytest.param("batches", marks=pytest.mark.long), "samples"])
def test_drawn_steps(name: str) -> None:
    model, choices = DRAWN[name]
    config = config_of(model, 2, **choices)
    assert_alike(on_ranks(there(config), trained, model), on_ranks(config, trained, model))


@pytest.mark.parametrize("model", ["sage", pytest.param("rgcn", marks=pytest.mark.long)])
def test_copies_of_other_servers(model: str) -> None:
    config = config_of(model, 4, servers=2, preload=PreloadConfig("shared"))
    assert_alike(on_ranks(there(config), trained, model), on_ranks(config, trained, model))


def resumed(group: Group, config: RunConfig, model: str, folder: str, start: str | None) -> list[float]:
    """The losses of a run that writes checkpoints, from one if it is given."""
    trainer = cases.trainer_of(group, config, cases.graph_for(model))
    first = 0 if start is None else checkpoint.load(trainer, Path(start))
    trainer.run(first, checkpoint.Checkpoints(trainer, config, "some", Path(folder)))
    return trainer.loop.history.losses


@pytest.mark.parametrize("model", ["sage", "rgcn"])
@pytest.mark.long
def test_a_checkpoint_goes_on_elsewhere(tmp_path: Path, model: str) -> None:
    config = dataclasses.replace(config_of(model, 2), checkpoint=CheckpointConfig(every=1, keep=9))
    losses = on_ranks(config, resumed, model, str(tmp_path / "here"), None)[0]
    away = on_ranks(there(config), resumed, model, str(tmp_path / "away"), None)[0]
    for folder, run in (("here", there(config)), ("away", config)):
        start = str(checkpoint.path_of(tmp_path / folder, 1))
        again = on_ranks(run, resumed, model, str(tmp_path / "again"), start)[0]
        np.testing.assert_allclose([away, again], [losses, losses], rtol=1e-12)


def predicted(group: Group, config: RunConfig, folder: str) -> list[str]:
    trainer = cases.trainer_of(group, config, cases.graph_for("sage"))
    files: list[str] = write_predictions(trainer, Path(folder), embeddings=True)["files"]
    return files


def test_predictions_are_written(tmp_path: Path) -> None:
    config = config_of("sage", 2, smooth=SmoothConfig("cs"))
    for folder, run in (("here", config), ("away", there(config))):
        (tmp_path / folder).mkdir()
        files = on_ranks(run, predicted, str(tmp_path / folder))[0]
    for name in files:
        np.testing.assert_allclose(np.load(tmp_path / "away" / name), np.load(tmp_path / "here" / name), rtol=1e-9, atol=1e-12)


def one_epoch(group: Group, config: RunConfig) -> tuple[float, list[str]]:
    trainer = cases.trainer_of(group, config, nasty_graph(60))
    with noted("size", "copy") as events:
        loss = trainer.loop.train_epoch(0).loss
    return loss, list(map(str, events))


def test_kernels_in_triton() -> None:
    """They run in the interpreter, on what lies there."""
    config = config_of("sage", 1, kernel="triton")
    ((loss, events),) = on_ranks(there(config), one_epoch)
    ((expected, _),) = on_ranks(config_of("sage", 1), one_epoch)
    assert loss == pytest.approx(expected, rel=1e-12) and not events


@pytest.mark.parametrize("metric", ["accuracy", "rocauc", "f1", "mse", "mae"])
def test_metrics(metric: Metric) -> None:
    """Of one split, whose rows lie there."""
    scores, rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(0, 30, 2)
    labels = (torch.arange(30) % 4) if metric == "accuracy" else (torch.arange(120).reshape(30, 4) % 3 - 1).to(torch.int8)

    def measured(device: str) -> dict[str, float | None]:
        targets = Targets(labels.to(device), {"test": rows.to(device)}, {"test": 15})
        return measure(metric, scores.to(device), targets, Group.single())

    with Present():
        assert measured(DEVICE.type) == pytest.approx(measured("cpu"))
