"""A model trained for three steps on one worker and on two: every tensor compared, for ``sargnn check model=...``.

Each world's workers are started like those of a run, in a temporary folder that is gone afterwards; ``run_dir`` keeps it. Of a
large graph the surroundings of some training nodes are taken, so that it takes seconds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.config.groups import BatchesConfig, CheckpointConfig, MemoryConfig, PreloadConfig, SmoothConfig
from sargnn.config.partitioner import PartitionerConfig
from sargnn.config.run import RunConfig, save
from sargnn.errors import ConfigError, WorkerError
from sargnn.run.check import check_graph, check_network, check_strategies
from sargnn.run.env import prepare_process
from sargnn.run.local import run_workers
from sargnn.run.processes import start_fork_server
from sargnn.tracking import files
from sargnn.tracking.files import Inputs, write_inputs
from sargnn.tracking.progress import Steps, say

if TYPE_CHECKING:
    from sargnn.training.compare_worlds import Outcome

STEPS, WORLDS = 3, (1, 3)
MOST_NODES = 20_000
"""Larger graphs are cut down to so many nodes."""


@dataclass(frozen=True)
class Graph:
    """What was trained on; ``of_nodes``: the nodes of the whole graph, more than ``nodes`` where a part was taken."""

    name: str
    nodes: int
    edges: int
    of_nodes: int


def compare_worlds(config: RunConfig) -> tuple[Graph, Outcome]:
    """Train three steps and evaluate, on one worker and on two, and compare all tensors.

    The configuration's world, epochs and tracking do not matter; its ``run_dir`` is a new folder for what was recorded. Raises
    ``SargnnError`` for anything a user can cause, ``WorkerError`` for a module that a worker fails in.
    """
    from sargnn.sources.prepare import prepare_dataset
    from sargnn.training.compare_worlds import TOLERANCES, compare_records
    from sargnn.training.record_worlds import load_records

    if config.precision not in TOLERANCES:
        raise ConfigError(
            "Worlds are compared in a precision whose rounding is small.",
            given=f"precision={config.precision}",
            allowed=", ".join(TOLERANCES),
        )

    config = prepare_process(_reduced(config))
    check_network(config.comm)
    config.dataset.check_files()
    start_fork_server()
    config = config.stand_in
    check_strategies(config)
    with _folder(config) as folder:
        with Steps():
            path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
            check_graph(config, path)
            path, graph = _small_graph(config, path, folder)
        runs = {}
        for world in WORLDS:
            say(f"training {STEPS} steps on {world} worker{'s' * (world > 1)}")
            runs[world] = _train(replace(config, world=world), path, folder)
        records = {world: [load_records(files.records_path(run, rank)) for rank in range(world)] for world, run in runs.items()}
    return graph, compare_records(records[1][0], records[max(WORLDS)], config.precision)


def _reduced(config: RunConfig) -> RunConfig:
    """Without what only a whole run has."""
    partitioner = config.partitioner
    if partitioner.name == "given" and partitioner.target is None:  # made for another number of workers
        partitioner = PartitionerConfig("metis", partitioner.seed, partitioner.order, partitioner.imbalance)
    return replace(
        config,
        world=max(WORLDS),
        epochs=max(config.epochs, STEPS),
        partitioner=partitioner,
        smooth=SmoothConfig(),
        early_stopping=None,
        init_from=None,
        profile=False,
        checkpoint=CheckpointConfig(None, 1),
        tracking=replace(config.tracking, enabled=False),
        comm=replace(config.comm, wire="exact"),
        batches=BatchesConfig(),
        memory_budget=MemoryConfig(),
        processes=None,
        spill="none",
        servers=None,
        preload=PreloadConfig(),
    )


@contextmanager
def _folder(config: RunConfig) -> Iterator[Path]:
    """Where everything is written: gone afterwards unless ``run_dir`` names one."""
    if config.run_dir is None:
        with tempfile.TemporaryDirectory(prefix="sargnn-check-") as folder:
            yield Path(folder)
        return
    given = Path(config.run_dir)
    if given.exists() and (not given.is_dir() or any(given.iterdir())):
        raise ConfigError(
            "The folder holds something.", given=f"run_dir={given}", hint="choose a new one, or leave run_dir out"
        )
    given.mkdir(parents=True, exist_ok=True)
    yield given.resolve()


def _small_graph(config: RunConfig, path: Path, folder: Path) -> tuple[Path, Graph]:
    """The dataset store to train on: that at ``path``, or one in ``folder`` with a part of the graph."""
    from sargnn.graph.dataset import cut_surroundings, open_dataset, write_dataset
    from sargnn.steps import step

    dataset = open_dataset(path, verify=False)
    title = config.dataset.title_of(dataset.name)
    if dataset.num_nodes > MOST_NODES:
        step("taking a part of the graph")
        small = cut_surroundings(dataset, MOST_NODES)
        path = folder / "datasets" / path.name
        write_dataset(path, small, made_by={"part of": dataset.content_hash, "nodes": MOST_NODES})
        return path, Graph(title, small.num_nodes, small.num_edges, dataset.num_nodes)
    return path, Graph(title, dataset.num_nodes, dataset.num_edges, dataset.num_nodes)


def _train(config: RunConfig, dataset_path: Path, folder: Path) -> Path:
    """Train on ``config.world`` workers; the folder with their records."""
    from sargnn.partition.prepare import prepare_partition

    with Steps():
        info = prepare_partition(replace(config, store_dir=str(folder)), dataset_path)
    run_dir, parameters = folder / f"world_{config.world}", folder / "parameters"
    for directory in (run_dir, parameters):
        directory.mkdir(exist_ok=True)
    choice = {"steps": STEPS, "parameters": str(parameters), "follow": config.world > 1}
    write_inputs(run_dir, Inputs(str(info.path.resolve()), time.time(), info.dataset_hash, record=choice))
    save(config, run_dir / files.CONFIG)
    try:
        run_workers(run_dir, config, hint="the same command again starts anew")
    except WorkerError as error:
        lines = [line for line in str(error).splitlines() if not line.startswith("  next:")]
        hint = "run_dir=FOLDER keeps the whole logs" if folder.name.startswith("sargnn-check-") else f"the logs in {run_dir}"
        raise WorkerError("\n".join([f"With world={config.world}: {lines[0]}", *lines[1:]]), hint=hint) from error
    return run_dir
