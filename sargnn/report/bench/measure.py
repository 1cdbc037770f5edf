"""Rounds of a table: every entry of a case in turn, and again. Each is measured in processes of its own that end with it, and
kept: an interrupted table goes on where it was.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from sargnn.config.run import save
from sargnn.engine.modes import MODES
from sargnn.engine.serving import usable_device
from sargnn.errors import ConfigError, SargnnError
from sargnn.graph.dataset import open_dataset
from sargnn.graph.edge_columns import WEIGHT
from sargnn.interop.dgl import is_installed
from sargnn.partition import PARTITIONERS
from sargnn.partition.memory import available_bytes
from sargnn.partition.prepare import prepare_partition
from sargnn.report.bench.entries import (
    HUGE,
    IN_BF16,
    NOT_STATIC,
    STOCK,
    Case,
    Entry,
    Figures,
    entries_of,
    reasons_without_pyg,
    reasons_without_stock,
)
from sargnn.report.bench.epoch import measure_roofline
from sargnn.report.bench.settings import BenchTableConfig, machine, open_folder
from sargnn.report.bench.table import Found, markdown, picture
from sargnn.report.draw import write_pngs
from sargnn.resolve import resolve
from sargnn.run.processes import end_process
from sargnn.sources.prepare import prepare_dataset
from sargnn.tracking import files
from sargnn.tracking.files import write_json
from sargnn.tracking.memory import human_bytes, resident_bytes
from sargnn.tracking.progress import Steps, say
from sargnn.tracking.summary import read_summary
from sargnn.training.build import edge_width, uses_edge_weights

FILES = "table.md", "table.json"
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
_SHARE_OF_FREE = 0.9
"""What a command of another may hold of the memory that is free when it begins."""
_WATCH_S = 0.05
"""How often that is looked at; a large table is filled at a few gigabytes a second."""
_ENDED_BY = ((signal.SIGTERM, 15), (signal.SIGKILL, 5))


@dataclass(frozen=True)
class Kept:
    """One round's place of one entry in ``bench_dir/runs/CASE``: ``NAME-ROUND.json``, and a run folder ``NAME-ROUND``."""

    bench_dir: Path
    case: Case
    entry: Entry
    round: int

    @property
    def run_dir(self) -> Path:
        """Of a run of this project, absolute."""
        name = re.sub(r"[^\w.]+", "-", self.entry.name).strip("-").lower()
        return (self.bench_dir / "runs" / self.case.name / f"{name}-{self.round + 1}").resolve()

    @property
    def path(self) -> Path:
        return self.run_dir.with_name(f"{self.run_dir.name}.json")

    def read(self) -> Figures | None:
        """None: they are not there. Raises ``ConfigError`` for figures of other settings, or damaged ones."""
        if not self.path.exists():
            return None
        hint = f"choose another bench_dir, or remove '{self.path}'"
        try:
            content = json.loads(self.path.read_text())
            settings, figures = content["settings"], content["figures"]
            keys = sorted({*settings, *self.entry.settings})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError("A kept measurement cannot be read.", given=str(self.path), hint=hint) from error
        wanted = self.entry.settings
        other = [key for key in keys if settings.get(key) != wanted.get(key)]
        if other:
            changes = "; ".join(f"{key}: {settings.get(key)} instead of {wanted.get(key)}" for key in other)
            raise ConfigError("The folder holds this measurement with other settings.", given=changes, hint=hint)
        return dict(figures)

    def clear(self) -> None:
        """Remove what an interrupted run left."""
        shutil.rmtree(self.run_dir, ignore_errors=True)
        self.run_dir.parent.mkdir(parents=True, exist_ok=True)

    def write(self, figures: Figures) -> None:
        write_json(self.path, {"settings": self.entry.settings, "figures": figures})


def measure(kept: Kept, store: Path) -> Figures:
    """One entry's figures. Raises ``SargnnError`` where its process fails.

    A command of the setting ``others`` is started as ``COMMAND CONFIG STORE``: CONFIG is a run's ``config.yaml``, STORE the
    dataset's store. It trains ``epochs`` epochs and prints one JSON object: ``times_s``, seconds of each epoch, the first one
    included, and ``peak_train_bytes``, a number or one per worker, above what was resident once graph, features and parameters
    were read in; ``losses`` if it likes. Or ``out_of_memory``, a text: so does stock DGL or PyG where an allocation fails, and
    so it is noted of a command that came to hold nine tenths of the memory that was free when it began, which ends it.
    """
    kept.clear()
    if kept.entry.kind == "limits":
        return dataclasses.asdict(measure_roofline(len(os.sched_getaffinity(0)), kept.entry.config.precision))
    if kept.entry.kind == "train":
        return _train(kept)
    config = kept.run_dir / files.CONFIG
    kept.run_dir.mkdir()
    save(kept.entry.config, config)
    environment = {key: value for key, value in os.environ.items() if key != HUGE_PAGES}
    if kept.entry.kind == "stock":  # with all cores; its numbers of threads are set as those of workers are
        threads = str(len(os.sched_getaffinity(0)))
        environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if kept.entry.name in (HUGE, IN_BF16):
            environment[HUGE_PAGES] = "1"
        command = [sys.executable, "-m", "sargnn.report.bench.process", str(config), str(store), threads]
        command += [kept.entry.form] * bool(kept.entry.form)
    else:
        command = [*shlex.split(kept.entry.command), str(config), str(store)]
    most_bytes = int(_SHARE_OF_FREE * available_bytes())
    output = _output(command, kept, environment, most_bytes)
    return {"out_of_memory": f"it held more than {human_bytes(most_bytes)}"} if output is None else _read(output, kept)


def _train(kept: Kept) -> Figures:
    config = dataclasses.replace(kept.entry.config, run_dir=str(kept.run_dir))
    path = kept.run_dir.with_name(f"{kept.run_dir.name}.yaml")
    save(config, path)
    _output([sys.executable, "-m", "sargnn.run.trial", str(path)], kept, dict(os.environ))
    path.unlink()
    summary = read_summary(kept.run_dir)
    if summary is None:
        raise SargnnError("A run of the table left no result.", given=str(kept.run_dir))
    rows = [row for row in files.MetricsTail(kept.run_dir).new_rows() if row["epoch"] > 0]
    figures = {
        "times_s": [row["epoch_time_s"] for row in rows],
        "waits_s": [row["comm_wait_time_s"] for row in rows],
        "mean_waits_s": [mean(row["ranks"]["comm_wait_time_s"]) for row in rows],
    }
    known = summary.as_dict()
    return figures | {key: known[key] for key in _OF_A_SUMMARY}


_OF_A_SUMMARY = (
    "losses",
    "peak_train_bytes",
    "peak_rss_bytes",
    "memory_bytes",
    "startup_time_s",
    "comm_bytes_per_epoch",
    "cache_static",
    "sharded_params",
    "profile_s",
    "profile_cpu_s",
    "profile_work",
    "kernel",
    "git_sha",
    "dataset_hash",
    "partition_hash",
)


def _read(text: str, kept: Kept) -> Figures:
    """The last line's JSON object; the first epoch is left out."""
    try:
        answer = json.loads(text.strip().splitlines()[-1])
        if "out_of_memory" in answer:
            return {"out_of_memory": str(answer["out_of_memory"])}
        times, peaks = [float(seconds) for seconds in answer["times_s"]], answer["peak_train_bytes"]
        peaks = [int(peak) for peak in (peaks if isinstance(peaks, list) else [peaks])]
        if len(times) < 2 or not peaks:
            raise ValueError("too few figures")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise SargnnError(
            "A row's command does not print its figures.",
            given=f"{kept.entry.name}: {text[-200:]!r}",
            allowed='one JSON object such as {"times_s": [1.5, 1.2], "peak_train_bytes": 1000000}',
        ) from error
    return {"times_s": times[1:], "peak_train_bytes": peaks, "losses": answer.get("losses")}


def _output(command: Sequence[str], kept: Kept, environment: dict[str, str], most_bytes: int | None = None) -> str | None:
    """A process's stdout; None where it came to hold more than ``most_bytes``, which has ended it. An interrupt ends it and
    what it has started."""
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise SargnnError("A row's command cannot be started.", given=shlex.join(command), hint=str(error)) from error
    answer: tuple[str, str] | None = None
    try:
        while answer is None:
            try:
                answer = process.communicate(timeout=None if most_bytes is None else _WATCH_S)
            except subprocess.TimeoutExpired:
                if most_bytes is not None and resident_bytes(process.pid) > most_bytes:
                    end_process(process, _ENDED_BY[-1:])
                    return None
    except BaseException:
        end_process(process, _ENDED_BY)
        raise
    output, errors = answer
    if process.returncode == -signal.SIGKILL and most_bytes is not None:  # by the kernel, as the machine had no more
        return None
    if process.returncode:
        lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
        raise SargnnError(
            f"A run failed: {kept.case.name}, {kept.entry.name}. The end of what it printed:\n"
            + "\n".join(f"    {line}" for line in lines[-8:]),
            hint="the same command again goes on from here",
        )
    return output


def run(table: BenchTableConfig, cases: Sequence[Case]) -> list[Found]:
    """Measure what is not there yet; write ``table.md``, ``table.json`` and ``memory-CASE.png`` into ``bench_dir``. Raises
    ``SargnnError``: what a user can cause; a row that fails, with the end of what it printed."""
    for mode in table.modes:
        resolve("mode", MODES, mode)
    if left := [mode for mode in table.one_process if mode not in table.modes or mode == "domain_parallel"]:
        raise ConfigError(
            "'one_process' names a mode that is not measured, or that has a process for each worker.",
            given=", ".join(left),
            allowed=[mode for mode in table.modes if mode != "domain_parallel"] or "none of 'modes'",
        )
    for case in cases:
        resolve("partitioner", PARTITIONERS, case.config.partitioner.name)
        usable_device(case.config.device)
    folder = Path(table.bench_dir)
    open_folder(folder, FILES)
    planned = [[Kept(folder, case, entry, number) for entry, number in entries_of(case, table)] for case in cases]
    kept = sum(place.read() is not None for places in planned for place in places)
    if kept:
        say(f"{kept} measurements are in {folder} and are kept")
    results: list[Found] = []
    for case, places in zip(cases, planned, strict=True):
        for peer, reasons in (("DGL", reasons_without_stock(case)), ("PyG", reasons_without_pyg(case))) if table.stock else ():
            for reason in reasons:
                say(f"{case.name}: {reason}; its table has no stock {peer}")
        absent = {} if is_installed() or not table.stock else {STOCK: "not installed"}
        measured = Found(case, _measure_case(case, places), absent)
        results.append(measured)
        _write(folder, table, results)
        if (curves := picture(measured)) is not None:
            say(f"plot: {write_pngs([curves], folder)[0]}")
    return results


def _measure_case(case: Case, places: Sequence[Kept]) -> dict[str, list[Figures]]:
    missing = [place for place in places if place.read() is None]
    store = Path()
    if missing:
        with Steps():
            store = prepare_dataset(case.config.dataset, case.config.store_dir, case.config.prepare.bytes)
            configs = {place.entry.config.world: place.entry.config for place in missing if place.entry.kind == "train"}
            for config in configs.values():
                prepare_partition(config, store)
        columns = open_dataset(store, verify=False).columns
        if WEIGHT in columns and uses_edge_weights(case.config):
            say(f"{case.name}: stock PyG is not measured with edge weights; its table has none")
            places = [place for place in places if not place.entry.form]
        if edge_width(columns, case.config):
            say(f"{case.name}: with edge features stock PyG is measured on an edge index, stock DGL not at all")
            places = [place for place in places if place.entry.kind != "stock" or place.entry.form == "edge_index"]
    runs: dict[str, list[Figures]] = {}
    for place in places:
        name = place.entry.name
        if name.endswith(NOT_STATIC) and not runs[name.removesuffix(NOT_STATIC)][-1]["cache_static"]:
            continue
        figures = place.read()
        if figures is None:
            say(f"{case.name}, round {place.round + 1}: {name}")
            figures = measure(place, store)
            place.write(figures)
        runs.setdefault(name, []).append(figures)
    return runs


def _write(folder: Path, table: BenchTableConfig, results: Sequence[Found]) -> None:
    content = {
        "about": machine() | {"table": dataclasses.asdict(table)},
        "cases": {
            measured.case.name: {
                "config": dataclasses.asdict(measured.case.config),
                "rows": measured.figures(),
                "runs": measured.runs,
            }
            for measured in results
        },
    }
    (folder / "table.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "table.md").write_text("\n".join(markdown(results)) + "\n")
