"""Worker processes on this machine: started from a fork server, watched, ended.

The launching process hosts the store that workers meet at. There each of them publishes a beat and how far it is, so that one
that hangs can be told from those that wait for it. A pipe to each worker closes when the launching process ends, however
it ends; workers then end too.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, forkserver
from types import FrameType
from typing import Any

from sargnn.errors import ConfigError
from sargnn.launch import pulse

_PAUSE_S = 0.1
_BLAME_S = 1.5
_ORPHANED = 77


@dataclass(frozen=True)
class Failure:
    """How a worker failed.

    Attributes:
        exitcode: negative for a signal; None where it hangs.
        begun, others_begun: exchanges and collectives that a worker that hangs has begun, and the furthest one.
    """

    rank: int
    exitcode: int | None
    begun: int = 0
    others_begun: int = 0


def start_fork_server() -> None:
    """Let the fork server import and compile what workers need while the stores are prepared."""
    multiprocessing.set_forkserver_preload(["sargnn.launch.deaf", "sargnn.launch.preload"])
    forkserver.ensure_running()


class Workers:
    """P worker processes.

    Args:
        entry: what a worker runs, with the path of the run's configuration.
        world: P. port: where they meet; None for a free one.
        timeout_s: how long one may go on when another has ended.
        grace_s: how long they may take to end by themselves when asked to.
    """

    def __init__(
        self, entry: Callable[[str], None], config_path: str, world: int, *, port: int | None, timeout_s: float, grace_s: float
    ) -> None:
        from torch.distributed import TCPStore

        self.world, self.timeout_s, self.grace_s = world, timeout_s, grace_s
        self.asked: int | None = None
        try:
            self._store = TCPStore(
                "localhost", port or 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30)
            )
        except RuntimeError as error:
            raise ConfigError("Workers have no port to meet at.", given=f"comm.port={port}", hint=str(error)) from error
        context = multiprocessing.get_context("forkserver")
        self._lifelines: list[connection.Connection] = []
        self._processes = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            self._lifelines.append(ours)
            arguments = (entry, config_path, rank, world, self._store.port, theirs)
            self._processes.append(context.Process(target=_live, args=arguments, name=f"worker {rank}"))
        for process in self._processes:
            process.start()

    def watch(self) -> Failure | None:
        """Wait until all have ended; at the first failure end the others and say whose it was.

        SIGINT, SIGTERM and SIGHUP ask the workers to write a checkpoint and end (``asked`` holds the signal); those that have
        not ended after ``grace_s``, or at a second signal, are killed. SIGUSR1 asks for a checkpoint only.
        """
        # What is ignored already, as under nohup, stays so.
        heard = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, self._on_signal) for number in heard}
        try:
            return self._watch()
        finally:
            self.end()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _watch(self) -> Failure | None:
        lost_at, before = 0.0, None
        first_done_at: float | None = None
        silence = pulse.Silence(self.world)
        while True:
            alive = [process for process in self._processes if process.exitcode is None]
            failed = [rank for rank, process in enumerate(self._processes) if process.exitcode not in (None, 0)]
            if self.asked is not None and time.monotonic() > self._deadline:
                return None
            if failed and self.asked is None:
                signalled = [rank for rank in failed if (self._processes[rank].exitcode or 0) < 0]
                rank = (signalled or failed)[0]
                return Failure(rank, self._processes[rank].exitcode)
            if not alive:
                return None
            if first_done_at is None and any(process.exitcode == 0 for process in self._processes):
                first_done_at = time.monotonic()
            if first_done_at is not None and time.monotonic() - first_done_at > self.timeout_s and self.asked is None:
                return Failure(self._processes.index(alive[0]), None)
            if before is None and pulse.someone_is_lost(self._store):
                lost_at, before = time.monotonic(), pulse.pulses(self._store, self.world)
            if before is not None and time.monotonic() - lost_at > _BLAME_S and self.asked is None:
                after = pulse.pulses(self._store, self.world)  # nobody has died: someone hangs
                rank = pulse.slowest(before, after)
                return Failure(rank, None, after[rank][1], max(begun for _, begun in after))
            # A worker that stops while the group is being made is noticed by its peers only after several time-outs.
            silent = silence.longest(self._store, {self._processes.index(process) for process in alive})
            if silent is not None and silent[1] > self.timeout_s and self.asked is None:
                return Failure(silent[0], None)
            connection.wait([process.sentinel for process in alive], _PAUSE_S)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._send(signal.SIGUSR1)
        elif self.asked is None:
            self.asked, self._deadline = number, time.monotonic() + self.grace_s
            self._send(signal.SIGTERM)
        else:
            self._deadline = time.monotonic()

    def _send(self, number: int) -> None:
        for process in self._processes:
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, number)

    def end(self) -> None:
        """Kill who is left."""
        for process in self._processes:
            if process.exitcode is None:
                process.kill()
        for process in self._processes:
            process.join()
        for lifeline in self._lifelines:
            lifeline.close()


_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def _live(
    entry: Callable[[str], None], config_path: str, rank: int, world: int, port: int, lifeline: connection.Connection
) -> None:
    """A worker process's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the launching process decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # likewise when the terminal closes
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until there is something to write
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # likewise
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="localhost", MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # PyTorch's word for: the store is there already
    )  # fmt: skip
    threading.Thread(target=_end_with, args=(lifeline,), name="lifeline", daemon=True).start()
    entry(config_path)


def _end_with(lifeline: Any) -> None:
    try:
        lifeline.recv()
    except (EOFError, OSError):
        try:
            print("The launching process is gone.", flush=True)
        finally:
            os._exit(_ORPHANED)
