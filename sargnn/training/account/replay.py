"""What a recorded step holds at most where rows and edges are other numbers.

A dimension of a tensor that equals one of the made-up graph's counts is replaced by what is counted in the real view.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sargnn.engine.pool import SMALLEST
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
        return sum(one.size for one in self._owned)

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
        live = sum(one for _, one in self._live.values())
        if live > self._most_live:
            self._most_live, self.phase, self.at_peak = live, phase, {}
            for what, one in self._live.values():
                self.at_peak[what] = self.at_peak.get(what, 0) + one

    def _take_from_pool(self, number: int, size: int) -> None:
        for one in self._owned:
            if one.used_by is None and one.size == size:
                one.used_by = number
                return
        used = sum(one.size for one in self._owned if one.used_by is not None)
        self.most_used = max(self.most_used, used + size)
        room, kept = self.most_used - used - size, []
        for one in self._owned:
            if one.used_by is None and one.size > room:
                continue
            room -= one.size if one.used_by is None else 0
            kept.append(one)
        self._owned = [*kept, _Owned(size, number)]

    def give(self, number: int) -> None:
        """It goes."""
        self._live.pop(number, None)
        if number in self._others:
            self.other -= self._others.pop(number)
        for one in self._owned:
            if one.used_by == number:
                one.used_by = None

    def end(self) -> None:
        """What a step has left in use lies idle: the next one is another view's."""
        self.other -= sum(self._others.values())
        self._others.clear()
        self._live.clear()
        for one in self._owned:
            one.used_by = None


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
    for one in events:
        if not one.comes:
            held.give(one.number)
            continue
        shapes = (one.shape,) if one.more is None else (one.shape, one.more)
        size = sum(one.item_bytes * math.prod(numbers.get(length, length) for length in shape) for shape in shapes)
        fixed = not any(length in numbers for length in one.shape)
        term = FIXED if fixed else one.phase
        held.take(one.number, size, one.pooled, one.phase, term, aggregates=one.aggregates)
    return held
