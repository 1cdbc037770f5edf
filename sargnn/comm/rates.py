"""How fast a run's workers talk, inside a server and from one server to the next: measured between them, all at the same
time."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from sargnn.comm.group import Group

_TAG = 8
_FIRST_BYTES, _LONGEST_BYTES, _MOST_BYTES = 1 << 16, 1 << 24, 1 << 28
_LONG_ENOUGH_S = 0.3
_SUMS = 10


@dataclass(frozen=True)
class Rates:
    """Bytes in a second that the slowest worker sends while all send and receive: inside its server, to another one; None:
    nobody is there. ``sum_s``: seconds of a sum of one number over all workers.
    """

    inside: float | None
    between: float | None
    sum_s: float


def measure_rates(group: Group) -> Rates:
    """All ranks must call it; about half a second for each kind of link, a second where it is slow."""
    mate, partner = _neighbours(group.mates, group.rank), _neighbours(group.partners, group.rank)
    inside, between = (None if pair is None else _measure(group, *pair) for pair in (mate, partner))
    started = time.perf_counter()
    for _ in range(_SUMS):
        group.sum_(torch.zeros(1))
    seconds = torch.tensor((time.perf_counter() - started) / _SUMS, dtype=torch.float64)
    return Rates(inside, between, max(float(rank_seconds) for rank_seconds in group.gather(seconds)))


def _neighbours(ranks: tuple[int, ...], rank: int) -> tuple[int, int] | None:
    """The next and the last of these ranks, in a circle."""
    if len(ranks) == 1:
        return None
    place = ranks.index(rank)
    return ranks[(place + 1) % len(ranks)], ranks[place - 1]


def _measure(group: Group, to: int, source: int) -> float:
    """Longer and longer messages, and then more and more of the longest, until they take long enough."""
    total, longest = _FIRST_BYTES, 0
    sent = received = torch.empty(0, dtype=torch.uint8)
    while True:
        if longest < min(total, _LONGEST_BYTES):
            longest = min(total, _LONGEST_BYTES)
            sent, received = torch.zeros(longest, dtype=torch.uint8), torch.empty(longest, dtype=torch.uint8)
        messages = -(-total // longest)
        group.sum_(torch.zeros(1))  # all begin together
        started = time.perf_counter()
        for _ in range(messages):
            group.wait_all([(group.receive(received, source, _TAG), source), (group.send_quietly(sent, to, _TAG), to)])
        seconds = max(
            float(rank_seconds)
            for rank_seconds in group.gather(torch.tensor(time.perf_counter() - started, dtype=torch.float64))
        )
        if seconds >= _LONG_ENOUGH_S or total >= _MOST_BYTES:
            return messages * longest / max(seconds, 1e-9)
        total = min(_MOST_BYTES, total * max(2, min(16, int(1.2 * _LONG_ENOUGH_S / max(seconds, 1e-3)))))
