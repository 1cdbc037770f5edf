"""The optimizer steps of an epoch: which views make each, and which training nodes.

Training nodes are shuffled in every epoch: sorted by a Philox number of (seed, epoch, original id), S runs of them are the S
steps, whose sizes differ by one at most. So they are the same on any number of workers.

Letters: W training rows of this worker, S steps, K micro-batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch

from sargnn.comm.group import Group
from sargnn.plan.drawn import Sample
from sargnn.rng import Purpose, draw_words
from sargnn.tasks.base import Task
from sargnn.training.batches import BatchStats, LayerCounts, MicroBatches, count_rows
from sargnn.training.views import Constants, View, ViewBuilder

_DIGIT_BITS, _DIGITS = 9, 7
"""Of a number below 2**63 that is looked for digit by digit."""

Views = Sequence[View] | MicroBatches
"""Those of one step, in their order; each is made, or read, when it is asked for."""


class Steps(ABC):
    """The steps of an epoch. All workers call its methods together.

    Attributes:
        count: S. epoch: the one at hand.
    """

    count: int = 1
    epoch: int = 0

    def begin(self, epoch: int) -> None:  # noqa: B027 - where nothing is drawn, all epochs are alike
        """Draw an epoch."""

    @abstractmethod
    def views(self, step: int) -> Views:
        """Those whose gradients make a step of the epoch at hand."""

    @property
    def last_view(self) -> View | None:
        """One of those that were made so far."""
        return None

    def rows(self, step: int) -> np.ndarray | None:
        """int64 ascending, the training rows of a step; None: all."""
        return None

    def remake(self) -> None:  # noqa: B027 - most hold nothing of constant rows
        """Make again what is held of constant rows, where that is to be computed in another way."""

    def forget(self) -> None:  # noqa: B027 - what comes again is kept
        """Let go of views that do not come again."""

    def close(self) -> None:  # noqa: B027 - most have nothing on disk
        """Delete what lies on disk."""


class OneStep(Steps):
    """One step an epoch, always of the same views.

    Args:
        again: makes them anew; None: they hold nothing of constant rows, or know how.
    """

    def __init__(self, views: Views, again: Callable[[], Views] | None = None) -> None:
        self.all, self._again = views, again

    def views(self, step: int) -> Views:
        return self.all

    @property
    def last_view(self) -> View | None:
        return self.all[0]

    def remake(self) -> None:
        if isinstance(self.all, MicroBatches):
            self.all.make()
        elif self._again is not None:
            self.all = self._again()

    def close(self) -> None:
        if isinstance(self.all, MicroBatches):
            self.all.close()


class DrawnSteps(Steps):
    """Steps of shuffled training nodes, or of samples of their neighbours, drawn anew.

    Args:
        rows: int64 ascending [W], the worker's training rows. ids: int64 [W], their original ids.
        groups: int32 [W], each one's micro-batch in the steps that it is in. batches: K.
        count: S. sample: gives the sample of a step, by its number since the beginning and its epoch; None: all edges.
        constants: the first layer's aggregates, where all steps share them. again: computes these anew.
    """

    def __init__(
        self,
        builder: ViewBuilder,
        group: Group,
        task: Task,
        rows: np.ndarray,
        ids: np.ndarray,
        groups: np.ndarray,
        batches: int,
        *,
        count: int,
        seed: int,
        sample: Callable[[int, int], Sample] | None,
        constants: Constants | None = None,
        again: Callable[[], Constants | None] | None = None,
    ) -> None:
        self._builder, self._group, self._task = builder, group, task
        self._rows, self._ids, self._groups = rows, ids, groups
        self._batches, self.count, self._seed, self._sample, self._constants = batches, count, seed, sample, constants
        self._step_of = np.zeros(len(rows), np.int64)
        self._totals = self._sizes = np.zeros((count, 1), np.int64)
        self._again, self._last = again, cast(View | None, None)
        self._layers: dict[int, tuple[LayerCounts, ...]] = {}
        self._made = 0
        self.begin(0)

    def begin(self, epoch: int) -> None:
        self.epoch = epoch
        self._step_of = shuffled_steps(self._ids, self._seed, epoch, self.count, self._group)
        sizes = np.zeros((self.count, self._batches + 1), np.int64)
        np.add.at(sizes, (self._step_of, self._groups), 1)
        for step in range(self.count):
            sizes[step, -1] = self._task.count(self.rows(step))
        sums = self._group.sum_(torch.from_numpy(sizes)).numpy()
        self._sizes, self._totals = sums[:, :-1], sums[:, -1]

    def rows(self, step: int) -> np.ndarray:
        return self._rows[self._step_of == step]

    def sample_of(self, step: int) -> Sample | None:
        """The sample of a step of the epoch at hand."""
        return None if self._sample is None else self._sample(self.epoch * self.count + step, self.epoch)

    def total(self, step: int) -> int:
        """Known labels of a step's training nodes, over all workers."""
        return int(self._totals[step])

    def views(self, step: int) -> Views:
        return _DrawnViews(self, step)

    def only_view(self) -> View:
        """Of one step without micro-batches that is the same in all epochs."""
        return self._builder.drawn(self.rows(0), self.total(0), self.sample_of(0), self._constants, recurring=True)

    def numbers(self, step: int) -> list[int]:
        """The micro-batches of a step that have nodes."""
        return [int(number) for number in np.flatnonzero(self._sizes[step])]

    def group_rows(self, step: int, number: int) -> np.ndarray:
        """int64 ascending, a micro-batch's training rows."""
        return self._rows[(self._step_of == step) & (self._groups == number)]

    @property
    def last_view(self) -> View | None:
        return self._last

    def stats(self) -> BatchStats:
        """What the micro-batches of the last step computed. All ranks must call it."""
        whole, sample = self.rows(self._made), self.sample_of(self._made)
        _, counts = self._builder.drawn_sizes(whole, sample, holds_constants=self._constants is not None)
        return BatchStats(
            tuple(self._layers[number] for number in sorted(self._layers)), tuple(row_counts.out for row_counts in counts)
        )

    @property
    def holds_constants(self) -> bool:
        """Whether steps share aggregates of constant rows."""
        return self._constants is not None

    def remake(self) -> None:
        if self._again is not None:
            self._constants = self._again()

    def forget(self) -> None:
        self._last = None


class _DrawnViews(Sequence[View]):
    """The views of one step, made one by one."""

    def __init__(self, steps: DrawnSteps, step: int) -> None:
        self._steps, self._step, self._numbers = steps, step, steps.numbers(step)
        self._outward = None
        steps.forget()
        steps._layers, steps._made = {}, step
        if len(self._numbers) > 1:
            self._outward = steps._builder.outward_of(steps.rows(step), steps.sample_of(step))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> View:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)
        steps = self._steps
        steps.forget()
        rows = steps.group_rows(self._step, self._numbers[number])
        steps._last = view = steps._builder.drawn(
            rows, steps.total(self._step), steps.sample_of(self._step), steps._constants, self._outward
        )
        steps._layers[number] = count_rows(view, steps._group)
        return view


def shuffled_steps(ids: np.ndarray, seed: int, epoch: int, count: int, group: Group) -> np.ndarray:
    """Which step each training node is in, int64 [W]; all workers must call it together.

    Args:
        ids: int64 [W], original ids of this worker's training nodes, below 2**32. count: S.
    """
    if count == 1:
        return np.zeros(len(ids), np.int64)
    keys = ((draw_words(ids, seed, Purpose.SHUFFLE, epoch) >> 1) << 32) | ids  # all different
    total = int(group.sum_(torch.tensor(len(ids))))
    ranks = np.array([total * step // count for step in range(1, count)], np.int64)
    return np.searchsorted(_of_ranks(np.sort(keys), ranks, group), keys, side="right")


def _of_ranks(keys: np.ndarray, ranks: np.ndarray, group: Group) -> np.ndarray:
    """The keys of all workers that have these ranks, from 0.

    Args:
        keys: int64 ascending, this worker's, below 2**63. ranks: int64 [J].
    """
    selected, before = np.zeros(len(ranks), np.int64), ranks.copy()  # before: rank among keys that begin as what is found
    for digit in range(_DIGITS - 1, -1, -1):
        unit = np.int64(1) << np.int64(digit * _DIGIT_BITS)
        ends = np.searchsorted(keys, selected[:, None] + unit * np.arange(1, 2**_DIGIT_BITS), side="left")
        begins = np.searchsorted(keys, selected, side="left")
        below = group.sum_(torch.from_numpy(np.ascontiguousarray(ends - begins[:, None]))).numpy()
        digits = (below <= before[:, None]).sum(1)
        before -= np.where(digits > 0, np.take_along_axis(below, np.maximum(digits - 1, 0)[:, None], 1)[:, 0], 0)
        selected += digits * unit
    return selected
