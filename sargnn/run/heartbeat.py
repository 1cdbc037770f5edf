"""Heartbeats: each worker publishes that it lives and how far it is, and that it has lost a peer.

They lie in the store that workers met at, which the launching process serves: workers send each other nothing for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from sargnn.comm.join import STORE, TOKEN
from sargnn.comm.meeting import MeetingStore
from sargnn.errors import CommError

_EVERY_S = 0.5
_CONNECT_S = 30.0
_LOST = "sargnn/lost"

Peek = Callable[[str], bytes | None]
"""Reads a key of the store; None for one that was never set."""


@dataclass(frozen=True)
class Beat:
    """The number of a worker's last heartbeat, and how many exchanges and collectives it had begun."""

    count: int
    begun: int


class Heartbeat(threading.Thread):
    """Publishes a worker's heartbeat twice a second. Only ``sargnn train`` reads it; elsewhere the thread ends at once.

    ``begun``: how many exchanges and collectives the process has begun.
    """

    def __init__(self, rank: int, begun: Callable[[], int]) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._rank, self._begun = rank, begun
        self._store: MeetingStore | None = None

    def run(self) -> None:
        address, _, port = os.environ.get(STORE, "").rpartition(":")
        if not address:
            return
        try:
            self._store = MeetingStore(address, int(port), os.environ[TOKEN], _CONNECT_S)
            waiting, count = threading.Event(), 0
            while True:
                count += 1
                self._store.set(_key(self._rank), f"{count} {self._begun()}")
                waiting.wait(_EVERY_S)
        except (RuntimeError, CommError):
            return  # the launching process is gone, and with it who would read this

    def report_lost_peer(self) -> None:
        if self._store is not None:
            with suppress(RuntimeError):
                self._store.set(_LOST, str(self._rank))


def _key(rank: int) -> str:
    return f"sargnn/heartbeat/{rank}"


def has_lost_peer(peek: Peek) -> bool:
    return peek(_LOST) is not None


def read_beats(peek: Peek, world: int) -> list[Beat]:
    """Zeros for a rank that has published none."""
    texts = [(peek(_key(rank)) or b"0 0").decode().split() for rank in range(world)]
    return [Beat(int(count), int(begun)) for count, begun in texts]


def find_slowest(before: list[Beat], after: list[Beat]) -> int:
    """The rank that hangs: one whose heartbeat has stopped between the two readings, else the one that has begun least."""
    stopped = [rank for rank, (earlier, other) in enumerate(zip(before, after, strict=True)) if earlier.count == other.count]
    return min(stopped or range(len(after)), key=lambda rank: after[rank].begun)


class SilenceClock:
    """Measures how long each worker has been silent while another one was not."""

    def __init__(self, world: int) -> None:
        self._counts = [0] * world
        self._heard_at = [0.0] * world
        self._read_at = 0.0

    def longest(self, peek: Peek, alive: set[int]) -> tuple[int, float] | None:
        """The rank of ``alive`` that is silent for longest, and the seconds; None before the first heartbeat.

        Reads heartbeats once a second; None for calls in between.
        """
        now = time.monotonic()
        if now - self._read_at < 2 * _EVERY_S:
            return None
        was_stopped = now - self._read_at > 10 * _EVERY_S  # this process was: what workers did meanwhile is not known
        self._read_at = now
        for rank, beat in enumerate(read_beats(peek, len(self._counts))):
            if beat.count != self._counts[rank]:
                self._counts[rank], self._heard_at[rank] = beat.count, now
        if not any(self._counts):
            return None
        if was_stopped:
            self._heard_at = [now] * len(self._counts)
        # A worker that was never heard counts from the first heartbeat of another.
        first = min(at for at in self._heard_at if at)
        self._heard_at = [at or first for at in self._heard_at]
        rank = min(alive, key=lambda worker: self._heard_at[worker])
        return rank, max(self._heard_at) - self._heard_at[rank]
