"""What is predicted, as the loop and the views see it.

Letters: N own rows, M output rows, C outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from sargnn.bf16 import wide
from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.partition.part import Part
from sargnn.resolve import resolve
from sargnn.tasks import TASKS
from sargnn.tasks.kinds import Scores

if TYPE_CHECKING:
    from sargnn.graph.dataset import Dataset
    from sargnn.graph.queries import Queries


@dataclass(frozen=True)
class Targets:
    """What output rows should be.

    Attributes:
        labels: [M] or [M, C], as the task has them.
        rows: split name -> int64, the output rows in it.
        global_counts: split name -> known labels in it over all workers; of a part of a step those of the whole step.
        trained: int64, on the host, the own rows that ``rows["train"]`` are; None: that is not known.
        ids: int64 [M], on the host, numbers in the whole graph; None: no metric asks for them.
        queries: what the model is asked; None: its rows depend on no query.
    """

    labels: Tensor
    rows: dict[str, Tensor]
    global_counts: Mapping[str, int]
    trained: Tensor | None = None
    ids: Tensor | None = None
    queries: Queries | None = None

    @staticmethod
    def join(parts: Sequence[Targets]) -> Targets:
        """Of the output rows of several views, one behind the other; each part has the counts of all."""
        if len(parts) == 1:
            return parts[0]
        rows: dict[str, list[Tensor]] = {name: [] for name in parts[0].rows}
        first = 0
        for part in parts:
            for name, own in part.rows.items():
                rows[name].append(own + first)
            first += len(part.labels)
        labels, ids = torch.cat([part.labels for part in parts]), [part.ids for part in parts if part.ids is not None]
        joined = {name: torch.cat(own) for name, own in rows.items()}
        return Targets(labels, joined, parts[0].global_counts, ids=torch.cat(ids) if ids else None)


@dataclass(frozen=True)
class Counted:
    """The labels that a step's loss is the mean over: how many, over all workers, None: those of the step's targets; and own
    rows that they belong to, bool [N], on the host, None: all training rows of the step's views.
    """

    labels: int | None = None
    rows: Tensor | None = None

    def total(self, targets: Targets) -> int:
        return targets.global_counts["train"] if self.labels is None else self.labels


Predict = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""From columns [N, C] to outputs [M, C] and the own rows that these belong to, int64 [M]; None: all, in their order."""


Of = Callable[[Tensor, Targets, Counted], Tensor]
"""What is made of a view's outputs [M, C], such as its share of the loss."""


class Task(ABC):
    """What is predicted by one worker's rows. All workers make one together.

    A class outside of the package is named by ``task=FILE.py:CLASS``. It usually extends ``tasks.nodes.NodeTask``.

    Args:
        outputs: C.
        reads_labels: the model reads labels beside the features, whatever ``config.labels`` says.

    Attributes:
        name: what files say that was predicted.
        metric: what evaluations measure.
        outputs: C, the width of the model's last layer.
        input_columns: how many columns stand beside the features of the model's input.
        feeds_back: those columns hold predictions, for which the model runs on all rows before every step.
        measured: split -> name -> value, all that the last evaluation has measured, where it is more than the metric.
    """

    name: str
    metric: str
    outputs: int
    input_columns: int = 0
    feeds_back: bool = False
    measured: Mapping[str, Mapping[str, float | None]] = MappingProxyType({})

    @classmethod
    @abstractmethod
    def check(cls, config: RunConfig, dataset: Dataset) -> None:
        """Refuse settings that do not go with a dataset, before it is partitioned. Raises ``ConfigError``."""

    @abstractmethod
    def __init__(self, config: RunConfig, part: Part, outputs: int, group: Group, *, reads_labels: bool = False) -> None:
        """Take what it needs of the part."""

    @property
    def module(self) -> nn.Module | None:
        """What of the task is trained with the model."""
        return None

    def connect(self, exchange: Exchange, message_rows: int, near: range) -> None:  # noqa: B027 - most need no rows of others
        """Called once, before steps are made. ``message_rows`` and ``near`` are as of ``comm.lists.HaloLists``."""

    def begin(self, of_first_step: Callable[[Of], Tensor]) -> None:  # noqa: B027 - most need nothing
        """Called before every epoch. ``of_first_step`` gives what a function makes of the first step's outputs, summed over all
        views and workers, for a forward pass. All workers must call it together."""

    @abstractmethod
    def rows(self, split: str | None = None) -> np.ndarray:
        """int64 ascending, the own rows whose outputs a split is measured by; of any split if none is named."""

    @abstractmethod
    def count(self, rows: np.ndarray) -> int:
        """Known labels of own rows (int64)."""

    @abstractmethod
    def targets(self, output_rows: Tensor | None, counts: Mapping[str, int] | None = None) -> Targets:
        """What a view's output rows should be. All workers must call it together where labels are not counted yet.

        Args:
            output_rows: int64 [M], the own rows that are computed, in their order; None: all.
            counts: split name -> known labels over all workers, of the step that the view is a part of; None: they are counted.
        """

    @abstractmethod
    def counted(self, step: int, rows: np.ndarray | None) -> Counted:
        """Which labels the loss of a step is the mean over. All workers must call it together.

        Args:
            step: its number since training began.
            rows: int64 ascending, the step's training rows; None: all.
        """

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Targets, counted: Counted) -> Tensor:
        """This worker's share of a step's loss; the shares of all views and workers add up to the loss.

        A worker without labels gives a zero that is still differentiable. Of bf16 outputs [M, C] the loss and its gradient are
        computed in fp32.
        """

    def kept_of(self, outputs: Tensor, targets: Targets) -> Tensor:
        """What an evaluation keeps of a view's outputs for ``metrics``, [M, ...]. All workers must call it together."""
        return outputs.to(wide(outputs.dtype))

    @abstractmethod
    def metrics(self, outputs: Tensor, targets: Targets) -> Scores:
        """The metric by split, the same on all workers, which must call it together. outputs: [M, C]."""

    def validation_loss(self, outputs: Tensor, targets: Targets) -> float | None:
        """The loss of validation labels, likewise; None where there is none."""
        return None

    def evaluation_bytes(self) -> int:
        """What ``metrics`` holds beside the outputs, where that is more than a little."""
        return 0

    @abstractmethod
    def tables(self, outputs: Tensor) -> dict[str, Tensor]:
        """What ``sargnn predict`` writes beside the outputs [M, C]: a table with a row for each of them, by name."""

    def columns(self, step: int | None, predict: Predict, share: Callable[[Tensor], object]) -> Tensor | None:
        """What stands beside the features, [N, ``input_columns``]; None: nothing does. All workers must call it together.

        Args:
            step: the training step whose columns they are; None: those of an evaluation.
            predict: with ``feeds_back`` runs the model with some columns.
            share: gives rows [N, ...] to their copies on other workers, where there are such.
        """
        return None


def load_task(choice: str) -> type[Task]:
    """The class that a key of ``TASKS``, or a target, names. Raises ``ConfigError`` for what is no task."""
    task = resolve("task", TASKS, choice)
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise ConfigError(
            "'task' does not name a task.", given=choice, allowed="a class that extends sargnn.tasks.nodes.NodeTask, or Task"
        )
    if missing := sorted(getattr(task, "__abstractmethods__", ())):
        raise ConfigError(
            "The class that 'task' names is not complete.", given=choice, hint=f"define {', '.join(missing)} in it"
        )
    return task
