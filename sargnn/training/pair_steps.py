"""The optimizer steps of an epoch of ``task=links`` and ``task=edges``: which pairs make each, and the rows that these reach.

Training pairs are shuffled in every epoch, as training nodes are (``training.steps``), by ids of both ends: S K runs of them
are the K micro-batches of the S steps. One step on the full graph computes all rows; else a message flow computes those that a
pair or a negative of any worker ends in.

Letters: N own rows, P training pairs of this worker, S steps, K micro-batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

from sargnn.comm.group import Group
from sargnn.plan.drawn import Sample
from sargnn.tasks.pairs import PairTask
from sargnn.tracking.memory import trim
from sargnn.training.steps import Steps, deal
from sargnn.training.views import Constants, View, ViewBuilder


class PairSteps(Steps):
    """Steps of shuffled training pairs. All workers make one, and call its methods, together.

    Args:
        task: makes batches of pairs, of links with negatives.
        count: S.
        batches: K.
        sample: gives the sample of a step, by its number since the beginning and its epoch; None: all edges.
        flows: each view is a message flow of its own; else all compute every row.
        constants: computes the first layer's aggregates, where all flows share them.
    """

    def __init__(
        self,
        builder: ViewBuilder,
        group: Group,
        task: PairTask,
        *,
        count: int,
        batches: int,
        sample: Callable[[int, int], Sample] | None,
        flows: bool,
        constants: Callable[[], Constants | None] = lambda: None,
    ) -> None:
        self._builder, self._group, self._task, self.drawn = builder, group, task, flows
        self.count, self._batches, self._sample = count, batches, sample
        self._again = constants
        self._constants = constants()
        self.holds_constants = self._constants is not None
        self._run_of = np.zeros(0, np.int64)
        self._totals = np.zeros(count, np.int64)
        self._last: View | None = None
        self.begin(0)

    def begin(self, epoch: int) -> None:
        self.epoch, runs = epoch, self.count * self._batches
        self._run_of = deal(self._task.step_keys(epoch), runs, self._group)
        terms = np.bincount(self._run_of, self._task.known_labels(), runs).reshape(self.count, -1).sum(1)
        self._totals = self._group.sum_(torch.from_numpy(terms.astype(np.int64))).numpy()

    def views(self, step: int) -> Sequence[View]:
        return _PairViews(self, step)

    @property
    def batches(self) -> int:
        """K."""
        return self._batches

    def view(self, step: int, number: int) -> View:
        """Drawn now."""
        self.forget()
        trim()
        at = self.epoch * self.count + step
        batch = self._task.batch(np.flatnonzero(self._run_of == step * self._batches + number), at)
        trim()  # of what drawing and asking took
        total = int(self._totals[step])
        if not self.drawn:
            whole = self._builder.whole()
            self._last = dataclasses.replace(whole, targets=self._task.targets_of(batch, whole.flow.output_rows, total))
            return self._last
        sample = None if self._sample is None else self._sample(at, self.epoch)
        left_out = None if sample is None or batch.no_messages is None else self._edges_of(batch.no_messages)
        view = self._builder.drawn(batch.lists.rows(), total, sample, self._constants, left_out=left_out)
        self._last = dataclasses.replace(view, targets=self._task.targets_of(batch, view.flow.output_rows, total))
        return self._last

    def _edges_of(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The edges between the ends of pairs (int64 [P, 2]) that all workers have in hand, both ways, that end in own rows:
        these rows, and the original ids of their sources.
        """
        ends, others = np.concatenate([pairs[:, 0], pairs[:, 1]]), np.concatenate([pairs[:, 1], pairs[:, 0]])
        rows, sources = self._task.directory.send(ends, others)
        return rows, sources

    @property
    def last_view(self) -> View | None:
        return self._last

    def remake(self) -> None:
        self._constants = self._again()

    def forget(self) -> None:
        self._last = None


class _PairViews(Sequence[View]):
    """Made one by one."""

    def __init__(self, steps: PairSteps, step: int) -> None:
        self._steps, self._step = steps, step

    def __len__(self) -> int:
        return self._steps.batches

    def __getitem__(self, number: int) -> View:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self._steps.view(self._step, number)
