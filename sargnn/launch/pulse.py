"""What workers publish about themselves: a beat, how far they are, and that one has lost a peer.

It lies in the store that they met at, so it needs no messages between them.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import Any

_EVERY_S = 0.5
_LOST = "sargnn/lost"


def _key(rank: int) -> str:
    return f"sargnn/pulse/{rank}"


class Pulse(threading.Thread):
    """Publishes, twice a second, a worker's beat and how many exchanges and collectives it has begun.

    Args:
        traffic: the group's, which counts them.
    """

    def __init__(self, rank: int, traffic: Any) -> None:
        super().__init__(name="pulse", daemon=True)
        self._rank, self._traffic, self._beat = rank, traffic, 0
        self._store: Any = None

    def run(self) -> None:
        from torch.distributed import TCPStore

        try:
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            self._store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=30))
            waiting = threading.Event()
            while True:
                self._beat += 1
                self._store.set(_key(self._rank), f"{self._beat} {self._traffic.begun}")
                waiting.wait(_EVERY_S)
        except (RuntimeError, KeyError):
            return  # whoever hosts the store is gone, and with it who would read this

    def lost_a_peer(self) -> None:
        """Say so."""
        if self._store is not None:
            try:
                self._store.set(_LOST, str(self._rank))
            except RuntimeError:
                pass


def someone_is_lost(store: Any) -> bool:
    """Whether a worker has lost a peer."""
    return bool(store.check([_LOST]))


def pulses(store: Any, world: int) -> list[tuple[int, int]]:
    """Per rank its beat and how much it has begun; zeros for one that has published nothing."""
    texts = [store.get(_key(rank)).decode() if store.check([_key(rank)]) else "0 0" for rank in range(world)]
    return [(int(beat), int(begun)) for beat, begun in (text.split() for text in texts)]


def slowest(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> int:
    """The rank that hangs: one whose beat has stopped, else the one that has begun least."""
    stopped = [rank for rank, (one, other) in enumerate(zip(before, after, strict=True)) if one[0] == other[0]]
    return min(stopped or range(len(after)), key=lambda rank: after[rank][1])


class Silence:
    """How long each worker has not beaten while another one has.

    Args:
        world: P.
    """

    def __init__(self, world: int) -> None:
        self._beats = [0] * world
        self._heard_at = [0.0] * world
        self._looked_at = 0.0

    def longest(self, store: Any, alive: set[int]) -> tuple[int, float] | None:
        """The rank of ``alive`` silent for longest, and the seconds; None before anyone has beaten and between looks."""
        now = time.monotonic()
        if now - self._looked_at < 2 * _EVERY_S:
            return None
        paused = now - self._looked_at > 10 * _EVERY_S  # we were stopped ourselves: what others did meanwhile is not known
        self._looked_at = now
        for rank, (beat, _) in enumerate(pulses(store, len(self._beats))):
            if beat != self._beats[rank]:
                self._beats[rank], self._heard_at[rank] = beat, now
        if not any(self._beats):
            return None
        if paused:
            self._heard_at = [now] * len(self._beats)
        # One that has never beaten is as old as the first one that has.
        first = min(at for at in self._heard_at if at)
        self._heard_at = [at or first for at in self._heard_at]
        rank = min(alive, key=lambda one: self._heard_at[one])
        return rank, max(self._heard_at) - self._heard_at[rank]
