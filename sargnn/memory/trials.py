"""What only trying shows, measured once on a machine and kept beside the compiled kernels: what a worker takes beside what is
counted, and how fast a configuration is trained.

What a worker takes is that of a run on a small graph, for each model, mode and kernel. Speed is that of small trainings, for
each of machine, version, settings, kind of graph: they train graphs that are drawn after the real one's outline, by one worker
for runs of one, else by two. Their threads are as many as the run's workers have together, as far as there are cores, so that
caches and memory are shared as the run shares them. There are a small graph and a larger one, and for two workers another as
large as that whose parts read more of each other's rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from platformdirs import user_cache_path

from sargnn.backends import KERNELS
from sargnn.config.fields import as_mapping
from sargnn.config.groups import PreloadConfig, SmoothConfig
from sargnn.config.partitioner import PartitionerConfig
from sargnn.config.run import ONE_GRAPH, RunConfig, load, save
from sargnn.errors import SargnnError
from sargnn.graph.dataset import Dataset, open_dataset, write_dataset
from sargnn.interop.dgl import is_installed
from sargnn.memory.plan_parts import PartSizes
from sargnn.memory.plan_run import find_cut, plan_run
from sargnn.memory.plan_time import WAITING, Calibration, EpochTime, Load, Trial, epoch_time, load_of
from sargnn.memory.plan_worker import Runtime, graph_bytes
from sargnn.memory.trials_outline import Outline
from sargnn.models import MODELS
from sargnn.native import chosen
from sargnn.native.build import digest_of_sources
from sargnn.profile import CATEGORIES
from sargnn.resolve import describe_source
from sargnn.sources.prepare import prepare_dataset
from sargnn.sources.settings import StoredConfig
from sargnn.steps import step
from sargnn.tasks.kinds import in_split
from sargnn.tracking import files
from sargnn.tracking.provenance import cpu_model, usable_cores
from sargnn.tracking.summary import read_summary

T = TypeVar("T")
_RUNTIMES, _RATES, _OUTLINES = "runtime.json", "rates.json", "outlines.json"
_TYPED, _PLAIN = ("dataset=mag_like", "dataset.scale=0.001"), ("dataset=synthetic", "dataset.num_nodes=2000")
"""Graphs of the run that shows what a worker takes."""
_VERSION = 8
"""Of the trials; part of what they are kept under."""
_EPOCHS = 5
_SMALL_SHARE, _FEW_CROSSING = 0.25, 0.05
"""The smaller trial's rows, of the larger one's; edges that lead anywhere of which may leave their part."""
_EDGES, _FEWEST_ROWS, _MOST_ROWS = 1_500_000, 20_000, 40_000
"""Of the larger trial: edges that it should have, and between how many rows; their tables are larger than a core's caches."""
_TRIAL = "sargnn.run.trial"
"""The program that trains the graphs of some configuration files."""


def cache_dir() -> Path:
    """A writable folder for what is measured once, one per user, content of the C++ sources, and instructions."""
    name = f"measured-{digest_of_sources()}-{chosen()}"
    for candidate in (user_cache_path("sargnn") / name, Path(tempfile.gettempdir()) / f"sargnn-{name}-{os.getuid()}"):
        try:
            candidate.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(candidate, os.W_OK):
            return candidate
    return Path(tempfile.mkdtemp(prefix="sargnn-measured-"))


def kept(name: str, key: str, read: Callable[[Any], T], measure: Callable[[], Any]) -> T:
    """What is kept under a key in a file; measured where nothing is, or nothing that can be read.

    Args:
        name: the file's.
        read: makes it of JSON; raises ``KeyError``, ``TypeError`` or ``ValueError`` for content that is damaged.
        measure: gives it as JSON.
    """
    file = cache_dir() / name
    with suppress(KeyError, TypeError, ValueError):
        return read(_content(file)[key])
    value = measure()
    files.write_json(file, _content(file) | {key: value})
    return read(value)


def _content(file: Path) -> dict[str, Any]:
    """All that a file holds; nothing where it is missing or damaged."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _run(arguments: Sequence[str], folder: str, failed: str) -> None:
    """Run a module of this package in a folder, as no part of the SLURM job that this process may run in.

    Raises:
        SargnnError: it failed; ``failed`` and the end of what it printed.
    """
    environment = {key: value for key, value in os.environ.items() if key != "SLURM_JOB_ID"}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SargnnError(failed, given=done.stderr.strip()[-400:])


def measured_runtime(config: RunConfig, *, typed: bool) -> Runtime:
    """Of a worker of such a run, alone or with others. Kept for the next plan.

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
    if not is_installed():  # the baseline's kernel is another one, and nothing loads DGL
        key += " without DGL"

    def measure() -> list[int]:
        step(f"measuring what a worker takes by itself ({key}; once on this machine)")
        return _measure_runtime(config, typed=typed, world=2 if several else 1)

    return kept(_RUNTIMES, key, lambda bytes_of: Runtime(*map(int, bytes_of)), measure)


def _model_of(config: RunConfig, *, typed: bool) -> str:
    """The model that stands for it: a user's own needs settings that are not known here."""
    if config.model.name in MODELS and config.model.name != "custom":
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
        _run(["sargnn.cli.main", "train", *words], folder, "The small run that shows what a worker takes failed.")
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
    counted = graph_bytes(PartSizes((nodes,), (12 * nodes,), halo[0], halo[0], nodes, nodes), loops=0)
    return [parts["base"][0], max(0, parts["graph"][0] - counted), training]


def predict(
    config: RunConfig,
    outline: Outline,
    parts: Sequence[PartSizes],
    sent_bytes: int | None,
    *,
    machines: int = 1,
    network_bytes_s: float | None = None,
) -> EpochTime:
    """The time of an epoch of the run, after trials where this machine has made none of its kind.

    Args:
        outline: ``outline_of`` the run's graph.
        parts: of each worker.
        sent_bytes: of an epoch, by all; None: not known.
        machines: with cores as this one, on which the workers are.
        network_bytes_s: between them.

    Raises:
        SargnnError: a trial failed; its words.
    """
    calibration = measured_rates(config, outline, machines=machines)
    loads = [load_of(part, loops=config.add_self_loops) for part in parts]
    return epoch_time(
        loads,
        sent_bytes,
        calibration,
        threads=_threads(config, machines),
        cores=usable_cores(),
        machines=machines,
        network_bytes_s=network_bytes_s,
    )


def outline_of(dataset: Dataset) -> Outline:
    """The graph's outline, counted once for a content and kept beside the trials."""

    def count() -> Outline:
        step("counting how near a node's neighbours are")
        return Outline.of(dataset)

    if not dataset.content_hash:
        return count()
    key = f"{dataset.content_hash} {_VERSION}"
    return kept(_OUTLINES, key, Outline.from_json, lambda: dataclasses.asdict(count()))


def measured_rates(config: RunConfig, outline: Outline, *, machines: int = 1) -> Calibration:
    """What trials of the configuration measure on this machine. Kept for the next plan.

    Raises:
        SargnnError: a trial failed; its words.
    """
    world = 2 if config.world > 1 else 1
    here = -(-config.world // machines)
    threads = max(1, min(here * _threads(config, machines), usable_cores()) // (world if here > 1 else 1))
    if here == 1 and world == 2:  # two trial workers on the cores that the run gives to one
        threads = max(1, threads // 2)
    key = _key(config, outline, world, threads)

    def measure() -> dict[str, Any]:
        step(f"timing small trainings ({config.model.title}, {config.mode.name}; once on this machine)")
        return dataclasses.asdict(_measure_rates(config, outline, world, threads))

    return kept(_RATES, key, Calibration.from_json, measure)


def _threads(config: RunConfig, machines: int) -> int:
    return config.threads or max(1, usable_cores() // -(-config.world // machines))


def _key(config: RunConfig, outline: Outline, world: int, threads: int) -> str:
    settings: dict[str, Any] = as_mapping(_trial_config(config, Path(), 2, world, threads))
    for name in ("dataset", "partitioner", "seed", "store_dir", "run_dir", "run_name", "epochs", "eval_every"):
        del settings[name]
    content = {
        "settings": settings,
        "loops": config.add_self_loops,
        "weights": config.dataset.edge_weights,
        "source": [
            describe_source(component.target) for component in (config.model, config.mode, config.kernel) if component.target
        ],
        "outline": dataclasses.asdict(outline),
        "machine": [cpu_model(), usable_cores()],
        "version": [version("sargnn"), _VERSION],
        **({} if is_installed() else {"dgl": "not installed"}),
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return f"{config.model.title} {config.mode.name} {digest}"


def _trial_config(config: RunConfig, folder: Path, epochs: int, world: int, threads: int) -> RunConfig:
    """The run's settings on the graph in ``folder``; what takes time beside its epochs left out."""
    dataset = StoredConfig(
        "stored", str(folder / "graph"), add_self_loops=config.add_self_loops, edge_weights=config.dataset.edge_weights
    )
    partitioner = PartitionerConfig("given", 0, "original", file=str(folder / "part.npy"))
    batches = dataclasses.replace(config.batches, count=1) if config.batches.count == "auto" else config.batches
    return dataclasses.replace(
        config,
        dataset=dataset,
        partitioner=partitioner,
        world=world,
        threads=threads,
        epochs=epochs,
        eval_every=epochs,
        batches=batches,
        profile=True,
        store_dir=str(folder / "stores"),
        run_dir=str(folder / "run"),
        run_name=None,
        checkpoint=dataclasses.replace(config.checkpoint, every=None),
        smooth=SmoothConfig(),
        tracking=dataclasses.replace(config.tracking, enabled=False, uri=None),
        memory_budget=RunConfig.memory_budget,
        spill="none",
        early_stopping=None,
        max_seconds=None,
        init_from=None,
        init_digest=None,
        servers=None,
        preload=PreloadConfig(),
        metric=None,
    )


def _measure_rates(config: RunConfig, outline: Outline, world: int, threads: int) -> Calibration:
    edges = sum(per_node for _, _, per_node in outline.relations)
    rows = int(np.clip(_EDGES / max(edges, 1.0), _FEWEST_ROWS, _MOST_ROWS))
    with tempfile.TemporaryDirectory() as name:
        made = []
        graphs = [(int(_SMALL_SHARE * rows), _FEW_CROSSING), (rows, _FEW_CROSSING), (rows, 1.0)]
        for number, (size, crossing) in enumerate(graphs if world > 1 else graphs[:2]):
            folder = Path(name) / str(number)
            folder.mkdir()
            dataset, part = outline.draw(size, world, crossing=crossing)
            write_dataset(folder / "graph", dataset, {"generator": "outline"})
            np.save(folder / "part.npy", part)
            save(_trial_config(config, folder, _EPOCHS, world, threads), folder / "config.yaml")
            made.append((folder, dataset, part))
        configs = [str(folder / "config.yaml") for folder, _, _ in made]
        since = time.monotonic(), _waited_s()
        _run([_TRIAL, *configs], name, "A small training that shows an epoch's time failed.")
        busy = min(1.0, (_waited_s() - since[1]) / (time.monotonic() - since[0]))
        trials = [_trial(*graph, threads, busy, loops=config.add_self_loops) for graph in made]
    return Calibration(threads, config.mode.name not in ONE_GRAPH, *trials)


def _waited_s() -> float:
    """For how long any thread of this machine has waited for a core since it was started; 0 where the kernel does not say."""
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0


def _trial(folder: Path, dataset: Dataset, part: np.ndarray, threads: int, busy: float, *, loops: bool) -> Trial:
    """What the training in ``folder`` measured, without what other programs took of the cores, as far as that is known.

    A worker of one thread takes the seconds that it computed for. One of several threads takes those of the fastest epoch or,
    for the share ``busy`` of the time in which threads waited for a core, those that its threads computed for on average.
    Waits are shorter by as much.
    """
    summary = read_summary(folder / "run")
    assert summary is not None and summary.profile_s and summary.profile_cpu_s and summary.profile_work
    rows = [json.loads(line) for line in (folder / "run" / files.METRICS).read_text().splitlines()]
    epochs = sorted(row["epoch_time_s"] for row in rows[1:])
    seconds, computed, work = (
        {name: float(np.mean(values[name])) for name in CATEGORIES}
        for values in (summary.profile_s, summary.profile_cpu_s, summary.profile_work)
    )
    fastest, busy = min(epochs) / float(np.mean(epochs)), 1.0 if threads == 1 else busy
    own = {}
    for name in CATEGORIES:
        if name not in WAITING:
            alone = seconds[name] * fastest
            own[name] = (1 - busy) * alone + busy * min(alone, computed[name] / threads)
    share = sum(own.values()) / max(1e-9, sum(seconds[name] for name in own))
    seconds = own | {name: seconds[name] * share for name in WAITING}
    world = int(part.max()) + 1
    edges = [dataset.num_edges]
    if dataset.relation is not None:
        edges = np.bincount(dataset.relation, minlength=len(dataset.schema.relations)).tolist()
    edges[0] += loops * dataset.num_nodes
    halo = sum(summary.halo_rows or [0]) // world
    targets = int(in_split(dataset.split, "train").sum())
    crossing = round((summary.edge_cut or 0.0) * dataset.num_edges) // world
    return Trial(
        Load(dataset.num_nodes // world, tuple(e // world for e in edges), halo, halo, targets // world, crossing),
        (summary.comm_bytes_per_epoch or 0) / (part.max() + 1),
        seconds,
        work,
        tuple(epochs),
    )
