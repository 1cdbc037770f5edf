"""The micro-batches of a step: views of groups of training nodes, computed one after the other (Yang et al., ASPLOS 2023).

    gradient of the loss = sum over micro-batches k of the gradient of (the losses of k's nodes / all training nodes)

Group k of all workers is one micro-batch, with a message flow of its own: rows that several groups reach are computed in each.
Flows are made once. Those that are not computed at the moment lie on disk, so that K of them do not cost K graphs.

Letters: N own rows, K micro-batches, L layers.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig
from sargnn.errors import ConfigError
from sargnn.plan.target_groups import TargetRows, group_targets
from sargnn.training.views import View, ViewBuilder


class ViewsOnDisk:
    """Views that are read when their turn comes.

    Args:
        folder: of this worker alone; what is in it is deleted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def append(self, view: View) -> None:
        """Write a view."""
        torch.save(view, self._path(self._number))
        self._number += 1

    def __getitem__(self, number: int) -> View:
        view: View = torch.load(self._path(number), weights_only=False)
        return view

    def _path(self, number: int) -> Path:
        return self._folder / f"batch_{number:04d}.pt"


@dataclass(frozen=True)
class LayerCounts:
    """Of one layer over all workers: rows that it computes and reads, halo rows, edges."""

    rows: int
    input_rows: int
    halo_rows: int
    edges: int


@dataclass(frozen=True)
class BatchStats:
    """What micro-batches compute.

    Attributes:
        layers: per micro-batch and layer.
        distinct: per layer, rows that any micro-batch computes, each once.
    """

    layers: tuple[tuple[LayerCounts, ...], ...]
    distinct: tuple[int, ...]

    @property
    def redundancy(self) -> float:
        """Rows computed / distinct rows, all layers together."""
        return sum(layer.rows for batch in self.layers for layer in batch) / max(sum(self.distinct), 1)


def count_rows(view: View, group: Group) -> tuple[LayerCounts, ...]:
    """Of a view, per layer; every rank must call it."""
    counts = torch.tensor([[p.num_out, p.num_rows, p.halo_rows, p.num_edges] for p in view.flow.plans])
    return tuple(LayerCounts(*row) for row in group.sum_(counts).tolist())


def find_groups(config: BatchesConfig, count: int, targets: TargetRows, group: Group) -> np.ndarray:
    """Each of this worker's target rows' micro-batch, int32; every rank must call it.

    Raises:
        ConfigError: there are more micro-batches than a worker has training nodes. One without any takes part in all.
    """
    sizes = _sizes(targets, group)
    least = most_batches(targets, group)
    if count > least:
        rank = sizes.index(least)
        raise ConfigError(
            f"There are more micro-batches than rank {rank} has training nodes.",
            given=f"batches.count={count}",
            allowed=f"1 to {least}",
        )
    return group_targets(config.by, targets, count)


def most_batches(targets: TargetRows, group: Group) -> int:
    """How many there can be: of workers that have training nodes, the least number; every rank must call it."""
    return min((size for size in _sizes(targets, group) if size), default=1)


def _sizes(targets: TargetRows, group: Group) -> list[int]:
    return [int(size) for size in group.gather(torch.tensor(len(targets.rows), dtype=torch.int64))]


class MicroBatches:
    """The views of all micro-batches of a step, in their order. All ranks must make one together.

    Args:
        groups: each target's micro-batch. rows: int64, the targets, own rows. count: K.
        folder: where views that are not computed lie; None: in memory.
        recurring: they come again every epoch, so that constant rows are aggregated beforehand.

    Attributes:
        stats: what they compute.
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
        self._views: list[View] | ViewsOnDisk = []
        self.make()

    def make(self) -> None:
        """Make the views; again where what they hold of constant rows is to be computed in another way."""
        self._views = []
        constants = self._builder.first_constants(self._rows) if self._recurring else None
        views: list[View] | ViewsOnDisk = [] if self._folder is None else ViewsOnDisk(self._folder)
        layers, seen = [], torch.zeros(0, self._num_rows, dtype=torch.bool)
        for rows in self._rows:
            view = self._builder.micro_batch(rows, constants)
            layers.append(count_rows(view, self._group))
            if not len(seen):
                seen = seen.new_zeros(len(view.flow.plans), self._num_rows)
            for layer, computed in enumerate(seen):
                computed[view.flow.rows_of(layer, self._num_rows)] = True
            views.append(view)
            del view
        self._views = views
        self.stats = BatchStats(tuple(layers), tuple(self._group.sum_(seen.sum(1)).tolist()))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> View:
        view: View = self._views[number]
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
