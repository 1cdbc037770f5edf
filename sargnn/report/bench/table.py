"""A table's rows from its measurements: medians over all rounds, ratios to stock DGL, PyG and the baseline mode, a plot."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, cast

from sargnn.config.groups import PRECISIONS
from sargnn.profile import EVALUATION, EXCHANGE_WAIT
from sargnn.report.bench.entries import (
    AFTER,
    BEFORE,
    HUGE,
    LIMITS,
    NOT_STATIC,
    ONE_PROCESS,
    PROFILED,
    PYG,
    STOCK,
    Case,
    Figures,
)
from sargnn.report.bench.epoch import Roofline, better, limit_line, parts_of
from sargnn.report.bench.epoch import markdown as parts_markdown
from sargnn.report.charts import Chart, Picture, Series
from sargnn.tracking.memory import human_bytes
from sargnn.tracking.tables import show_table

BASELINE = "domain_parallel"
OPTIMIZER_TABLES = 2
"""Of the embeddings' size: Adam's two moments."""


@dataclass(frozen=True)
class Found:
    """A case's measurements. ``runs``: name of a row -> figures of each round; ``absent``: name of one that could not be
    measured -> why."""

    case: Case
    runs: dict[str, list[Figures]]
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def timed(self) -> dict[str, list[Figures]]:
        """Without the machine's limits and the profiled run."""
        return {name: runs for name, runs in self.runs.items() if not name.startswith(LIMITS) and not name.endswith(PROFILED)}

    def figures(self) -> list[dict[str, Any]]:
        """The rows, as numbers.

        ``epoch_s``: median, smallest and largest over the epochs of all rounds, the first of each run left out.
        ``peaks_bytes``: of each worker, medians over the rounds; ``peak_bytes``: the largest of them. ``waiting``: for peers,
        collectives included, as a share of the epoch: of the worker that waits most, and the mean over the workers. Of stock
        PyG's forms the better is a row: the one that takes less time, and where that is the other one, that takes less memory.
        ``epoch_to_better``, ``peak_to_better``: to stock DGL or stock PyG, whichever takes less, which ``better_epoch`` and
        ``better_peak`` name. A row that was out of memory has no figures.
        """
        rows = [_row(name, runs) for name, runs in self.timed.items()]
        forms = [row for row in rows if row["name"] in PYG.values()]
        by_name = {row["name"]: row for row in rows}
        best = [_least(forms, key) for key in ("epoch_s", "peak_bytes")]
        rows = [row for row in rows if row not in forms or row in best or (row is forms[0] and best == [None, None])]
        for row in rows:
            for figure, key, form in zip(("epoch", "peak"), ("epoch_s", "peak_bytes"), best, strict=True):
                peer = _least([stock for stock in (by_name.get(STOCK), form) if stock is not None], key)
                row[f"better_{figure}"] = None if peer is None else peer["name"]
                row[f"{figure}_to_better"] = _ratio(row, peer, key)
                row[f"{figure}_to_pyg"] = _ratio(row, form, key)
            row["epoch_to_stock"] = _ratio(row, by_name.get(STOCK), "epoch_s")
            row["epoch_to_huge"] = _ratio(row, by_name.get(HUGE), "epoch_s")
            row["peak_to_stock"] = _ratio(row, by_name.get(STOCK), "peak_bytes")
            mode, _, rest = row["name"].removesuffix(NOT_STATIC).partition(", world ")
            world = rest.partition(",")[0]
            baseline = by_name.get(f"{BASELINE}, world {world}")
            own = by_name.get(f"{mode}, world {world}")
            row["peak_to_own"], row["bytes_to_own"] = (_ratio(row, own, key) for key in ("peak_bytes", "bytes_per_epoch"))
            own_cores = ONE_PROCESS not in row["name"]  # its one process has all cores
            row["epoch_to_baseline"] = _ratio(row, baseline, "epoch_s") if own_cores else None
            row["peak_to_baseline"] = _ratio(row, baseline, "peak_bytes")
        return rows

    def limits(self, name: str) -> tuple[Roofline, Roofline] | None:
        """The machine's limits before and after a profiled run; of a run in a further precision those that stand behind it."""
        precision = name.removesuffix(PROFILED).rpartition(", ")[2]
        names = (f"{LIMITS}, {precision}",) * 2 if f"{LIMITS}, {precision}" in self.runs else (BEFORE, AFTER)
        if any(key not in self.runs for key in names):
            return None
        before, after = (Roofline(**self.runs[key][0]) for key in names)
        return before, after


def _row(name: str, runs: Sequence[Figures]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "out_of_memory": next((run["out_of_memory"] for run in runs if "out_of_memory" in run), None),
        "epoch_s": None,
        "peaks_bytes": [],
        "peak_bytes": None,
        "waiting": None,
        "bytes_per_epoch": None,
        "startup_s": None,
        "static_aggregate": None,
        "peak_without_tables_bytes": None,
    }
    if row["out_of_memory"]:
        return row
    times = [time for run in runs for time in run["times_s"]]
    peaks = [median(peaks) for peaks in zip(*(run["peak_train_bytes"] for run in runs), strict=True)]
    row |= {"epoch_s": [median(times), min(times), max(times)], "peaks_bytes": peaks, "peak_bytes": max(peaks)}
    if "waits_s" not in runs[0]:
        return row
    waits = ([wait for run in runs for wait in run[key]] for key in ("waits_s", "mean_waits_s"))
    row["waiting"] = [median(each) / median(times) for each in waits]
    row["bytes_per_epoch"] = runs[0]["comm_bytes_per_epoch"]
    row["startup_s"] = median(run["startup_time_s"] for run in runs)
    row["static_aggregate"] = runs[0]["cache_static"]
    if any(runs[0]["sharded_params"]):  # learnable rows: less their optimizer's tables, fp32
        tables = [OPTIMIZER_TABLES * 4 * numbers for numbers in runs[0]["sharded_params"]]
        row["peak_without_tables_bytes"] = max(peak - table for peak, table in zip(peaks, tables, strict=True))
    return row


def _least(rows: Sequence[dict[str, Any]], key: str) -> dict[str, Any] | None:
    """None where none was not out of memory."""
    return min((row for row in rows if row[key] is not None), key=lambda row: row[key], default=None)


def _ratio(row: dict[str, Any], other: dict[str, Any] | None, key: str) -> float | None:
    if other is None or row[key] is None or other[key] is None:
        return None
    own, two = (each[key][0] if isinstance(each[key], list) else each[key] for each in (row, other))
    return own / two if two else None


HEADS = (
    "model",
    "run",
    "static",
    "epoch s",
    "epoch / DGL",
    "/ DGL, huge pages",
    "/ PyG",
    f"/ {BASELINE}",
    "peak of a worker",
    "peak / DGL",
    "/ PyG",
    f"/ {BASELINE}",
    "waiting: most, mean",
    "exchanged",
    "start-up s",
    "peak of each, MB",
)
_TABLES = "peak less embeddings' optimizer"
_TO_OWN = "peak / {0}", "exchanged / {0}"


def markdown(results: Sequence[Found]) -> list[str]:
    """The table of all cases; below it the runs beside the better of stock DGL and stock PyG, and the profiled runs."""
    rows = [(measured, row) for measured in results for row in measured.figures()]
    embedded = any(row["peak_without_tables_bytes"] is not None for _, row in rows)
    further = any(row["name"].endswith(PRECISIONS) for _, row in rows)
    own = results[0].case.config.precision if results else ""
    heads = [*HEADS, *([_TABLES] if embedded else []), *(head.format(own) for head in _TO_OWN if further)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for measured, row in rows:
        cells = [
            measured.case.name,
            row["name"],
            {None: "-", True: "on", False: "off"}[row["static_aggregate"]],
            " ".join(spread(row["epoch_s"])),
            *(_two(row[key]) for key in ("epoch_to_stock", "epoch_to_huge", "epoch_to_pyg", "epoch_to_baseline")),
            _bytes(row["peak_bytes"]),
            *(_two(row[key]) for key in ("peak_to_stock", "peak_to_pyg", "peak_to_baseline")),
            waiting(row),
            _bytes(row["bytes_per_epoch"]),
            "-" if row["startup_s"] is None else f"{row['startup_s']:.1f}",
            " ".join(f"{peak / 1e6:.0f}" for peak in row["peaks_bytes"]),
            *([_bytes(row["peak_without_tables_bytes"])] if embedded else []),
            *((_two(row["peak_to_own"]), _two(row["bytes_to_own"])) if further else ()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for measured in results:
        for name, why in measured.absent.items():
            lines.append(f"| {measured.case.name} | {name}: {why} {'| - ' * (len(heads) - 2)}|")
    lines += _beside_better(rows)
    for measured in results:
        for name, runs in measured.runs.items():
            if name.endswith(PROFILED):
                lines += _profile_lines(measured, name, runs[0])
    return lines


def _beside_better(rows: Sequence[tuple[Found, dict[str, Any]]]) -> list[str]:
    """README's table: each run of this project beside the peer that takes less, of time and of memory; nothing without one."""
    lines = [
        f"| {measured.case.name} | {row['name']} | {_two(row['peak_to_better'])} of {row['better_peak']} "
        f"| {_two(row['epoch_to_better'])} of {row['better_epoch']} |"
        for measured, row in rows
        if row["better_epoch"] is not None and row["waiting"] is not None
    ]
    heads = [
        "",
        "**Beside the better of stock DGL and stock PyG**",
        "",
        "| model | run | a worker's memory | time of an epoch |",
    ]
    return [*heads, "|---|---|---|---|", *lines] if lines else []


def _profile_lines(measured: Found, name: str, figures: Figures) -> list[str]:
    limits = measured.limits(name)
    if limits is None:
        return []
    cores = len(os.sched_getaffinity(0))
    roofline = better(*limits)
    waits = figures["profile_s"][EXCHANGE_WAIT]
    whole = sum(sum(seconds) for part, seconds in figures["profile_s"].items() if part != EVALUATION) / len(waits)
    return [
        "",
        f"**{measured.case.name}, {name}**: waiting for the exchange alone {max(waits) / whole:.0%} of the epoch for the "
        f"worker that waits most; {limit_line(roofline)}",
        "",
        *parts_markdown(parts_of(figures, cores, roofline), cores),
    ]


def spread(times: Sequence[float] | None) -> tuple[str, ...]:
    """Median, and (smallest-largest); of a row without times that it was out of memory."""
    if times is None:
        return ("out of memory",)
    middle, low, high = times
    digits = 2 if middle >= 0.1 else 3
    return f"{middle:.{digits}f}", f"({low:.{digits}f}-{high:.{digits}f})"


def waiting(row: dict[str, Any]) -> str:
    return "-" if row["waiting"] is None else ", ".join(f"{share:.0%}" for share in row["waiting"])


def _two(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _bytes(count: float | None) -> str:
    return "-" if count is None else human_bytes(count)


def show(results: Sequence[Found]) -> None:
    """Print the table to stdout, 80 columns; ratios are to the better of stock DGL and stock PyG."""
    for measured in results:
        rows: list[tuple[str, ...]] = []
        for row in measured.figures():
            run, _, rest = row["name"].partition(", world ")
            world, _, static = rest.partition(", ")
            rows.append(
                (
                    run + (f", {static}" if static else ""),
                    world or str(len(row["peaks_bytes"]) or 1),
                    "\n".join(spread(row["epoch_s"])),
                    _two(row["epoch_to_better"]),
                    _bytes(row["peak_bytes"]),
                    _two(row["peak_to_better"]),
                    "-" if row["waiting"] is None else f"{row['waiting'][0]:.0%}",
                )
            )
        rows += [(f"{name}: {why}", *["-"] * 6) for name, why in measured.absent.items()]
        title = f"{measured.case.name}: {measured.case.config.model.name} on {measured.case.config.dataset.name}"
        show_table(("run", "world", "epoch s", "/ stock", "peak", "/ stock", "waiting"), rows, title=title, words=("run",))


def picture(measured: Found) -> Picture | None:
    """Largest worker's peak against the number of workers, a line per mode; None: there is one number of workers only."""
    curves: dict[str, dict[int, float]] = {}
    for row in measured.figures():
        mode, _, world = row["name"].partition(", world ")
        if world.isdigit():
            curves.setdefault(mode, {})[int(world)] = row["peak_bytes"] / 1e6
    worlds = sorted({world for curve in curves.values() for world in curve})
    if len(worlds) < 2:
        return None
    series = [Series.over_seeds(mode, curve, [[peak] for peak in curve.values()]) for mode, curve in curves.items()]
    rows = {row["name"]: row for row in measured.figures()}
    if (peer := next(iter(rows.values()))["better_peak"]) is not None:
        peak = rows[peer]["peak_bytes"] / 1e6
        series.append(Series.over_seeds(f"{peer}, one process", worlds, [[peak]] * len(worlds)))
    config, model = measured.case.config, cast(Any, measured.case.config.model)
    heads = f"{model.heads} x " if hasattr(model, "heads") else ""
    sizes = f" {model.num_layers} x {heads}{model.hidden}" if hasattr(model, "hidden") else ""
    title = f"{model.name}{sizes} on {config.dataset.name}, partitioner {config.partitioner.name}"
    chart = Chart("workers", f"{title}\npeak training memory of a worker, MB", "workers", series)
    return Picture(f"memory-{measured.case.name}", title, [chart])
