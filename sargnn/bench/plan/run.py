"""Plans each run, trains it, and sets both side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sargnn.bench.plan.report import head, line, markdown
from sargnn.bench.plan.rows import QUANTITIES, Point, Row, as_json, errors_of, measured_figures, planned_figures
from sargnn.bench.report import machine, open_folder
from sargnn.bench.settings import BenchPlanConfig
from sargnn.bench.table.entries import Case, Entry
from sargnn.bench.table.processes import measure
from sargnn.bench.table.results import Kept
from sargnn.data.dataset import open_dataset
from sargnn.data.prepare import prepare_dataset
from sargnn.errors import SargnnError
from sargnn.launch.plans import Plans, cut_key
from sargnn.launch.rates import outline_of, predict
from sargnn.partition.prepare import prepare_partition
from sargnn.tracking.progress import Steps, say

FILES = "plan.md", "plan.json"


def run(settings: BenchPlanConfig, points: Sequence[Point]) -> list[Row]:
    """Compare; prints each row once it is there; writes ``plan.md`` and ``plan.json`` into ``bench_dir``.

    Runs that are there are kept; plans are made anew.

    Raises:
        SargnnError: the folder cannot be written, or holds a run with other settings.
    """
    folder = Path(settings.bench_dir)
    open_folder(folder, FILES)
    places = [
        Kept(folder, Case(wanted.case, wanted.config), Entry("train", wanted.name, wanted.config), 0) for wanted in points
    ]
    if kept := sum(place.read() is not None for place in places):
        say(f"{kept} runs are in {folder} and are kept")
    planner, rows = _Planner(settings.times), []
    print("\n".join(head()), flush=True)
    for point, place in zip(points, places, strict=True):
        rows.append(_compare(point, place, planner))
        print(line(rows[-1]), flush=True)
        _write(folder, settings, rows)
    return rows


class _Planner:
    """Plans runs. Keeps the newest cut, which the modes of a model share."""

    def __init__(self, times: bool) -> None:
        self._times = times
        self._newest: tuple[tuple[Path, str], Plans] | None = None

    def plan(self, row: Row, store: Path) -> Row:
        """With the plan of the partition that is there. Raises ``SargnnError``: it is not planned."""
        config = row.point.config
        key = store, cut_key(config)
        if self._newest is None or key != self._newest[0]:
            self._newest = key, Plans(open_dataset(store, verify=False), store.name)
        plans = self._newest[1]
        plan = plans.plan(config)
        time = None
        if self._times:
            time = predict(config, outline_of(plans.dataset), plans.cut(config).parts, plan.sent)
        return dataclasses.replace(row, planned=planned_figures(plan, time), phase=plan.largest.phase)


def _compare(point: Point, place: Kept, planner: _Planner) -> Row:
    row = Row(point)
    config = point.config
    with Steps():
        store = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
        prepare_partition(config, store)
        try:
            row = planner.plan(row, store)
        except SargnnError as error:
            row = dataclasses.replace(row, fault=_first_line(error))
        except Exception as error:  # a defect of the planner's, which the row shows; the other rows go on
            row = dataclasses.replace(row, fault=f"the planner broke: {type(error).__name__}: {error}", broken=True)
    figures = place.read()
    if figures is None:
        say(f"training {point.case}, {point.name}")
        try:
            figures = measure(place, store)
        except SargnnError as error:
            say(str(error))
            return Row(point, fault=_last_line(error))
        place.write(figures)
    return dataclasses.replace(row, measured=measured_figures(figures))


def _first_line(error: SargnnError) -> str:
    return str(error).splitlines()[0].rstrip(".")


def _last_line(error: SargnnError) -> str:
    """Of what a failed process printed, before the hint."""
    return [text for text in str(error).splitlines() if not text.startswith("  next:")][-1].strip()


def _write(folder: Path, settings: BenchPlanConfig, rows: Sequence[Row]) -> None:
    errors: dict[str, Any] = {}
    for name in QUANTITIES:
        of_quantity = errors_of(rows, name)
        if of_quantity is not None:
            worst = {"worst": of_quantity.worst, "of": f"{of_quantity.row.point.case}, {of_quantity.row.point.name}"}
            errors[name] = {"mean": of_quantity.mean, **worst, "runs": of_quantity.count}
    content = {
        "about": machine() | {"plan": dataclasses.asdict(settings)},
        "errors": errors,
        "rows": [as_json(row) for row in rows],
    }
    (folder / "plan.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "plan.md").write_text("\n".join(markdown(rows)) + "\n")
