"""Where a worker's time goes: named spans of time, and the work done in them.

Code marks what it does with ``profile.span(LINEAR)``. Spans nest, and a span's own time is what its inner spans leave. Whatever
happens inside an evaluation counts as evaluation. Beside the time stands the work done, ``profile.work(NODEWISE, bytes)``, so
that a part's speed can be set against the machine's. A profile belongs to one group of workers and its engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

LINEAR = "linear maps"
AGGREGATION = "aggregation"
NODEWISE = "norm + dropout"
PACKING = "rows packed"
EXCHANGE_WAIT = "exchange wait"
BETWEEN_WAIT = "wait between servers"
ALL_REDUCE = "all-reduce"
OPTIMIZER = "optimizer"
EVALUATION = "evaluation"
REST = "rest"
OWN_ROWS, PEER_ROWS, PARTIALS = "own rows", "peers' rows", "partial results"
SHARDS = (OWN_ROWS, PEER_ROWS, PARTIALS)
CATEGORIES = (LINEAR, AGGREGATION, NODEWISE, PACKING, EXCHANGE_WAIT, BETWEEN_WAIT, ALL_REDUCE, OPTIMIZER, EVALUATION, REST)


@dataclass
class Profile:
    """One worker's record.

    Attributes:
        recording: whether anything is recorded; a profile that records nothing costs next to nothing.
        events: (category, start, end) in seconds of ``time.perf_counter``, in the order in which they ended.
        own_s: category -> seconds not spent in inner spans.
        cpu_s: category -> likewise, of all this process's threads: also those that move messages meanwhile.
        done: category -> work: floating-point operations of linear maps, bytes read and written of all others.
        waited_s: peer -> seconds of the exchange's waiting that it was waited for.
        shard_cpu_s: of aggregation, kind of shard -> seconds of all this process's threads.
        shard_edges: likewise, edges that were folded, or that gradients went back through.
        synchronize: returns when the device that computes is done with what it was given: before a span begins or ends.
    """

    recording: bool = True
    events: list[tuple[str, float, float]] = field(default_factory=list)
    own_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0.0))
    cpu_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0.0))
    done: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0.0))
    waited_s: dict[str, float] = field(default_factory=dict)
    shard_cpu_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SHARDS, 0.0))
    shard_edges: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SHARDS, 0.0))
    synchronize: Callable[[], object] = lambda: None
    _inner: list[tuple[float, float]] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _evaluating: int = 0

    def span(self, category: str) -> AbstractContextManager[None]:
        """Record the time until the context is left; between epochs and evaluations nothing is recorded."""
        return self._span(category) if self.recording else nullcontext()

    @contextmanager
    def _span(self, category: str) -> Iterator[None]:
        if not self._inner and category not in (REST, EVALUATION):
            yield
            return
        self._evaluating += category == EVALUATION
        self._inner.append((0.0, 0.0))
        self._open.append(category)
        self.synchronize()
        start, start_cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.synchronize()
            end = time.perf_counter()
            taken, taken_cpu = end - start, time.process_time() - start_cpu
            inner, inner_cpu = self._inner.pop()
            self._open.pop()
            if self._inner:
                others, others_cpu = self._inner[-1]
                self._inner[-1] = others + taken, others_cpu + taken_cpu
            counted = EVALUATION if self._evaluating else category
            self.own_s[counted] += taken - inner
            self.cpu_s[counted] += taken_cpu - inner_cpu
            self._evaluating -= category == EVALUATION
            self.events.append((category, start, end))

    def shard(self, kind: str, edges: int) -> AbstractContextManager[None]:
        """Count the time until the context is left as that of a shard of so many edges, outside of evaluations."""
        return self._shard(kind, edges) if self.recording and self._inner and not self._evaluating else nullcontext()

    @contextmanager
    def _shard(self, kind: str, edges: int) -> Iterator[None]:
        start = time.process_time()
        yield
        self.shard_cpu_s[kind] += time.process_time() - start
        self.shard_edges[kind] += edges

    @property
    def recorded(self) -> tuple[dict[str, float], ...]:
        return self.own_s, self.cpu_s, self.done, self.waited_s, self.shard_cpu_s, self.shard_edges

    def wait(self, peer: int, seconds: float) -> None:
        """Count time that a peer was waited for, outside of evaluations."""
        if self.recording and self._inner and not self._evaluating:
            self.waited_s[str(peer)] = self.waited_s.get(str(peer), 0.0) + seconds

    def forget(self) -> None:
        """Begin anew, between two spans."""
        self.events.clear()
        self.waited_s.clear()
        for record in (self.own_s, self.cpu_s, self.done):
            record.update(dict.fromkeys(CATEGORIES, 0.0))
        for record in (self.shard_cpu_s, self.shard_edges):
            record.update(dict.fromkeys(SHARDS, 0.0))

    def inside(self, category: str) -> bool:
        """Whether the innermost span is of this category."""
        return bool(self._open) and self._open[-1] == category

    def work(self, category: str, amount: float) -> None:
        """Count work done, outside of evaluations."""
        if self._inner and not self._evaluating:
            self.done[category] += amount

    def trace(self, rank: int) -> dict[str, Any]:
        """The events in the trace format that Perfetto and Chrome read; microseconds."""
        events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}]
        for category, start, end in sorted(self.events, key=lambda e: e[1]):
            times = {"ts": start * 1e6, "dur": (end - start) * 1e6}
            events.append({"ph": "X", "name": category, "cat": category, "pid": rank, "tid": 0, **times})
        return {"traceEvents": events, "displayTimeUnit": "ms"}
