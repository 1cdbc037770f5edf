"""How fast this machine trains a configuration: small trials, once for each of machine, version, settings, kind of graph.

Trials train graphs that are drawn after the real one's outline, by one worker for runs of one, else by two. Their threads are
as many as the run's workers have together, as far as there are cores, so that caches and memory are shared as the run shares
them. There are a small graph and a larger one, and for two workers another as large as that whose parts read more of each
other's rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.config.decides import as_mapping
from sargnn.config.groups import PreloadConfig, SmoothConfig
from sargnn.config.partitioner import PartitionerConfig
from sargnn.config.run import ONE_GRAPH, RunConfig, save
from sargnn.data.dataset import Dataset, write_dataset
from sargnn.data.settings import StoredConfig
from sargnn.errors import SargnnError
from sargnn.launch.env import numba_cache_dir
from sargnn.launch.kept import environment_of_trials, keep, read_kept
from sargnn.planner.epoch_time import WAITING, Calibration, EpochTime, Load, Trial, epoch_time, load_of
from sargnn.planner.outline import Outline
from sargnn.planner.parts import PartSizes
from sargnn.profile import CATEGORIES
from sargnn.resolve import describe_source
from sargnn.steps import step
from sargnn.tasks.kinds import in_split
from sargnn.tracking import files
from sargnn.tracking.provenance import cpu_model, usable_cores
from sargnn.tracking.summary import Summary, read_summary

_FILE, _OUTLINES = "rates.json", "outlines.json"
_VERSION = 8
"""Of the trials; part of what they are kept under."""
_EPOCHS = 5
_SMALL_SHARE, _FEW_CROSSING = 0.25, 0.05
"""The smaller trial's rows, of the larger one's; edges that lead anywhere of which may leave their part."""
_EDGES, _FEWEST_ROWS, _MOST_ROWS = 1_500_000, 20_000, 40_000
"""Of the larger trial: edges that it should have, and between how many rows; their tables are larger than a core's caches."""
_TRAIN = """
import sys
from pathlib import Path
from sargnn.config.run import load
from sargnn.launch.local import train
for file in sys.argv[1:]:
    train(load(Path(file)))
"""


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
        outline: ``outline_of`` the run's graph. parts: of each worker. sent_bytes: of an epoch, by all; None: not known.
        machines: with cores as this one, on which the workers are. network_bytes_s: between them.

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
    file, key = numba_cache_dir() / _OUTLINES, f"{dataset.content_hash} {_VERSION}"
    known = read_kept(file)
    try:
        return Outline.from_json(known[key])
    except (KeyError, TypeError, ValueError):
        pass
    step("counting how near a node's neighbours are")
    outline = Outline.of(dataset)
    if dataset.content_hash:
        keep(file, key, dataclasses.asdict(outline))
    return outline


def measured_rates(config: RunConfig, outline: Outline, *, machines: int = 1) -> Calibration:
    """What trials of the configuration measure on this machine. Kept where compiled kernels are kept.

    Raises:
        SargnnError: a trial failed; its words.
    """
    world = 2 if config.world > 1 else 1
    here = -(-config.world // machines)
    threads = max(1, min(here * _threads(config, machines), usable_cores()) // (world if here > 1 else 1))
    if here == 1 and world == 2:  # two trial workers on the cores that the run gives to one
        threads = max(1, threads // 2)
    key = _key(config, outline, world, threads)
    file = numba_cache_dir() / _FILE
    known = read_kept(file)
    try:
        return Calibration.from_json(known[key])
    except (KeyError, TypeError, ValueError):
        pass
    step(f"timing small trainings ({config.model.title}, {config.mode.name}; once on this machine)")
    calibration = _measure(config, outline, world, threads)
    keep(file, key, calibration.as_json())
    return calibration


def _threads(config: RunConfig, machines: int) -> int:
    return config.threads or max(1, usable_cores() // -(-config.world // machines))


def _key(config: RunConfig, outline: Outline, world: int, threads: int) -> str:
    """What decides the speed."""
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
        early_stopping=None,
        init_from=None,
        init_digest=None,
        servers=None,
        preload=PreloadConfig(),
        metric=None,
    )


def _measure(config: RunConfig, outline: Outline, world: int, threads: int) -> Calibration:
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
        command = [sys.executable, "-c", _TRAIN, *(str(folder / "config.yaml") for folder, _, _ in made)]
        since = time.monotonic(), _waited_s()
        done = subprocess.run(command, cwd=name, capture_output=True, text=True, env=environment_of_trials(), check=False)
        if done.returncode:
            raise SargnnError("A small training that shows an epoch's time failed.", given=done.stderr.strip()[-400:])
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
    return Trial(
        _mean_load(summary, dataset, part, loops=loops),
        (summary.comm_bytes_per_epoch or 0) / (part.max() + 1),
        seconds,
        work,
        tuple(epochs),
    )


def _mean_load(summary: Summary, dataset: Dataset, part: np.ndarray, *, loops: bool) -> Load:
    world = int(part.max()) + 1
    edges = [dataset.num_edges]
    if dataset.relation is not None:
        edges = np.bincount(dataset.relation, minlength=len(dataset.schema.relations)).tolist()
    edges[0] += loops * dataset.num_nodes
    halo = sum(summary.halo_rows or [0]) // world
    targets = int(in_split(dataset.split, "train").sum())
    crossing = round((summary.edge_cut or 0.0) * dataset.num_edges) // world
    return Load(dataset.num_nodes // world, tuple(e // world for e in edges), halo, halo, targets // world, crossing)
