"""What a recorded step holds at most where rows and edges are other numbers.

A dimension of a tensor that equals one of the made-up graph's counts is replaced by what is counted in the real view.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sargnn.backends.memory import SMALLEST
from sargnn.training.account.sizes import Sizes
from sargnn.training.account.trace import Event

FIXED = "gradients, optimizer"
BESIDE = "{}, beside its aggregation"
"""Of a phase's events, those before and after the layer aggregates."""


@dataclass
class _Owned:
    """One piece of the pool's memory. ``used_by``: a tensor's number; None: it lies idle."""

    size: int
    used_by: int | None


@dataclass
class Held:
    """Memory at some moment of a step, bytes; the pool does as ``engine.pool`` does.

    Attributes:
        other: in use now, not of the pool. peak: the largest sum of that and what the pool holds.
        most_used: the most that the pool has had in use.
        beside: bytes of others' rows while a phase runs; under "" in all others. peak_beside: the largest sum with those.
        phase: of the step, in which most was in use. at_peak: bytes of that, by the phase in which it came, and under
            ``FIXED`` what has as many numbers whatever the rows are.
    """

    other: int = 0
    peak: int = 0
    most_used: int = 0
    beside: Mapping[str, int] = field(default_factory=dict)
    peak_beside: int = 0
    phase: str = ""
    at_peak: dict[str, int] = field(default_factory=dict)
    _live: dict[int, tuple[str, int]] = field(default_factory=dict)
    _most_live: int = 0
    _owned: list[_Owned] = field(default_factory=list)
    _others: dict[int, int] = field(default_factory=dict)

    @property
    def pool(self) -> int:
        """What the pool holds, in use and idle."""
        return sum(piece.size for piece in self._owned)

    def take(self, number: int, size: int, pooled: bool, phase: str = "", term: str = "", *, aggregates: bool = True) -> None:
        """A tensor comes. term: under what it is counted. aggregates: whether a layer does then, or goes backward."""
        self._live[number] = (term, size)
        if pooled and size >= SMALLEST:
            self._take_from_pool(number, size)
        else:
            self._others[number] = size
            self.other += size
        now = self.pool + self.other
        self.peak = max(self.peak, now)
        beside = self.beside.get(phase, self.beside.get("", 0))
        if not aggregates:
            beside = self.beside.get(BESIDE.format(phase), beside)
        self.peak_beside = max(self.peak_beside, now + beside)
        live = sum(live_size for _, live_size in self._live.values())
        if live > self._most_live:
            self._most_live, self.phase, self.at_peak = live, phase, {}
            for what, live_size in self._live.values():
                self.at_peak[what] = self.at_peak.get(what, 0) + live_size

    def _take_from_pool(self, number: int, size: int) -> None:
        for piece in self._owned:
            if piece.used_by is None and piece.size == size:
                piece.used_by = number
                return
        used = sum(piece.size for piece in self._owned if piece.used_by is not None)
        self.most_used = max(self.most_used, used + size)
        room, kept = self.most_used - used - size, []
        for piece in self._owned:
            if piece.used_by is None and piece.size > room:
                continue
            room -= piece.size if piece.used_by is None else 0
            kept.append(piece)
        self._owned = [*kept, _Owned(size, number)]

    def give(self, number: int) -> None:
        """It goes."""
        self._live.pop(number, None)
        if number in self._others:
            self.other -= self._others.pop(number)
        for piece in self._owned:
            if piece.used_by == number:
                piece.used_by = None

    def end(self) -> None:
        """What a step has left in use lies idle: the next one is another view's."""
        self.other -= sum(self._others.values())
        self._others.clear()
        self._live.clear()
        for piece in self._owned:
            piece.used_by = None


def replay(events: Sequence[Event], made_up: Sizes, real: Sizes, held: Held | None = None) -> Held:
    """Go through a record as if the made-up counts were the real ones.

    Args:
        held: what is held before; nothing if not given.
    """
    held = held or Held()
    numbers: dict[int, int] = {}
    for key, count in made_up.counts.items():
        if count and key in real.counts:
            numbers[count] = max(numbers.get(count, 0), real.counts[key])
    for event in events:
        if not event.comes:
            held.give(event.number)
            continue
        shapes = (event.shape,) if event.more is None else (event.shape, event.more)
        size = sum(event.item_bytes * math.prod(numbers.get(length, length) for length in shape) for shape in shapes)
        fixed = not any(length in numbers for length in event.shape)
        term = FIXED if fixed else event.phase
        held.take(event.number, size, event.pooled, event.phase, term, aggregates=event.aggregates)
    return held
