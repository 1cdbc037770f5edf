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
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from sargnn.bf16 import ROW_DTYPES, products_in_bf16
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, SargnnError
from sargnn.profile import AGGREGATION, CATEGORIES, EVALUATION, LINEAR, NODEWISE, PACKING, SHARDS
from sargnn.report.bench.settings import machine, open_folder
from sargnn.report.table import markdown_table
from sargnn.run.env import worker_environment

_ROWS, _WIDTH = 100_000, 256
_NEAR, _FAR, _BAG = 1000, 50_000, 200
_MESSAGE = 16 << 20
_MESSAGES = 8
_REPEATS = 5
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Roofline:
    """Rates, all cores together but for loopback's.

    Attributes:
        gemm_flops: floating-point operations per second of [100000, 256] x [256, 256], in the run's precision.
        gather_bytes_per_s: rows of 256 fp32, picked at random from a table of 1000 that a core's own cache holds, added up
            200 at a time: what an order of the nodes that keeps neighbours together could reach.
        far_gather_bytes_per_s: the same from a table of 50000 rows, 51 MB.
        copy_bytes_per_s: of a large copy, read and written; what stays in a cache is faster.
        loopback_bytes_per_s: gloo, between two processes, both ways together.
    """

    gemm_flops: float
    gather_bytes_per_s: float
    far_gather_bytes_per_s: float
    copy_bytes_per_s: float
    loopback_bytes_per_s: float


def better(roofline: Roofline, other: Roofline) -> Roofline:
    """The better of each rate: something else on the machine can only make it worse."""
    rates = asdict(other)
    return Roofline(**{name: max(rate, rates[name]) for name, rate in asdict(roofline).items()})


def measure_roofline(threads: int, precision: str) -> Roofline:
    """``measure`` in a process of its own, set up as workers are. Raises ``SargnnError`` where it fails."""
    command = [sys.executable, "-m", "sargnn.report.bench.epoch", str(threads), precision]
    done = subprocess.run(command, env=os.environ | worker_environment(threads), capture_output=True, text=True)
    if done.returncode:
        raise SargnnError("The machine's limits cannot be measured.", given=(done.stderr.strip().splitlines() or [""])[-1])
    return Roofline(**json.loads(done.stdout))


def measure(threads: int, precision: str) -> Roofline:
    """The best of five each. Takes about six seconds."""
    torch.set_num_threads(threads)
    rows, weight = (torch.randn(rows, _WIDTH).to(ROW_DTYPES[precision]) for rows in (_ROWS, _WIDTH))
    out = torch.empty_like(rows)
    with products_in_bf16() if precision == "mixed" else nullcontext():
        products_s = _seconds(lambda: torch.mm(rows, weight, out=out))
    return Roofline(
        gemm_flops=2 * _ROWS * _WIDTH**2 / products_s,
        gather_bytes_per_s=_gather(_NEAR),
        far_gather_bytes_per_s=_gather(_FAR),
        copy_bytes_per_s=2 * rows.numel() * rows.element_size() / _seconds(lambda: out.copy_(rows)),
        loopback_bytes_per_s=_loopback(),
    )


def _gather(table_rows: int) -> float:
    table, bags = torch.randn(table_rows, _WIDTH), torch.randint(table_rows, (4 * _ROWS // _BAG, _BAG))
    moved = bags.numel() + len(bags)  # rows read and written
    return moved * _WIDTH * 4 / _seconds(lambda: torch.nn.functional.embedding_bag(bags, table, mode="sum"))


def _seconds(call: Callable[[], object]) -> float:
    taken = []
    for number in range(1 + _REPEATS):
        started = time.perf_counter()
        call()
        if number:
            taken.append(time.perf_counter() - started)
    return min(taken)


def _loopback() -> float:
    """Bytes of both directions: two processes send to each other at once."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    answers = context.SimpleQueue()
    processes = [context.Process(target=_exchange, args=(rank, port, answers)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_TIMEOUT_S)
        if process.exitcode != 0:
            for child in processes:
                child.kill()
            raise SargnnError("The loopback's speed cannot be measured: gloo failed.")
    return float(2 * _MESSAGES * _MESSAGE / answers.get())


def _exchange(rank: int, port: int, answers: multiprocessing.SimpleQueue[float]) -> None:
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=_TIMEOUT_S))
    sent, received = torch.zeros(_MESSAGE // 4), torch.zeros(_MESSAGE // 4)

    def both_ways() -> None:
        for _ in range(_MESSAGES):
            works = [dist.isend(sent, 1 - rank), dist.irecv(received, 1 - rank)]
            for work in works:
                assert work is not None
                work.wait()

    taken = _seconds(both_ways)
    if rank == 0:
        answers.put(taken)
    dist.barrier()
    dist.destroy_process_group()


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
    """What a kind of shard takes of an epoch's aggregation: core-seconds, and edges that were folded or went back, of all
    workers."""

    name: str
    core_s: float
    edges: float


@dataclass(frozen=True)
class Part:
    """One part of an epoch.

    Attributes:
        seconds: mean over the workers.
        core_s: of all workers; what other threads than the computing ones do meanwhile is counted where it happens.
        work: floating-point operations or bytes, of all workers.
        limit_core_s: core-seconds at the machine's limit; None for a part that has none.
    """

    name: str
    seconds: float
    core_s: float
    work: float
    limit_core_s: float | None

    @property
    def share_of_limit(self) -> float | None:
        """1 is the limit; None: there is none."""
        return self.limit_core_s / self.core_s if self.limit_core_s and self.core_s else None


def run(config: RunConfig, bench_dir: Path) -> tuple[list[tuple[str, ...]], str, Path]:
    """Measure the machine, train, measure it again; write ``epoch.json`` and ``epoch.md`` into ``bench_dir``.

    Returns:
        The table's cells, as ``HEADS`` names them, the machine's limits in one line, and the run's folder.

    Raises ``SargnnError``: as ``run.local.train``; also if the folder cannot be written, the mode's work is not counted, or the
    run ends after one epoch.
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
    """Only the kinds of shards that there were."""
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
    names = ("gemm_flops", "gather_bytes_per_s", "far_gather_bytes_per_s", "copy_bytes_per_s", "loopback_bytes_per_s")
    gemm, near, far, copy, loopback = (getattr(roofline, name) / 1e9 for name in names)
    return (
        f"limits, all cores: {gemm:.0f} GFLOP/s of products, {near:.0f} GB/s of rows gathered from a cache ({far:.0f} "
        f"from 51 MB), {copy:.1f} GB/s copied; {loopback:.1f} GB/s by loopback between two processes"
    )


def markdown(parts: Sequence[Part], cores: int, shards: Sequence[ShardPart] = ()) -> list[str]:
    return markdown_table(HEADS, rows_of(parts, cores, shards))


if __name__ == "__main__":
    print(json.dumps(asdict(measure(int(sys.argv[1]), sys.argv[2]))))
