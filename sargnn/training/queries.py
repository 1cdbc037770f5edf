"""The steps and evaluations of ``task=queries``: which queries a view asks, on the graph without the links that these ask for.

Training pairs are dealt into steps as those of links are (``training.pairs``). A step computes all rows, but no message of it
goes along an edge between the two ends of one of its pairs: the answer would be written there.

Letters: S steps, K micro-batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from sargnn.plan.drawn import Sample
from sargnn.tasks.queries import QueryTask
from sargnn.tracking.memory import trim
from sargnn.training.fit import SLACK, Fitted, Setup
from sargnn.training.pairs import PairSteps
from sargnn.training.views import View, ViewBuilder


class QuerySteps(PairSteps):
    """Steps of so many queries at most, in so many views each. All workers make one, and call its methods, together."""

    def __init__(self, setup: Setup, task: QueryTask) -> None:
        self._asks, links = task, setup.config.links
        self._per_view = max(1, links.queries // task.sides)
        runs = -(-task.count_pairs("train") // self._per_view)
        batches = setup.config.batches.count
        assert isinstance(batches, int)
        every = Sample((-1,) * len(setup.model.uses_edges), setup.config.seed, 0)
        super().__init__(
            setup.builder,
            setup.engine.group,
            task,
            count=-(-runs // batches),
            batches=batches,
            sample=lambda step, epoch: every,
            flows=True,
        )

    def view(self, step: int, number: int) -> View:
        """Drawn now."""
        self.forget()
        trim()
        at, total = self.epoch * self.count + step, int(self._totals[step])
        chosen = np.flatnonzero(self._run_of == step * self._batches + number)
        assert self._sample is not None
        left_out = self._asks.edges_of(chosen)
        targets = self._asks.training_targets(chosen, at, total)
        view = self._builder.drawn(self._asks.rows(), total, self._sample(at, self.epoch), left_out=left_out)
        self._last = dataclasses.replace(view, targets=targets)
        return self._last


class MeasuredQueries(Sequence[View]):
    """The views of an evaluation, each made when it is asked for, on the whole graph. All workers must ask together."""

    def __init__(self, builder: ViewBuilder, task: QueryTask, per_view: int) -> None:
        self._builder, self._task = builder, task
        share = max(1, per_view // (task.sides * task.group.world))
        self._runs = [
            (split, first, first + share) for split, count in task.measured_pairs().items() for first in range(0, count, share)
        ]

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, number: int) -> View:  # type: ignore[override]
        return dataclasses.replace(self._builder.whole(), targets=self._task.measured_targets(*self._runs[number]))

    def __iter__(self) -> Iterator[View]:
        return (self[number] for number in range(len(self)))


def fit_queries(setup: Setup) -> Fitted:
    """The steps and evaluations of a run that asks for answers. All ranks must call it together."""
    task = setup.task
    assert isinstance(task, QueryTask)
    setup.engine.pool.slack = SLACK
    steps = QuerySteps(setup, task)
    _ = setup.graph.drawer
    evaluations = MeasuredQueries(setup.builder, task, setup.config.links.queries)
    setup.graph.release(mapped_only=True)
    setup.engine.reset_tables()
    trim()
    return Fitted(steps, evaluations)
