"""What a worker takes beside what is counted: measured by a run on a small graph, once for a machine, a version and a model."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sargnn.backends import KERNELS
from sargnn.config.run import RunConfig, load
from sargnn.data.dataset import open_dataset
from sargnn.data.prepare import prepare_dataset
from sargnn.errors import SargnnError
from sargnn.launch.env import numba_cache_dir
from sargnn.launch.kept import environment_of_trials, keep, read_kept
from sargnn.models import MODELS
from sargnn.planner.account import Runtime, graph_bytes
from sargnn.planner.parts import PartSizes
from sargnn.planner.worlds import find_cut, plan_run
from sargnn.steps import step
from sargnn.tracking import files
from sargnn.tracking.summary import read_summary

_TYPED, _PLAIN = ("dataset=mag_like", "dataset.scale=0.001"), ("dataset=synthetic", "dataset.num_nodes=2000")
_FILE = "runtime.json"


def measured_runtime(config: RunConfig, *, typed: bool) -> Runtime:
    """Of a worker of such a run, alone or with others. Kept where compiled kernels are kept.

    Raises:
        SargnnError: the small run failed; its words.
    """
    several = config.world > 1
    model = _model_of(config, typed=typed)
    key = f"{model} {config.mode.name} {config.kernel.name} {'typed' if typed else 'plain'} {'several' if several else 'one'}"
    if config.precision != "fp32":  # it has kernels of its own
        key += f" {config.precision}"
    if config.budget_bytes is not None:  # its workers load what records steps
        key += " budget"
    file = numba_cache_dir() / _FILE
    known = read_kept(file)
    if key not in known:
        step(f"measuring what a worker takes by itself ({key}; once on this machine)")
        marks = (file.parent / f"compiled_{name}" for name in (config.precision, "all", "for_tests"))
        if not any(mark.exists() for mark in marks):  # a worker that compiles holds what that takes
            _measure(config, typed=typed, world=1)
        known[key] = _measure(config, typed=typed, world=2 if several else 1)
        keep(file, key, known[key])
    return Runtime(*map(int, known[key]))


def _model_of(config: RunConfig, *, typed: bool) -> str:
    """The model that stands for it: a user's own needs settings that are not known here."""
    if config.model.name in MODELS and config.model.name != "custom":
        return config.model.name
    return "rgcn" if typed else "sage"


def _measure(config: RunConfig, *, typed: bool, world: int) -> list[int]:
    with tempfile.TemporaryDirectory() as folder:
        words = [
            *(_TYPED if typed else _PLAIN),
            f"model={_model_of(config, typed=typed)}",
            f"mode={config.mode.name}",
            f"world={world}",
            "epochs=2",
            "eval_every=10",
            "tracking=none",
            "store_dir=stores",
            "run_dir=run",
            "partitioner=random",
            f"precision={config.precision}",
            *(["memory_budget=900GB"] if config.budget_bytes is not None else []),
            *([f"kernel={config.kernel.name}"] if config.kernel.name in KERNELS else []),
        ]
        command = [sys.executable, "-m", "sargnn.cli.main", "train", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment_of_trials(), check=False)
        if done.returncode:
            raise SargnnError("The small run that shows what a worker takes failed.", given=done.stderr.strip()[-400:])
        summary = read_summary(Path(folder) / "run")
        training = 0 if summary is None else _training_bytes(Path(folder), summary.peak_train_bytes or [])
    assert summary is not None and summary.memory_bytes is not None and summary.halo_rows is not None
    parts, halo = summary.memory_bytes, summary.halo_rows
    nodes = 2000 // world
    counted = graph_bytes(PartSizes((nodes,), (12 * nodes,), halo[0], halo[0], nodes, nodes), loops=0)
    return [parts["base"][0], max(0, parts["graph"][0] - counted), training]


def _training_bytes(folder: Path, measured: Sequence[int]) -> int:
    """What the small run's training took beside what is planned of it, bytes of the worker that took most."""
    config = dataclasses.replace(load(folder / "run" / files.CONFIG), store_dir=str(folder / "stores"))
    path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
    dataset = open_dataset(path, verify=False)
    plan = plan_run(config, dataset, find_cut(config, dataset, path.name), Runtime(0, 0, 0))
    return max(0, *(peak - worker.training for peak, worker in zip(measured, plan.workers, strict=True)))
