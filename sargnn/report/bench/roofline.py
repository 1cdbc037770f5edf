"""What this machine can do at best, measured with all cores at once: the roof that an epoch's parts are set against; and what
workers of a run's kind can send each other."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch

from sargnn.bf16 import ROW_DTYPES, products_in_bf16
from sargnn.errors import SargnnError
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
    command = [sys.executable, "-m", "sargnn.report.bench.roofline", str(threads), precision]
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
    """Two processes that send to each other at once; bytes of both directions."""
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


if __name__ == "__main__":
    print(json.dumps(asdict(measure(int(sys.argv[1]), sys.argv[2]))))
