"""Worker processes on this machine: started from a fork server, watched, ended.

The launching process serves the store that workers meet at, on 127.0.0.1 and only to who knows a token that is drawn for every
start (``comm.meeting``); gloo listens on the loopback interface too, unless ``comm.interface`` names another. Workers publish
heartbeats in the store, so that one that hangs can be told from those that wait for it. A pipe to each worker closes when the
launching process ends, however it ends; workers then end too.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerProcess
from types import FrameType
from typing import Any

from sargnn.errors import ConfigError

_PAUSE_S = 0.1
_BLAME_S = 1.5
_ORPHANED = 77
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@dataclass(frozen=True)
class Failure:
    """How a worker failed: its exit code, negative for a signal; None where it hangs, with how many exchanges and collectives
    it has begun, and the furthest worker.
    """

    rank: int
    exitcode: int | None
    begun: int = 0
    others_begun: int = 0


def start_fork_server() -> None:
    """Let the fork server import and compile what workers need while the stores are prepared."""
    multiprocessing.set_forkserver_preload(["sargnn.run.ignore_signals", "sargnn.run.preload"])
    forkserver.ensure_running()


@dataclass(frozen=True)
class WorkerSettings:
    """What starting and watching workers depends on.

    Attributes:
        world: P.
        port: where workers meet; None for a free one.
        interface: that gloo listens on; None for the loopback interface.
        timeout_s: how long one may go on when another has ended, and be silent when another is not.
        grace_s: how long they may take to end by themselves when asked to.
    """

    world: int
    port: int | None
    interface: str | None
    timeout_s: float
    grace_s: float = 12.0


class Workers:
    """P worker processes, from their start on. Whoever makes them calls ``watch`` next. A worker runs ``entry`` with the path
    of the run's configuration.

    Signals are heard from before the first one starts; outside the main thread, where Python allows no handlers, they are not.
    ``asked`` is the one that asked the run to end. Raises ``ConfigError`` where the port is taken. Whatever is raised, no
    worker and no handler is left.
    """

    def __init__(self, entry: Callable[[str], None], config_path: str, settings: WorkerSettings) -> None:
        from sargnn.comm.meeting import MeetingServer

        self.settings = settings
        self.asked: int | None = None
        token = secrets.token_hex(32)
        try:
            self._store = MeetingServer("127.0.0.1", settings.port or 0, token)
        except OSError as error:
            given = f"comm.port={settings.port}"
            raise ConfigError("Workers have no port to meet at.", given=given, hint=error.strerror) from error
        self._lifelines: list[connection.Connection] = []
        self._processes: list[ForkServerProcess] = []
        self._previous: dict[signal.Signals, Any] = {}
        self._watched = False
        try:
            self._hear_signals()
            self._start(entry, config_path, token)
        except BaseException:
            self.end()
            raise

    def _hear_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _FORWARDED:
            # A signal that this process was started to ignore, as under nohup or in a shell's background, stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.getsignal(number)
                signal.signal(number, self._on_signal)

    def _start(self, entry: Callable[[str], None], config_path: str, token: str) -> None:
        import psutil

        from sargnn.comm.join import STORE, TOKEN

        context, settings = multiprocessing.get_context("forkserver"), self.settings
        loopback = (
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(entry.address == "127.0.0.1" for entry in addresses)
        )
        interface = settings.interface or next(loopback, "lo")
        for rank in range(settings.world):
            if self.asked is not None:
                return
            ours, theirs = context.Pipe()
            self._lifelines.append(ours)
            place = {"RANK": str(rank), "WORLD_SIZE": str(settings.world), "LOCAL_RANK": str(rank)}
            place["GLOO_SOCKET_IFNAME"] = interface
            arguments = (entry, config_path, place | {STORE: f"127.0.0.1:{self._store.port}", TOKEN: token}, theirs)
            process = context.Process(target=_live, args=arguments, name=f"worker {rank}")
            self._processes.append(process)
            process.start()

    def watch(self) -> Failure | None:
        """Wait until all have ended; at the first failure end the others and return whose it was.

        SIGINT, SIGTERM and SIGHUP ask the workers to write a checkpoint and end (``asked`` holds the signal); those that have
        not ended after ``grace_s``, or at a second signal, are killed. So are all where the signal came before the last one was
        started. SIGUSR1 asks for a checkpoint only.
        """
        try:
            self._watched = True
            return self._watch() if len(self._processes) == self.settings.world else None
        finally:
            self.end()

    def _watch(self) -> Failure | None:
        from sargnn.run.heartbeat import Beat, SilenceClock, find_slowest, has_lost_peer, read_beats

        world, timeout_s, peek = self.settings.world, self.settings.timeout_s, self._store.peek
        lost_at, before = 0.0, list[Beat]()
        first_done_at: float | None = None
        silence = SilenceClock(world)
        early = self.asked is not None
        while True:
            if early:  # it came before this call: some train by now, and one that only starts misses what is sent once
                self._send(signal.SIGTERM)
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
            if first_done_at is not None and time.monotonic() - first_done_at > timeout_s and self.asked is None:
                return Failure(self._processes.index(alive[0]), None)
            if not before and has_lost_peer(peek):
                lost_at, before = time.monotonic(), read_beats(peek, world)
            if before and time.monotonic() - lost_at > _BLAME_S and self.asked is None:
                after = read_beats(peek, world)  # nobody has died: someone hangs
                rank = find_slowest(before, after)
                return Failure(rank, None, after[rank].begun, max(beat.begun for beat in after))
            # A worker that stops while the group is being made is noticed by its peers only after several time-outs.
            silent = silence.longest(peek, {self._processes.index(process) for process in alive})
            if silent is not None and silent[1] > timeout_s and self.asked is None:
                return Failure(silent[0], None)
            connection.wait([process.sentinel for process in alive], _PAUSE_S)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._watched:
            if number != signal.SIGUSR1:
                self.asked, self._deadline = number, time.monotonic() + self.settings.grace_s
        elif number == signal.SIGUSR1:
            self._send(signal.SIGUSR1)
        elif self.asked is None:
            self.asked, self._deadline = number, time.monotonic() + self.settings.grace_s
            self._send(signal.SIGTERM)
        else:
            self._deadline = time.monotonic()

    def _send(self, number: int) -> None:
        for process in self._processes:
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, number)

    def end(self) -> None:
        try:
            self._store.close()
            started = [process for process in self._processes if process.pid is not None]
            for process in started:
                if process.exitcode is None:
                    process.kill()
            for process in started:
                process.join()
            for lifeline in self._lifelines:
                lifeline.close()
        finally:
            while self._previous:
                number, handler = self._previous.popitem()
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _live(entry: Callable[[str], None], config_path: str, place: Mapping[str, str], lifeline: connection.Connection) -> None:
    """``place``: what the environment says of the worker's place in the group (``comm.join``)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the launching process decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # likewise when the terminal closes
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until there is something to write
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # likewise
    os.environ.update(place)
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


def end_process(process: subprocess.Popen[str], steps: Sequence[tuple[signal.Signals, float]]) -> None:
    """Send one signal after the other, each with seconds to wait, until it has ended; SIGKILL goes to its whole group."""
    for number, wait_s in steps:
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=wait_s)
            return
