"""The optimizer steps of an epoch: which views make each, and which training nodes.

A step may have several micro-batches, computed one after the other (Yang et al., ASPLOS 2023):

    gradient of the loss = sum over micro-batches k of the gradient of (the losses of k's nodes / all training nodes)

Group k of the training nodes of all workers is one micro-batch, a view with a message flow of its own. Where they are the same
in every step, flows are made once, and those that are not computed at the moment lie on disk.

Training nodes are shuffled in every epoch: sorted by a Philox number of (seed, epoch, original id), S runs of them are the S
steps, whose sizes differ by one at most. So they are the same on any number of workers.

Letters: N own rows, W training rows of this worker, S steps, K micro-batches, L layers.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig
from sargnn.errors import ConfigError
from sargnn.rng import Purpose, draw_words
from sargnn.tasks.base import Task
from sargnn.training.views import Constants, View, ViewBuilder

if TYPE_CHECKING:
    from sargnn.plan.drawn import Sample
    from sargnn.plan.target_groups import TargetRows

_DIGIT_BITS, _DIGITS = 9, 7
"""Of a number below 2**63 that is looked for digit by digit."""


@dataclass(frozen=True)
class LayerCounts:
    """Of one layer over all workers: rows that it computes and reads, halo rows, edges."""

    rows: int
    input_rows: int
    halo_rows: int
    edges: int


@dataclass(frozen=True)
class BatchStats:
    """Per micro-batch and layer what is computed; ``distinct``: per layer, rows that any micro-batch computes, each once."""

    layers: tuple[tuple[LayerCounts, ...], ...]
    distinct: tuple[int, ...]

    @property
    def redundancy(self) -> float:
        """Rows computed / distinct rows, all layers together."""
        return sum(layer.rows for batch in self.layers for layer in batch) / max(sum(self.distinct), 1)


def count_rows(view: View, group: Group) -> tuple[LayerCounts, ...]:
    """Per layer; every rank must call it."""
    counts = torch.tensor([[p.num_out, p.num_rows, p.halo_rows, p.num_edges] for p in view.flow.plans])
    return tuple(LayerCounts(*row) for row in group.sum_(counts).tolist())


def find_groups(config: BatchesConfig, count: int, targets: TargetRows, group: Group) -> np.ndarray:
    """Each of this worker's target rows' micro-batch, int32; every rank must call it.

    Raises ``ConfigError`` where a worker has fewer training nodes than there are micro-batches, unless it has none.
    """
    from sargnn.plan.target_groups import group_targets

    check_count(count, _sizes(targets, group))
    return group_targets(config.by, targets, count)


def check_count(count: int, sizes: Sequence[int]) -> None:
    """As of ``find_groups``. ``sizes``: each worker's training nodes [P]."""
    least = most_of(sizes)
    if count > least:
        raise ConfigError(
            f"There are more micro-batches than rank {sizes.index(least)} has training nodes.",
            given=f"batches.count={count}",
            allowed=f"1 to {least}",
        )


def most_batches(targets: TargetRows, group: Group) -> int:
    """The most micro-batches that there can be; every rank must call it."""
    return most_of(_sizes(targets, group))


def most_of(sizes: Sequence[int]) -> int:
    """Of workers that have training nodes, the least number. ``sizes``: each worker's [P]."""
    return min((size for size in sizes if size), default=1)


def _sizes(targets: TargetRows, group: Group) -> list[int]:
    return [int(size) for size in group.gather(torch.tensor(len(targets.rows), dtype=torch.int64))]


class MicroBatches:
    """The views of all micro-batches of a step, in their order. All ranks must make one together.

    Args:
        groups: each target's micro-batch.
        rows: int64, the targets, own rows.
        count: K.
        folder: of this worker alone, where views that are not computed lie; what is in it is deleted. None: in memory.
        recurring: they come again every epoch, so that constant rows are aggregated beforehand.
    """

    def __init__(
        self,
        builder: ViewBuilder,
        groups: np.ndarray,
        rows: np.ndarray,
        count: int,
        num_rows: int,
        group: Group,
        folder: Path | None,
        *,
        recurring: bool = True,
    ) -> None:
        self._recurring = recurring
        self._builder, self._rows = builder, [rows[groups == number] for number in range(count)]
        self._folder, self._num_rows, self._group = folder, num_rows, group
        self._views: list[View] = []
        self.make()

    def make(self) -> None:
        """Make the views; again where what they hold of constant rows is to be computed in another way."""
        self._views = []
        constants = self._builder.first_constants(self._rows) if self._recurring else None
        views: list[View] = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
        layers, seen = [], torch.zeros(0, self._num_rows, dtype=torch.bool)
        for number, rows in enumerate(self._rows):
            view = self._builder.micro_batch(rows, constants)
            layers.append(count_rows(view, self._group))
            if not len(seen):
                seen = seen.new_zeros(len(view.flow.plans), self._num_rows)
            for layer, computed in enumerate(seen):
                computed[view.flow.rows_of(layer, self._num_rows).cpu()] = True
            if self._folder is None:
                views.append(view)
            else:
                torch.save(view, _file_of(self._folder, number))
            del view
        self._views = views
        self.stats = BatchStats(tuple(layers), tuple(self._group.sum_(seen.sum(1)).tolist()))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> View:
        view: View = (
            self._views[number] if self._folder is None else torch.load(_file_of(self._folder, number), weights_only=False)
        )
        return view

    def __iter__(self) -> Iterator[View]:
        return (self[number] for number in range(len(self)))

    def close(self) -> None:
        """Delete what lies on disk."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            for empty in self._folder.parents[:3]:
                with suppress(OSError):  # another rank's are still there
                    empty.rmdir()


def _file_of(folder: Path, number: int) -> Path:
    return folder / f"batch_{number:04d}.pt"


Views = Sequence[View] | MicroBatches
"""Those of one step, in their order; each is made, or read, when it is asked for."""


class Steps(ABC):
    """The S steps of an epoch. All workers call its methods together. ``drawn``: their views are made anew.
    ``holds_constants``: drawn steps share aggregates of constant rows.
    """

    count: int = 1
    epoch: int = 0
    drawn: bool = False
    holds_constants: bool = False

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
    """Always of the same views. ``again`` makes them anew; None: they hold nothing of constant rows, or know how."""

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


@dataclass(frozen=True)
class StepRows:
    """Own training rows that steps are drawn from, int64 ascending [W]; their original ids; their micro-batches, int32 [W]."""

    rows: np.ndarray
    ids: np.ndarray
    groups: np.ndarray
    batches: int


class DrawnSteps(Steps):
    """Steps of shuffled training nodes, or of samples of their neighbours, drawn anew.

    Args:
        count: S.
        sample: gives the sample of a step, by its number since the beginning and its epoch; None: all edges.
        constants: the first layer's aggregates, where all steps share them, and what computes them anew.
    """

    def __init__(
        self,
        builder: ViewBuilder,
        group: Group,
        task: Task,
        training: StepRows,
        *,
        count: int,
        seed: int,
        sample: Callable[[int, int], Sample] | None,
        constants: tuple[Constants | None, Callable[[], Constants | None]] | None = None,
    ) -> None:
        self._builder, self._group, self._task, self._training = builder, group, task, training
        self.drawn, self.holds_constants = True, constants is not None
        self.count, self._seed, self._sample = count, seed, sample
        self._constants, self._again = (None, lambda: None) if constants is None else constants
        self._step_of = np.zeros(len(training.rows), np.int64)
        self._totals = self._sizes = np.zeros((count, 1), np.int64)
        self._last: View | None = None
        self._layers: dict[int, tuple[LayerCounts, ...]] = {}
        self._made = 0
        self.begin(0)

    def begin(self, epoch: int) -> None:
        self.epoch = epoch
        self._step_of = shuffled_steps(self._training.ids, self._seed, epoch, self.count, self._group)
        sizes = np.zeros((self.count, self._training.batches + 1), np.int64)
        np.add.at(sizes, (self._step_of, self._training.groups), 1)
        for step in range(self.count):
            sizes[step, -1] = self._task.count(self.rows(step))
        sums = self._group.sum_(torch.from_numpy(sizes)).numpy()
        self._sizes, self._totals = sums[:, :-1], sums[:, -1]

    def rows(self, step: int) -> np.ndarray:
        return self._training.rows[self._step_of == step]

    def sample_of(self, step: int) -> Sample | None:
        return None if self._sample is None else self._sample(self.epoch * self.count + step, self.epoch)

    def views(self, step: int) -> Views:
        return _DrawnViews(self, step)

    def only_view(self) -> View:
        """Of one step without micro-batches that is the same in all epochs."""
        return self._builder.drawn(self.rows(0), int(self._totals[0]), self.sample_of(0), self._constants, recurring=True)

    def numbers(self, step: int) -> list[int]:
        """The micro-batches of a step that have nodes."""
        return [int(number) for number in np.flatnonzero(self._sizes[step])]

    def group_rows(self, step: int, number: int) -> np.ndarray:
        """int64 ascending, a micro-batch's training rows."""
        return self._training.rows[(self._step_of == step) & (self._training.groups == number)]

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

    def remake(self) -> None:
        self._constants = self._again()

    def forget(self) -> None:
        self._last = None


class _DrawnViews(Sequence[View]):
    """Made one by one."""

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
            rows, int(steps._totals[self._step]), steps.sample_of(self._step), steps._constants, self._outward
        )
        steps._layers[number] = count_rows(view, steps._group)
        return view


def shuffled_steps(ids: np.ndarray, seed: int, epoch: int, count: int, group: Group) -> np.ndarray:
    """Which of ``count`` steps each of this worker's training nodes is in, int64 [W]; all workers must call it together.

    ``ids``: int64 [W], original ids below 2**32.
    """
    if count == 1:
        return np.zeros(len(ids), np.int64)
    return deal(((draw_words(ids, seed, Purpose.SHUFFLE, epoch) >> 1) << 32) | ids, count, group)  # all different


def deal(keys: np.ndarray, count: int, group: Group) -> np.ndarray:
    """Which of ``count`` runs of all workers' ascending keys each of this worker's is in, int64; all workers must call it.

    ``keys``: int64, from 0 to below 2**63. The runs' sizes differ by one at most.
    """
    if count == 1:
        return np.zeros(len(keys), np.int64)
    total = int(group.sum_(torch.tensor(len(keys))))
    ranks = np.array([total * step // count for step in range(1, count)], np.int64)
    return np.searchsorted(_of_ranks(np.sort(keys), ranks, group), keys, side="right")


def _of_ranks(keys: np.ndarray, ranks: np.ndarray, group: Group) -> np.ndarray:
    """The keys of all workers that have these ranks, int64 [J] from 0. ``keys``: this worker's, int64, ascending, from 0 on."""
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
