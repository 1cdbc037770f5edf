"""Where an epoch's time goes, and how near each part comes to the machine's limit, measured in the same run.

Time is counted in core-seconds, for workers take turns where there are more of them than cores. A part's work, summed over
the workers, divided by what one core can do while all are busy, is what it would cost at the limit; that, divided by what it
did cost, is its percent of the limit. The last row sets all parts together against cores x seconds, idle cores included.
Waiting, and what else moves no bytes of its own, has no limit.

The limit of gathers is that of rows that lie in a core's own cache, which no order of the nodes can pass. That of copies is
one of large tables: rows packed into a small message, or read while a cache still has them, can pass it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.profile import AGGREGATION, CATEGORIES, EVALUATION, LINEAR, NODEWISE, PACKING, SHARDS
from sargnn.report.bench.report import machine, open_folder
from sargnn.report.bench.roofline import Roofline, better, measure_roofline

FILES = "epoch.json", "epoch.md"
HEADS = ("part", "seconds", "share", "core-s", "work", "at limit", "of limit")
_LIMITS = {
    LINEAR: "gemm_flops",
    AGGREGATION: "gather_bytes_per_s",
    NODEWISE: "copy_bytes_per_s",
    PACKING: "copy_bytes_per_s",
}


@dataclass(frozen=True)
class ShardPart:
    """What a kind of shard takes of an epoch's aggregation.

    Attributes:
        core_s: core-seconds, all workers together.
        edges: that were folded or went back, all workers together.
    """

    name: str
    core_s: float
    edges: float


@dataclass(frozen=True)
class Part:
    """One part of an epoch.

    Attributes:
        seconds: mean over the workers.
        core_s: core-seconds, all workers together; what other threads than the computing ones do meanwhile is counted where it
            happens.
        work: floating-point operations or bytes, all workers together.
        limit_core_s: core-seconds at the machine's limit; None for a part that has none.
    """

    name: str
    seconds: float
    core_s: float
    work: float
    limit_core_s: float | None

    @property
    def share_of_limit(self) -> float | None:
        """1 is the limit; None where there is none."""
        return self.limit_core_s / self.core_s if self.limit_core_s and self.core_s else None


def run(config: RunConfig, bench_dir: Path) -> tuple[list[tuple[str, ...]], str, Path]:
    """Measure the machine, train, measure it again; write ``epoch.json`` and ``epoch.md`` into ``bench_dir``.

    Returns:
        The table's cells, as ``HEADS`` names them, the machine's limits in one line, and the run's folder.

    Raises:
        SargnnError: as ``run.local.train``; also if the folder cannot be written, the mode's work is not counted, or the run
            ends after one epoch.
    """
    from sargnn.run.check import check_strategies
    from sargnn.run.env import prepare_process, with_processes
    from sargnn.run.local import train

    config = prepare_process(with_processes(config))
    config = config.stand_in
    check_strategies(config)
    if config.mode.name not in (counted := counted_modes()):
        raise ConfigError("What this mode's operators do is not counted.", given=f"mode={config.mode.name}", allowed=counted)
    open_folder(bench_dir, FILES)
    cores = len(os.sched_getaffinity(0))
    before = measure_roofline(cores, config.precision)
    result, run_dir = train(config)
    summary = result.as_dict()
    if len(summary["losses"]) < 2:
        raise ConfigError("The run ended after its first epoch, which is left out.", given=f"model={config.model.name}")
    rooflines = before, measure_roofline(cores, config.precision)
    roofline = better(*rooflines)
    parts, shards, limits = parts_of(summary, cores, roofline), shards_of(summary), limit_line(roofline)
    about = {
        "config_hash": config.config_hash,
        "world": config.world,
        "threads": config.threads,
        "mode": config.mode.name,
        "model": config.model.name,
        "dataset": config.dataset.name,
        "kernel": summary["kernel"],
        "partitioner": config.partitioner.name,
        "prefetch_depth": config.comm.prefetch_depth,
        "cores": cores,
    }
    content = {
        "about": machine() | about,
        "roofline": asdict(roofline),
        "rooflines": [asdict(measured) for measured in rooflines],
        "parts": [{**vars(part), "share_of_limit": part.share_of_limit} for part in parts],
        "shards": [vars(shard) for shard in shards],
        "epoch_time_s": summary["epoch_time_s"],
        "comm_wait_time_s": summary["comm_wait_time_s"],
    }
    for name, text in zip(
        FILES, (json.dumps(content, indent=1), "\n".join([*markdown(parts, cores, shards), "", limits])), strict=True
    ):
        (bench_dir / name).write_text(text + "\n")
    return rows_of(parts, cores, shards), limits, run_dir


def counted_modes() -> list[str]:
    """Modes whose operators count the work that they do."""
    from sargnn.engine.modes import MODES
    from sargnn.resolve import resolve

    return [name for name in MODES if not resolve("mode", MODES, name).is_baseline]


def parts_of(summary: dict[str, Any], cores: int, roofline: Roofline) -> list[Part]:
    """A profiled run's parts. Evaluation is no part of an epoch."""
    rates, parts = asdict(roofline), []
    for name in CATEGORIES:
        if name == EVALUATION:
            continue
        seconds, done = summary["profile_s"][name], sum(summary["profile_work"][name])
        limit = cores * done / rates[_LIMITS[name]] if name in _LIMITS and done else None
        parts.append(Part(name, sum(seconds) / len(seconds), sum(summary["profile_cpu_s"][name]), done, limit))
    return parts


def shards_of(summary: dict[str, Any]) -> list[ShardPart]:
    """A profiled run's aggregation, by the kind of shard; those that there were."""
    seconds, edges = (summary[f"profile_shard_{what}"] for what in ("cpu_s", "edges"))
    return [ShardPart(name, sum(seconds[name]), sum(edges[name])) for name in SHARDS if sum(seconds[name])]


def rows_of(parts: Sequence[Part], cores: int, shards: Sequence[ShardPart] = ()) -> list[tuple[str, ...]]:
    """The table's cells, as ``HEADS`` names them. ``cores``: that all workers share."""
    total = sum(part.seconds for part in parts)
    rows: list[tuple[str, ...]] = []
    for part in parts:
        unit = "GFLOP" if part.name == LINEAR else "GB"
        work = f"{part.work / 1e9:.1f} {unit}" if part.work else ""
        limit = "" if part.limit_core_s is None else f"{part.limit_core_s:.2f}"
        share = "" if part.share_of_limit is None else f"{part.share_of_limit:.0%}"
        seconds, of_all = f"{part.seconds:.3f}", f"{part.seconds / total:.0%}"
        rows.append((part.name, seconds, of_all, f"{part.core_s:.2f}", work, limit, share))
        for shard in shards if part.name == AGGREGATION else ():
            each = f"{shard.core_s / shard.edges * 1e9:.0f} ns" if shard.edges else ""
            rows.append((f" {shard.name}", "", "", f"{shard.core_s:.2f}", f"{shard.edges / 1e6:.1f} M edges", "", each))
    at_limit = sum(part.limit_core_s or 0 for part in parts)
    spent = sum(part.core_s for part in parts)
    rows.append(("all", f"{total:.3f}", "100%", f"{spent:.2f}", "", f"{at_limit:.2f}", f"{at_limit / (cores * total):.0%}"))
    return rows


def limit_line(roofline: Roofline) -> str:
    """The machine's limits in one line."""
    names = ("gemm_flops", "gather_bytes_per_s", "far_gather_bytes_per_s", "copy_bytes_per_s", "loopback_bytes_per_s")
    gemm, near, far, copy, loopback = (getattr(roofline, name) / 1e9 for name in names)
    return (
        f"limits, all cores: {gemm:.0f} GFLOP/s of products, {near:.0f} GB/s of rows gathered from a cache ({far:.0f} "
        f"from 51 MB), {copy:.1f} GB/s copied; {loopback:.1f} GB/s by loopback between two processes"
    )


def markdown(parts: Sequence[Part], cores: int, shards: Sequence[ShardPart] = ()) -> list[str]:
    """The table, for a log."""
    rows = rows_of(parts, cores, shards)
    return [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
