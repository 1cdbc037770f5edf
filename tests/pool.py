"""Ranks for distributed tests: threads of this process that take turns, or processes over gloo.

``pool(world)(function, *arguments)`` calls a function on every rank and gives their results in rank order.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from sargnn.backends import memory as engine_pool
from sargnn.comm.distributed import DistributedGroup, RankProcesses
from sargnn.comm.group import Group
from sargnn.comm.shared import share
from tests.in_process import fork_server
from tests.shared import AdversarialShared
from tests.turns import AdversarialTurns

_POOLS: dict[tuple[int, bool], Processes] = {}


class Pool:
    """``world`` ranks in this process, over a transport that makes mistakes show (``tests.turns``)."""

    def __init__(self, world: int, *, near: bool = False) -> None:
        self.world, self.near = world, near

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """``function(group, *arguments)`` on every rank, each with arguments of its own; the results in rank order.

        Raises:
            AssertionError: the call fails on a rank; with its traceback, and the seed that the turns are drawn from.
        """
        seed = zlib.crc32(os.environ.get("PYTEST_CURRENT_TEST", "").encode())
        packed = pickle.dumps(arguments)
        with poisoned_tables():
            try:
                turns = AdversarialTurns(self.world, seed, near=self.near)
                return turns.run(lambda group: function(group, *pickle.loads(packed)))
            except Exception as error:
                raise AssertionError(f"{traceback.format_exc()}turns are drawn from seed {seed}") from error


def pool(world: int) -> Pool:
    """Ranks that take turns in this process."""
    return Pool(world)


def near(world: int) -> Pool:
    """The same, and they read each other's rows where they lie."""
    return Pool(world, near=True)


@contextmanager
def poisoned_tables() -> Iterator[None]:
    """Tables of any size come from the engine's pool, full of NaN: who leaves a row out or reads what was let go is found."""
    shaped = engine_pool._shaped

    def poisoned(flat: torch.Tensor, rows: int, width: int) -> torch.Tensor:
        return shaped(flat.fill_(torch.nan) if flat.is_floating_point() else flat, rows, width)

    with patch.object(engine_pool, "SMALLEST", 1), patch.object(engine_pool, "_shaped", poisoned):
        yield


def _serve(rank: int, world: int, shares: bool, store: str, pipe: Connection) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # which the server ignores
        signal.signal(number, signal.SIG_DFL)
    torch.set_num_threads(1)
    group = Group.single()
    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
        )
        group = DistributedGroup(rank, world, RankProcesses(dist.group.WORLD))
        if shares:
            shared = share(rank, world, 60.0, group.gather, AdversarialShared)
            group = DistributedGroup(rank, world, RankProcesses(dist.group.WORLD, shared=shared))
    with poisoned_tables():
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


class Processes:
    """``world`` processes in one gloo group; each call runs a module-level function on every rank.

    Args:
        shares: they share memory, in a way that makes mistakes show (``tests.shared``).

    Attributes:
        ids: of the processes, by rank.
    """

    def __init__(self, world: int, *, shares: bool = False) -> None:
        context = fork_server()
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(world):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world, shares, store, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        self.ids = [process.pid or 0 for process in self._processes]

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


def processes(world: int, *, shares: bool = False) -> Processes:
    """Processes of a gloo group, started on first use and kept for the next test."""
    key = world, shares
    if key not in _POOLS:
        _POOLS[key] = Processes(world, shares=shares)
    return _POOLS[key]


def sharing(world: int) -> Processes:
    """The same, and they share memory."""
    return processes(world, shares=True)


@atexit.register
def close_all() -> None:
    """End the workers of all pools."""
    for one in list(_POOLS.values()):
        one.close()
