"""A cached pool of worker processes per world size, so that hundreds of distributed cases cost one start-up.

Workers are forked from a server that has imported everything (``tests/preload.py``): they start at once and share its memory.
"""

from __future__ import annotations

import atexit
import signal
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sargnn.comm.group import Group
from sargnn.engine import pool as engine_pool
from sargnn.launch.compile import warm_up
from sargnn.partition.cut import parts_of
from tests.graphs import assign, nasty_graph, typed_graph
from tests.in_process import fork_server

_POOLS: dict[int, Pool] = {}


def _serve(rank: int, world: int, store: str, pipe: Connection) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # which the server ignores
        signal.signal(number, signal.SIG_DFL)
    torch.set_num_threads(1)
    _pool_everything()
    group = Group.single()
    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
        )
        group = Group(rank, world, dist.group.WORLD)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        function, arguments = task
        try:
            pipe.send((True, function(group, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


def _pool_everything() -> None:
    """Tables of any size come from the engine's pool, full of NaN: who leaves a row out or reads what was let go is found."""
    shaped = engine_pool._shaped

    def poisoned(flat: torch.Tensor, rows: int, width: int) -> torch.Tensor:
        return shaped(flat.fill_(torch.nan) if flat.is_floating_point() else flat, rows, width)

    engine_pool.SMALLEST, engine_pool._shaped = 1, poisoned


@cache
def _compile() -> None:
    """Everything once, into Numba's cache, instead of in every process."""
    warm_up()
    for graph in (nasty_graph(), typed_graph()):
        list(parts_of(graph, assign(graph, "random", 2), 2))


class Pool:
    """``world`` processes in one gloo group; each call runs a module-level function on every rank."""

    def __init__(self, world: int) -> None:
        _compile()
        context = fork_server()
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(world):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world, store, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """``function(group, *arguments)`` on every rank; the results in rank order."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(120):
                self.close()
                raise TimeoutError(f"rank {rank} gave no answer")
            answers.append(pipe.recv())
        failures = [f"rank {rank} failed:\n{answer}" for rank, (fine, answer) in enumerate(answers) if not fine]
        if failures:
            self.close()
            raise AssertionError("\n".join(failures))
        return [answer for _, answer in answers]

    def close(self) -> None:
        """End the processes; the next ``pool`` call starts new ones."""
        for key, known in list(_POOLS.items()):
            if known is self:
                del _POOLS[key]
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()


def pool(world: int) -> Pool:
    """The pool of this size, started on first use."""
    if world not in _POOLS:
        _POOLS[world] = Pool(world)
    return _POOLS[world]


@atexit.register
def close_all() -> None:
    """End the workers of all pools."""
    for one in list(_POOLS.values()):
        one.close()
