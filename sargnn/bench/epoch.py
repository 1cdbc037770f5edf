"""Where an epoch's time goes, and how near each part comes to the machine's limit, measured in the same run.

A part's work, summed over the workers, divided by what all cores together can do, is the time that it would take at the
limit; that, divided by the time that it took (mean over the workers), is its percent of the limit. Waiting and what else moves
no bytes of its own have none.

The limit of gathers is that of rows that lie in a core's own cache, which no order of the nodes can pass.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sargnn.bench.report import machine
from sargnn.bench.roofline import Roofline, measured
from sargnn.config import RunConfig
from sargnn.spans import AGGREGATION, CATEGORIES, EVALUATION, EXCHANGE_WAIT, LINEAR, NODEWISE, PACKING

_LIMITS = {
    LINEAR: "gemm_flops", AGGREGATION: "gather_bytes_per_s", NODEWISE: "copy_bytes_per_s", PACKING: "copy_bytes_per_s",
    EXCHANGE_WAIT: "loopback_bytes_per_s",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One part of an epoch.

    Attributes:
        seconds: mean over the workers. work: floating-point operations or bytes, all workers together.
        limit_s: at the machine's limit; None for a part that has none.
    """

    name: str
    seconds: float
    work: float
    limit_s: float | None

    @property
    def share_of_limit(self) -> float | None:
        """1 is the limit; None for waiting, and where there is none."""
        return self.limit_s / self.seconds if self.limit_s and self.seconds and self.name != EXCHANGE_WAIT else None


@dataclass(frozen=True)
class EpochReport:
    """What ``run`` found.

    Attributes:
        rooflines: before and after the run. summary: the run's.
    """

    parts: list[Part]
    rooflines: tuple[Roofline, Roofline]
    summary: dict[str, Any]
    run_dir: Path

    @property
    def roofline(self) -> Roofline:
        """The better of both: something else on the machine can only make it worse."""
        one, other = (roofline.as_row() for roofline in self.rooflines)
        return Roofline(**{name: max(one[name], other[name]) for name in one})

    @property
    def heads(self) -> tuple[str, ...]:
        """Of the table's columns."""
        return HEADS

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The table's cells."""
        return rows_of(self)

    @property
    def limits(self) -> str:
        """The machine's limits in one line."""
        return limit_line(self.roofline)


def run(config: RunConfig, bench_dir: Path) -> EpochReport:
    """Measure the machine, train, measure it again; write ``epoch.json`` and ``epoch.md`` into ``bench_dir``.

    Raises:
        SargnnError: as ``launch.local.train``.
    """
    from sargnn.launch.local import train

    cores = len(os.sched_getaffinity(0))
    before = measured(cores)
    summary, run_dir = train(config)
    rooflines = before, measured(cores)
    report = EpochReport([], rooflines, summary, run_dir)
    report = EpochReport(parts_of(summary, report.roofline), rooflines, summary, run_dir)
    bench_dir.mkdir(parents=True, exist_ok=True)
    content = {
        "about": machine() | {"config_hash": config.config_hash, "world": config.world, "mode": config.mode.name},
        "roofline": report.roofline.as_row(), "rooflines": [one.as_row() for one in rooflines],
        "parts": [{**vars(part), "share_of_limit": part.share_of_limit} for part in report.parts],
        "epoch_time_s": summary["epoch_time_s"], "comm_wait_time_s": summary["comm_wait_time_s"],
    }  # fmt: skip
    (bench_dir / "epoch.json").write_text(json.dumps(content, indent=1) + "\n")
    (bench_dir / "epoch.md").write_text("\n".join(markdown(report)) + "\n")
    return report


def parts_of(summary: dict[str, Any], roofline: Roofline) -> list[Part]:
    """A profiled run's parts. Evaluation is no part of an epoch."""
    rates, parts = roofline.as_row(), []
    for name in CATEGORIES:
        if name == EVALUATION:
            continue
        seconds, done = summary["profile_s"][name], sum(summary["profile_work"][name])
        limit = done / rates[_LIMITS[name]] if name in _LIMITS and done else None
        parts.append(Part(name, sum(seconds) / len(seconds), done, limit))
    return parts


def rows_of(report: EpochReport) -> list[tuple[str, ...]]:
    """The table's cells: part, seconds, share of the epoch, work, seconds at the limit, percent of it."""
    total = sum(part.seconds for part in report.parts)
    rows: list[tuple[str, ...]] = []
    for part in report.parts:
        unit = "GFLOP" if part.name == LINEAR else "GB"
        work = f"{part.work / 1e9:.1f} {unit}" if part.work else ""
        limit = "" if part.limit_s is None else f"{part.limit_s:.3f}"
        share = "" if part.share_of_limit is None else f"{part.share_of_limit:.0%}"
        rows.append((part.name, f"{part.seconds:.3f}", f"{part.seconds / total:.0%}", work, limit, share))
    at_limit = sum(part.limit_s or 0 for part in report.parts if part.name != EXCHANGE_WAIT)
    rows.append(("all", f"{total:.3f}", "100%", "", f"{at_limit:.3f}", f"{at_limit / total:.0%}"))
    return rows


HEADS = ("part", "seconds", "share", "work", "at the limit, s", "of the limit")


def limit_line(roofline: Roofline) -> str:
    """The machine's limits in one line."""
    names = ("gemm_flops", "gather_bytes_per_s", "far_gather_bytes_per_s", "copy_bytes_per_s", "loopback_bytes_per_s")
    gemm, near, far, copy, loopback = (roofline.as_row()[name] / 1e9 for name in names)
    return (
        f"limits, all cores: {gemm:.0f} GFLOP/s of products, {near:.0f} GB/s of rows gathered from a cache ({far:.0f} "
        f"from 51 MB), {copy:.1f} GB/s copied, "
        f"{loopback:.1f} GB/s by loopback"
    )


def markdown(report: EpochReport) -> list[str]:
    """The table, for a log."""
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows_of(report)), "", limit_line(report.roofline)]
