"""What a worker takes beside what is counted: that of a small run, for each model, mode and kernel, once on a machine."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from sargnn.backends import KERNELS
from sargnn.config.run import RunConfig, load
from sargnn.errors import SargnnError
from sargnn.graph.dataset import open_dataset
from sargnn.interop.dgl import is_installed
from sargnn.memory.plan_parts import PartSizes
from sargnn.memory.plan_run import find_cut, plan_run
from sargnn.memory.plan_worker import Runtime, graph_bytes
from sargnn.models import MODELS
from sargnn.native import chosen
from sargnn.native.build import digest_of_sources
from sargnn.sources.prepare import prepare_dataset
from sargnn.steps import step
from sargnn.tracking import files
from sargnn.tracking.summary import read_summary

_RUNTIMES = "runtime.json"
_TYPED, _PLAIN = ("dataset=mag_like", "dataset.scale=0.001"), ("dataset=synthetic", "dataset.num_nodes=2000")


def cache_dir() -> Path:
    """A writable folder for what is measured once: per user, content of the C++ sources, and instructions."""
    name = f"measured-{digest_of_sources()}-{chosen()}"
    for candidate in (user_cache_path("sargnn") / name, Path(tempfile.gettempdir()) / f"sargnn-{name}-{os.getuid()}"):
        try:
            candidate.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(candidate, os.W_OK):
            return candidate
    return Path(tempfile.mkdtemp(prefix="sargnn-measured-"))


def _content(file: Path) -> dict[str, Any]:
    """All that a file holds; nothing where it is missing or damaged."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _train(words: list[str], folder: str) -> None:
    """Train in a folder, as no part of the SLURM job that this process may run in. Raises ``SargnnError``."""
    environment = {key: value for key, value in os.environ.items() if key != "SLURM_JOB_ID"}
    command = [sys.executable, "-m", "sargnn.cli.main", "train", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SargnnError("The small run that shows what a worker takes failed.", given=done.stderr.strip()[-400:])


def measured_runtime(config: RunConfig, *, typed: bool) -> Runtime:
    """Of a worker of such a run, kept for the next plan. Raises ``SargnnError`` where the small run fails."""
    several = config.world > 1
    model = _model_of(config, typed=typed)
    key = f"{model} {config.mode.name} {config.kernel.name} {'typed' if typed else 'plain'} {'several' if several else 'one'}"
    if config.precision != "fp32":  # it has kernels of its own
        key += f" {config.precision}"
    if config.budget_bytes is not None:  # its workers load what records steps
        key += " budget"
    if not is_installed():  # the baseline's kernel is another one, and nothing loads DGL
        key += " without DGL"

    file = cache_dir() / _RUNTIMES
    with suppress(KeyError, TypeError, ValueError):  # nothing is there, or it is damaged
        return Runtime(*map(int, _content(file)[key]))
    step(f"measuring what a worker takes by itself ({key}; once on this machine)")
    measured = _measure_runtime(config, typed=typed, world=2 if several else 1)
    files.write_json(file, _content(file) | {key: measured})
    return Runtime(*measured)


def _model_of(config: RunConfig, *, typed: bool) -> str:
    """The model that stands for it: a user's own needs settings that are not known here, rows alone predict no classes."""
    if config.model.name in MODELS and config.model.name not in ("custom", "none"):
        return config.model.name
    return "rgcn" if typed else "sage"


def _measure_runtime(config: RunConfig, *, typed: bool, world: int) -> list[int]:
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
        _train(words, folder)
        summary = read_summary(Path(folder) / "run")
        assert summary is not None and summary.memory_bytes is not None and summary.halo_rows is not None
        # What its training took beside what is planned of it, on the worker where that is most.
        small = dataclasses.replace(load(Path(folder) / "run" / files.CONFIG), store_dir=str(Path(folder) / "stores"))
        path = prepare_dataset(small.dataset, small.store_dir, small.prepare.bytes)
        dataset = open_dataset(path, verify=False)
        planned = plan_run(small, dataset, find_cut(small, dataset, path.name), Runtime(0, 0, 0)).workers
        peaks = summary.peak_train_bytes or []
        training = max(0, *(peak - worker.training for peak, worker in zip(peaks, planned, strict=True)))
    parts, halo = summary.memory_bytes, summary.halo_rows
    nodes = 2000 // world
    counted = graph_bytes(PartSizes((nodes,), (12 * nodes,), halo[0], halo[0], nodes, nodes), loops=0, goes_back=True)
    return [parts["base"][0], max(0, parts["graph"][0] - counted), training]
