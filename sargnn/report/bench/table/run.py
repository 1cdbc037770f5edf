"""Rounds of a table: every entry of a case in turn, and again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from sargnn.engine.modes import MODES
from sargnn.partition import PARTITIONERS
from sargnn.partition.prepare import prepare_partition
from sargnn.report.bench.report import machine, open_folder
from sargnn.report.bench.settings import BenchTableConfig
from sargnn.report.bench.table.entries import NOT_STATIC, Case, entries_of, reasons_without_stock
from sargnn.report.bench.table.measure import Figures, Kept, measure
from sargnn.report.bench.table.report import Found, markdown, plot
from sargnn.resolve import resolve
from sargnn.sources.prepare import prepare_dataset
from sargnn.tracking.progress import Steps, say

FILES = "table.md", "table.json"


def run(table: BenchTableConfig, cases: Sequence[Case]) -> list[Found]:
    """Measure what is not there yet; write ``table.md``, ``table.json`` and ``memory-CASE.png`` into ``bench_dir``.

    Raises:
        SargnnError: what a user can cause; a row that fails, with the end of what it printed.
    """
    for mode in table.modes:
        resolve("mode", MODES, mode)
    for case in cases:
        resolve("partitioner", PARTITIONERS, case.config.partitioner.name)
    folder = Path(table.bench_dir)
    open_folder(folder, FILES)
    planned = [[Kept(folder, case, entry, number) for entry, number in entries_of(case, table)] for case in cases]
    kept = sum(place.read() is not None for places in planned for place in places)
    if kept:
        say(f"{kept} measurements are in {folder} and are kept")
    results: list[Found] = []
    for case, places in zip(cases, planned, strict=True):
        for reason in reasons_without_stock(case) if table.stock else []:
            say(f"{case.name}: {reason}; its table has no stock DGL")
        measured = _measure_case(case, places)
        results.append(measured)
        _write(folder, table, results)
        if curves := plot(folder / f"memory-{case.name}.png", measured):
            say(f"plot: {curves}")
    return results


def _measure_case(case: Case, places: Sequence[Kept]) -> Found:
    missing = [place for place in places if place.read() is None]
    store = Path()
    if missing:
        with Steps():
            store = prepare_dataset(case.config.dataset, case.config.store_dir, case.config.prepare.bytes)
            configs = {place.entry.config.world: place.entry.config for place in missing if place.entry.kind == "train"}
            for config in configs.values():
                prepare_partition(config, store)
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
    return Found(case, runs)


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
