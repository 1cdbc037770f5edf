"""Run folders with made-up figures, every one another number, so that a mean over too much shows."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, parse, save
from sargnn.tracking.files import CONFIG, append_metrics
from sargnn.tracking.summary import Summary, write_summary

EPOCHS = 4
VERSIONS = {"python": "3.11", "torch": "2.2"}
TWELVE = {
    "base": [],
    "kernel": ["kernel=reference"],
    "seed": ["seed=1"],
    "hidden": ["model.hidden=32"],
    "dataset": ["dataset=products_like", "dataset.scale=0.01"],
    "world": ["world=4"],
    "mode": ["mode=one_shot"],
    "precision": ["precision=fp64"],
    "epochs": ["epochs=3"],
    "labels": ["labels=masked"],
    "mfg": ["mfg=true"],
    "partitioner": ["partitioner=random"],
    "threads": ["threads=2"],
}
"""Each differs from ``base`` in one thing."""


def losses_of(number: int, epochs: int = EPOCHS) -> list[float]:
    """A run's losses, by its number."""
    return [(2.0 + 0.25 * number) / (1 + epoch) for epoch in range(epochs)]


def figures_of(number: int, world: int) -> dict[str, Any]:
    """A run's figures, by its number."""
    parts = {
        name: [(at + 1) * 10_000_000 + 100_000 * number + 1000 * rank for rank in range(world)]
        for at, name in enumerate(("base", "graph", "features", "parameters", "training", "other"))
    }
    return {
        "test_metric": 0.5, "val_metric": 0.6, "best_val_metric": 0.61, "test_metric_at_best_val": 0.4 + 0.01 * number,
        "epoch_time_s": 1.0 + 0.125 * number, "comm_wait_time_s": 0.25 + 0.01 * number,
        "comm_bytes_per_epoch": 1_000_000 + 1000 * number,
        "peak_train_bytes": [20_000_000 + 100_000 * number + rank for rank in range(world)],
        "memory_bytes": parts, "peak_rss_bytes": [sum(column) for column in zip(*parts.values(), strict=True)],
    }  # fmt: skip


@cache
def composed(words: tuple[str, ...]) -> RunConfig:
    """Hydra takes a while."""
    return parse(compose_verb("train", ["tracking=none", *words]))


def write_run(folder: Path, number: int, *words: str, metric: str = "accuracy", **changed: Any) -> Path:
    """A finished run of these settings, as number ``number``; ``changed``: other values in its summary."""
    numbers: dict[str, Any] = {"world": 2, "threads": 1, "epochs": EPOCHS, "seed": 0}
    given = [word.split("=", 1) for word in words]
    numbers |= {key: int(value) for key, value in given if key in numbers}
    others = tuple(f"{key}={value}" for key, value in given if key not in numbers)
    config = dataclasses.replace(composed(others), run_dir=str(folder), **numbers)
    folder.mkdir(parents=True)
    save(config, folder / CONFIG)
    losses = losses_of(number, config.epochs)
    for epoch, loss in enumerate(losses):
        row: dict[str, Any] = {"epoch": epoch, "loss": loss, "epoch_time_s": 1.0 + 0.125 * number + 0.5 * epoch}
        if epoch % 2 or epoch + 1 == config.epochs:
            row |= {"task": "classes", "metric": metric, "val_metric": 0.1 * (epoch + 1) + 0.01 * number}
        append_metrics(folder, row)
    known: dict[str, Any] = {
        "status": "finished", "losses": losses, "task": "classes", "metric": metric, "world": config.world,
        "mode": config.mode.name, "model": config.model.name, "dataset": config.dataset.name,
        "kernel": "fused" if config.kernel.name == "auto" else config.kernel.name,
        "dataset_hash": f"hash of {config.dataset.name}", "git_sha": "0123456789abcdef", "versions": VERSIONS,
    }  # fmt: skip
    write_summary(folder, Summary(**(known | figures_of(number, config.world) | changed)))
    return folder


def write_twelve(place: Path) -> dict[str, Path]:
    """``base`` and the twelve; a run's number is its place among them."""
    return {name: write_run(place / name, number, *words) for number, (name, words) in enumerate(TWELVE.items())}
