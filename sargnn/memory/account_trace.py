"""What a step allocates and frees while PyTorch runs, in order; replayed, what it holds where rows and edges are other numbers.

A dimension of a tensor that equals one of the made-up graph's counts is replaced by what is counted in the real view.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sargnn.backends.memory import SMALLEST, Pool, holders, is_held_once
from sargnn.plan.sizes import Sizes

FIXED = "gradients, optimizer"
BESIDE = "{}, beside its aggregation"
"""Of a phase's events, those before and after the layer aggregates."""


@dataclass(frozen=True)
class Event:
    """A tensor's memory comes or goes.

    Attributes:
        number: of the tensor.
        item_bytes: of one of its numbers.
        more: another shape, of what it has beside that.
        pooled: its memory is asked of the engine's pool.
        phase: of the step, when it came.
        aggregates: whether a layer aggregated then, or went backward.
        exchanges: whether rows or gradients were exchanged then.
    """

    number: int
    comes: bool
    shape: tuple[int, ...] = ()
    item_bytes: int = 0
    more: tuple[int, ...] | None = None
    pooled: bool = False
    phase: str = ""
    aggregates: bool = False
    exchanges: bool = False


class Trace(TorchDispatchMode):
    """Records allocations of tensors by all operators that run within it, and when nothing holds them any more.

    What was there before is not recorded, nor what compiled loops and libraries take for themselves. Whoever runs the step sets
    ``phase``, and ``aggregates`` while a layer aggregates or goes backward; ``exchanges`` counts those under way.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch imports its compiler: a second, and 160 MB

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.is_on = False
        self.phase, self.aggregates, self.exchanges = "", False, 0
        self._live: dict[int, tuple[int, Tensor]] = {}  # by the address of its memory: the event, and an alias
        self._known: dict[int, Tensor] = {}
        self._alone = holders(torch.empty(1))

    def __enter__(self) -> Trace:
        super().__enter__()
        self.is_on = True
        return self

    def __exit__(self, *error: Any) -> None:
        self.is_on = False
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            where = tensor.untyped_storage()._cdata
            if where not in self._live and where not in self._known:
                self._known[where] = tensor.detach()
        self.note_freed()
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            self.note(tensor)
        if func is torch.ops.aten.mkldnn_rnn_layer.default:
            self._split_workspace(func, args, kwargs or {}, out[3])
        return out

    def note(self, tensor: Tensor, *, pooled: bool = False) -> None:
        """A tensor that an operator gave; only a new one is an event."""
        where = tensor.untyped_storage()._cdata
        if where in self._known or not tensor.numel():
            return
        if where in self._live:
            if pooled:
                self._change(where, shape=tuple(tensor.shape), pooled=True)
            return
        number = len(self.events)
        self._live[where] = number, tensor.detach()
        self.events.append(self._event(number, tuple(tensor.shape), tensor.element_size(), pooled=pooled))

    @contextmanager
    def exchange(self) -> Iterator[None]:
        self.exchanges += 1
        if self.is_on:  # what is in use now is so beside the exchange's buffers, also if nothing comes meanwhile
            self.note_freed()
            self.events.append(self._event(len(self.events), (0,), 0))
        try:
            yield
        finally:
            self.exchanges -= 1

    def _event(self, number: int, shape: tuple[int, ...], item_bytes: int, *, pooled: bool = False) -> Event:
        return Event(
            number,
            True,
            shape,
            item_bytes,
            pooled=pooled,
            phase=self.phase,
            aggregates=self.aggregates,
            exchanges=self.exchanges > 0,
        )

    def note_freed(self) -> None:
        for where, (number, alias) in list(self._live.items()):
            if holders(alias) == self._alone:
                del self._live[where]
                self.events.append(Event(number, False))

    def is_alone(self, tensor: Tensor) -> bool:
        """Whether nothing but the caller and this record holds the tensor's memory."""
        return holders(tensor) == self._alone + (tensor.untyped_storage()._cdata in self._live)

    def _split_workspace(self, func: Any, args: Any, kwargs: Any, workspace: Tensor | None) -> None:
        """What oneDNN keeps of D steps of B sequences until backward, a [D * B] + b [B] bytes; a single step tells a from b."""
        steps, sequences = args[0].shape[:2]
        if workspace is None or not workspace.numel() or steps < 2:
            return
        single = func(args[0][:1], *args[1:], **kwargs)[3].numel()
        each = -(-(workspace.numel() - single) // (sequences * (steps - 1)))
        rest = max(0, -(-single // sequences) - each)
        self._change(workspace.untyped_storage()._cdata, shape=(sequences * steps, each), more=(sequences, rest))

    def _change(self, where: int, **changes: Any) -> None:
        """What came says more of itself."""
        number, _ = self._live[where]
        at = next(i for i in reversed(range(len(self.events))) if self.events[i].number == number)
        self.events[at] = dataclasses.replace(self.events[at], **changes)


class TracedPool(Pool):
    """Each tensor has memory of its own, which the record sees."""

    def __init__(self, trace: Trace, *, enabled: bool) -> None:
        super().__init__(enabled=enabled)
        self._trace = trace

    def empty(self, rows: int, width: int, like: Tensor) -> Tensor:
        tensor = like.new_empty(rows, width)
        if self.enabled and self._trace.is_on:
            self._trace.note(tensor, pooled=True)
        return tensor

    def is_only_holder(self, tensor: Tensor) -> bool:
        return is_held_once(tensor) and tensor.is_contiguous() and self._trace.is_alone(tensor)


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.device.type == "cpu")


@dataclass
class _Owned:
    """A piece of the pool's memory. ``used_by``: a tensor's number; None: it lies idle."""

    size: int
    used_by: int | None


@dataclass
class StepMemory:
    """Memory at some moment of a step, bytes; the pool does as ``backends.memory`` does.

    Attributes:
        other: in use now, not of the pool.
        peak: the largest sum of that and what the pool holds.
        most_used: the most that the pool has had in use.
        beside: of others' rows while a phase runs; under "" in all others.
        buffers: of an exchange, which are of the pool while it is under way, and may lie idle there afterwards.
        peak_beside: the largest sum with those.
        phase: in which most was in use.
        at_peak: of that, by the phase in which it came, and under ``FIXED`` what has one size whatever the rows are.
    """

    other: int = 0
    peak: int = 0
    most_used: int = 0
    beside: Mapping[str, int] = field(default_factory=dict)
    buffers: int = 0
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

    @property
    def _used(self) -> int:
        return sum(piece.size for piece in self._owned if piece.used_by is not None)

    def take(self, event: Event, size: int, term: str) -> None:
        """``size``: the tensor's bytes here. ``term``: under what it is counted."""
        number, phase = event.number, event.phase
        self._live[number] = (term, size)
        if event.pooled and size >= SMALLEST:
            self._take_from_pool(number, size)
        else:
            self._others[number] = size
            self.other += size
        now = self.pool + self.other
        self.peak = max(self.peak, now)
        beside = self.beside.get(phase, self.beside.get("", 0))
        if not event.aggregates:
            beside = self.beside.get(BESIDE.format(phase), beside)
        if event.exchanges:
            self.most_used = max(self.most_used, self._used + self.buffers)
        pool = max(self.pool, min(self.pool + self.buffers, self.most_used))
        self.peak_beside = max(self.peak_beside, pool + self.other + beside)
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
        used = self._used
        self.most_used = max(self.most_used, used + size)
        room, kept = self.most_used - used - size, []
        for piece in self._owned:
            if piece.used_by is None and piece.size > room:
                continue
            room -= piece.size if piece.used_by is None else 0
            kept.append(piece)
        self._owned = [*kept, _Owned(size, number)]

    def give(self, number: int) -> None:
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


def replay(events: Sequence[Event], made_up: Sizes, real: Sizes, held: StepMemory | None = None) -> StepMemory:
    """Go through a record as if the made-up counts were the real ones. ``held``: what is held before; None: nothing."""
    held = held or StepMemory()
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
        held.take(event, size, FIXED if fixed else event.phase)
    return held
