"""Predicting nodes: one class, several labels or numbers of each, by the dtype of the dataset's labels (``graph.schema``).

A worker's share of the loss is its sum over known labels of training nodes / their number over all workers; the shares add up.
z is a logit, y a label, K the known labels of the rows that count, over all workers:

    classes      1/|K| sum over rows i of -w[y_i] log softmax(z_i)[y_i]    label smoothing e: y (1 - e) + e/C for one-hot y
    multilabel   1/|K| sum over (i, c) of log(1 + exp(z_ic)) - y_ic z_ic   label smoothing e: y (1 - e) + e/2
    regression   1/|K| sum over (i, c) of (z_ic - y_ic)^2

w are weights of classes, scaled so that their mean over all training labels is 1: of a whole training set the loss is PyTorch's
weighted mean. ``balanced`` ones are 1 / (labels of the class), those of all classes that there are being scaled together.

A class is one label a row. Of several labels or numbers some entries of a row may be unknown: they are in neither sum.

Letters: n rows, N own rows, M output rows, C outputs.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sargnn.bf16 import ROW_DTYPES, wide
from sargnn.comm.group import Group
from sargnn.config.choices import Task as TaskName
from sargnn.config.groups import LabelsConfig, OptimConfig
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.schema import SPLITS, task_of
from sargnn.partition.part import Part
from sargnn.resolve import is_target, resolve
from sargnn.rng import Draw, Purpose, dropout_rows
from sargnn.tasks.base import Counted, Predict, Targets, Task
from sargnn.tasks.kinds import BY_ORDER, KINDS, Scores, choose_metric, in_split, metric_name
from sargnn.tasks.metrics import check_metric, measure

if TYPE_CHECKING:
    from sargnn.graph.dataset import Dataset

_NUMBERS_AT_ONCE = 1 << 19
"""Of logits that are widened: two megabytes, which malloc gives back when they are freed."""


class Labels(ABC):
    """A kind of labels. They come with the dtype and shape that ``graph.schema`` lists, of any n rows; logits are [n, C]."""

    @abstractmethod
    def count(self, labels: Tensor) -> int:
        """How many labels of rows of the split are known."""

    @abstractmethod
    def loss_sum(self, logits: Tensor, labels: Tensor, label_smoothing: float, weights: Tensor | None = None) -> Tensor:
        """The loss summed over known labels; for no rows a zero that is still differentiable. ``weights``: [C], of classes."""

    def known(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """What a loss of one's own gets: of several labels or numbers the known entries, flat, in one dtype."""
        known = labels.isfinite() if labels.is_floating_point() else labels >= 0
        return logits[known], labels[known].to(logits.dtype)

    @abstractmethod
    def columns(self, labels: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
        """Labels as further input, [n, C]; zeros where they are not known."""

    @abstractmethod
    def soft(self, logits: Tensor) -> Tensor:
        """Predictions in the place of labels that are not carried, [n, C]."""

    @abstractmethod
    def predictions(self, logits: Tensor) -> Tensor:
        """What ``sargnn predict`` writes: int64 [n] classes, uint8 [n, C] labels, or [n, C] values."""


class Classes(Labels):
    """One class of C."""

    def count(self, labels: Tensor) -> int:
        return len(labels)

    def loss_sum(self, logits: Tensor, labels: Tensor, label_smoothing: float, weights: Tensor | None = None) -> Tensor:
        weights = None if weights is None else weights.to(logits.dtype)
        return F.cross_entropy(logits, labels, weights, reduction="sum", label_smoothing=label_smoothing)

    def known(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return logits, labels

    def columns(self, labels: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
        columns = torch.zeros(len(labels), num_outputs, dtype=dtype, device=labels.device)
        return columns.scatter_(1, labels[:, None], 1.0)

    def soft(self, logits: Tensor) -> Tensor:
        return logits.softmax(1)

    def predictions(self, logits: Tensor) -> Tensor:
        return logits.argmax(1)


class Multilabel(Labels):
    """C labels at once, each true or not; a label is predicted where its logit is above 0."""

    def count(self, labels: Tensor) -> int:
        return int((labels >= 0).sum())

    def loss_sum(self, logits: Tensor, labels: Tensor, label_smoothing: float, weights: Tensor | None = None) -> Tensor:
        wanted = labels.clamp(min=0).to(logits.dtype) * (1 - label_smoothing) + label_smoothing / 2
        known = (labels >= 0).to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, wanted, weight=known, reduction="sum")

    def columns(self, labels: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
        return labels.clamp(min=0).to(dtype)

    def soft(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def predictions(self, logits: Tensor) -> Tensor:
        return (logits > 0).to(torch.uint8)


class Regression(Labels):
    """C numbers; the logits are the values."""

    def count(self, labels: Tensor) -> int:
        return int(labels.isfinite().sum())

    def loss_sum(self, logits: Tensor, labels: Tensor, label_smoothing: float, weights: Tensor | None = None) -> Tensor:
        # An unknown entry's target is the prediction itself: no difference, no gradient.
        wanted = torch.where(labels.isfinite(), labels.to(logits.dtype), logits.detach())
        return F.mse_loss(logits, wanted, reduction="sum")

    def columns(self, labels: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
        return labels.nan_to_num(0.0).to(dtype)

    def soft(self, logits: Tensor) -> Tensor:
        return logits

    def predictions(self, logits: Tensor) -> Tensor:
        return logits


LABELS: dict[TaskName, Labels] = {"classes": Classes(), "multilabel": Multilabel(), "regression": Regression()}


class LabelLoss:
    """The loss of some labels, summed: that of their kind, or ``optim.loss``; for no rows a differentiable zero.

    One's own is a function of logits and labels with ``reduction="sum"``, as those of ``torch.nn.functional``, or a class whose
    objects are such functions, made with ``reduction="sum"``, as those of ``torch.nn``. It gets logits [n, C] and classes
    int64 [n], or the known ones of several labels or numbers, flat. ``weights``: [C], of classes, scaled; None: all are 1.
    """

    def __init__(self, config: OptimConfig, kind: Labels, weights: Tensor | None = None) -> None:
        self.kind, self.label_smoothing, self.weights = kind, config.label_smoothing, weights
        self.own = None if config.loss is None else own_loss(config.loss)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.own is not None:
            if isinstance(self.own, nn.Module):  # its buffers are where the logits are
                self.own.to(logits.device)
            return self.own(*self.kind.known(logits, labels))
        return self.kind.loss_sum(logits, labels, self.label_smoothing, self.weights)


def own_loss(target: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss that a target names, summed. Raises ``ConfigError`` for what is none."""
    named = resolve("loss", {}, target)
    try:
        own: Callable[[Tensor, Tensor], Tensor] = (
            named(reduction="sum") if isinstance(named, type) else partial(named, reduction="sum")
        )
    except TypeError as error:
        raise _no_loss(target, error) from error
    if not callable(own):
        raise _no_loss(target, type(own).__name__)
    return own


def _no_loss(target: str, why: object) -> ConfigError:
    return ConfigError(
        "'optim.loss' names no loss that can be summed.",
        given=f"{target}: {str(why)[:200]}",
        allowed='a function of logits and labels with reduction="sum", such as torch.nn.functional:huber_loss',
    )


def _check_own_loss(config: OptimConfig, kind: Labels, labels: Tensor, outputs: int, dtype: torch.dtype) -> None:
    """Raises ``ConfigError`` where one's own loss does not take such labels, some known rows, [n] or [n, C], or is no sum over
    rows. ``dtype``: of the logits that it gets.
    """
    assert config.loss is not None
    if config.label_smoothing or config.class_weights is not None:
        raise ConfigError(
            "Label smoothing and weights of classes are of the labels' own loss.",
            given=f"optim.loss={config.loss}",
            allowed="optim.label_smoothing=0 optim.class_weights=null",
        )
    loss = LabelLoss(config, kind)
    if isinstance(loss.own, nn.Module) and any(True for _ in loss.own.parameters()):
        raise _no_loss(config.loss, "it has parameters, which nothing would train")
    logits = torch.linspace(-1.0, 1.0, len(labels) * outputs, dtype=dtype).reshape(len(labels), outputs)
    try:
        whole, *parts = (loss(logits[rows], labels[rows]) for rows in (slice(None), slice(1), slice(1, None), slice(0)))
        same = whole.dim() == 0 and bool(torch.isclose(whole, torch.stack(parts).sum()))
    except Exception as error:  # whatever code outside raises
        raise _no_loss(config.loss, error) from error
    if not same:
        raise _no_loss(config.loss, "the losses of two parts do not add up to that of both, or that of no rows is not 0")


class LabelInputs:
    """Labels of training nodes as further input: masked label prediction (Shi et al., 2021), label reuse (Wang et al., 2021).

    Every epoch a random part of the training nodes carries its label as a row beside its features: one-hot of a class, else
    the labels or numbers themselves, 0 for what is not known. The loss is taken on the others, so that no node ever sees the
    label that it is to predict. At evaluation all training nodes carry theirs.

    With reuse the nodes that carry none get predicted labels instead: the model runs once more for each iteration, in
    evaluation mode and without gradients, and softmax(logits) becomes their input; of several labels sigmoid(logits), of
    numbers the logits. These predictions come from labels that were carried, never from the others.

    Args:
        labels: [N] or [N, C], where rows lie.
        training: bool [N], on the host, the own rows that are trained on.
        ids: int64 [N], on the host, original ids of the own rows.
        dtype: of the columns.
    """

    def __init__(
        self,
        config: LabelsConfig,
        kind: Labels,
        labels: Tensor,
        training: Tensor,
        ids: Tensor,
        num_outputs: int,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        self.training, self._config, self._kind, self._seed = training, config, kind, seed
        self._labels, self._ids, self._num_outputs, self._dtype = labels, ids, num_outputs, dtype
        self._drawn: tuple[int, Tensor] | None = None

    @property
    def masked(self) -> bool:
        """Whether training nodes are kept from carrying their label while they are predicted."""
        return self._config.name == "masked"

    def carried(self, epoch: int | None) -> Tensor:
        """bool [N], on the host, the training rows that carry their label: drawn by original id and epoch; without one all."""
        if epoch is None or not self.masked:
            return self.training
        if self._drawn is None or self._drawn[0] != epoch:
            rows = torch.nonzero(self.training)[:, 0]
            draw = Draw(self._seed, epoch, Purpose.LABELS, 0, 1.0 - self._config.rate)
            carried = torch.zeros_like(self.training)
            carried[rows] = dropout_rows(torch.ones(len(rows), 1, dtype=self._dtype), self._ids[rows], draw)[:, 0] > 0
            self._drawn = epoch, carried
        return self._drawn[1]

    def read(self, step: int | None, predict: Predict, share: Callable[[Tensor], object]) -> Tensor:
        """[N, C], as ``Task.columns``: the labels of those that carry theirs; else zeros, or with reuse what is predicted."""
        carried, device = self.carried(step), self._labels.device
        columns = torch.zeros(len(carried), self._num_outputs, dtype=self._dtype, device=device)
        rows = torch.nonzero(carried)[:, 0].to(device, non_blocking=True)
        columns[rows] = self._kind.columns(self._labels[rows], self._num_outputs, self._dtype)
        for _ in range(self._config.reuse):
            logits, predicted = predict(columns)
            soft = self._kind.soft(logits)
            blank = torch.nonzero(~carried)[:, 0].to(device, non_blocking=True)
            if predicted is None:
                columns[blank] = soft[blank].to(columns.dtype)
            else:
                given = carried.to(device, non_blocking=True)[predicted, None]
                columns[predicted] = torch.where(given, columns[predicted], soft.to(columns.dtype))
            del logits, soft
            share(columns)
        return columns


class NodeTask(Task):
    """Predicts what nodes are. A task of one's own that has another loss extends this class and has its own ``loss_sum``.

    ``label_smoothing``: how much of a label's weight is spread over all classes, or over true and false.
    """

    @classmethod
    def check(cls, config: RunConfig, dataset: Dataset) -> None:
        task, split = dataset.task, np.asarray(dataset.split)
        if not in_split(split, "train").any():  # a store without links has some
            of_edges = dataset.pairs is not None and dataset.pairs.labels is not None
            what, choice = ("labels of edges", "task=edges") if of_edges else ("links", "task=links")
            raise ConfigError(f"'{dataset.name}' has no training nodes, but {what}.", hint=choice)
        some = np.asarray(dataset.labels[np.flatnonzero(in_split(split, "train"))[:8]])
        metric = check_metric(task, config.metric, dataset.num_classes, some)
        if config.optim.loss is not None and cls.loss_sum is not NodeTask.loss_sum:
            raise ConfigError("The task has a loss of its own.", given=f"task={config.task}", allowed="optim.loss=null")
        given, kind = f"labels of the task {task}", KINDS[task]
        check_loss(config, task, dataset.num_classes, some)
        if not kind.are_shares and config.smooth.name != "none":
            raise ConfigError(
                "Correct & Smooth spreads the shares of classes, which add up to one.",
                given=f"smooth={config.smooth.name}, {given}",
                allowed="smooth=none",
            )
        if config.batches.steps > (nodes := int(in_split(split, "train").sum())):
            raise ConfigError(
                "There are more steps in an epoch than training nodes.",
                given=f"batches.steps={config.batches.steps}",
                allowed=f"1 to {nodes}",
            )
        if config.early_stopping is not None and not in_split(split, "valid").any():
            raise ConfigError("Early stopping needs validation nodes, and the dataset has none.", hint="early_stopping=null")
        if task == "classes" and metric in BY_ORDER:
            _check_classes(metric, np.asarray(dataset.labels), split, config.early_stopping)

    def __init__(self, config: RunConfig, part: Part, outputs: int, group: Group, *, reads_labels: bool = False) -> None:
        self.name = task_of(part.labels)
        self.kind, self.outputs, self._measured = LABELS[self.name], outputs, choose_metric(self.name, config.metric, outputs)
        self.metric = metric_name(self._measured)
        self.label_smoothing, self._group = config.optim.label_smoothing, group
        # What is only chosen by and counted stays on the host, so that a step reads nothing of where rows lie.
        self._known, split, ids, self._inner = (
            torch.from_numpy(np.array(rows)) for rows in (part.labels, part.split, part.node_ids, part.inner)
        )
        self._labels = self._known.to(torch.device(config.device))
        self._inputs: LabelInputs | None = None
        if config.reads_labels or reads_labels:
            training, dtype = in_split(split, "train"), ROW_DTYPES[config.precision]
            self._inputs = LabelInputs(config.labels, self.kind, self._labels, training, ids, outputs, config.seed, dtype)
            self.input_columns, self.feeds_back = outputs, config.labels.reuse > 0
        self._split = split * self._inner  # a copy's loss and score are its owner's
        weights: Tensor | None = None
        if config.optim.class_weights is not None:
            own = self._known[in_split(self._split, "train")]
            weights = scaled_weights(config.optim.class_weights, own, outputs, group).to(self._labels.device)
        self._ids, self.label_loss = ids, LabelLoss(config.optim, self.kind, weights)

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss summed over the known labels [n] or [n, C] of some rows; for no rows a zero that is still differentiable.

        It must be a sum over rows: workers, micro-batches and pieces of a table are added up.
        """
        return self.label_loss(logits, labels)

    def rows(self, split: str | None = None) -> np.ndarray:
        wanted = self._split > 0 if split is None else in_split(self._split, split)
        return torch.nonzero(wanted)[:, 0].numpy()

    def count(self, rows: np.ndarray) -> int:
        return self.kind.count(self._known[torch.from_numpy(rows)])

    def targets(self, output_rows: Tensor | None, counts: Mapping[str, int] | None = None) -> Targets:
        labels, own_rows = self._labels, torch.arange(len(self._split))
        if output_rows is not None:
            labels, own_rows = labels.index_select(0, output_rows), output_rows.cpu()
        split = self._split[own_rows]
        rows = {name: torch.nonzero(split == value)[:, 0] for name, value in SPLITS.items()}
        if counts is None:
            own = [self.kind.count(self._known[own_rows[chosen]]) for chosen in rows.values()]
            counts = dict(zip(rows, self._group.sum_(torch.tensor(own, dtype=torch.int64)).tolist(), strict=True))
        there = {name: chosen.to(labels.device, non_blocking=True) for name, chosen in rows.items()}
        return Targets(
            labels, there, counts, own_rows[rows["train"]], self._ids[own_rows] if is_target(self._measured) else None
        )

    def columns(self, step: int | None, predict: Predict, share: Callable[[Tensor], object]) -> Tensor | None:
        return None if self._inputs is None else self._inputs.read(step, predict, share)

    def counted(self, step: int, rows: np.ndarray | None) -> Counted:
        if self._inputs is None or not self._inputs.masked:
            return Counted()
        hidden = self._inputs.training & ~self._inputs.carried(step) & self._inner
        if rows is not None:
            in_step = torch.zeros_like(hidden)
            in_step[torch.from_numpy(rows)] = True
            hidden &= in_step
        known = torch.tensor(self.kind.count(self._known[hidden]), dtype=torch.int64)
        return Counted(int(self._group.sum_(known)), hidden)

    def loss(self, outputs: Tensor, targets: Targets, counted: Counted) -> Tensor:
        rows, labels = targets.rows["train"], max(counted.total(targets), 1)
        if counted.rows is not None:
            assert targets.trained is not None
            chosen = torch.nonzero(counted.rows[targets.trained])[:, 0]
            rows = rows[chosen.to(rows.device, non_blocking=True)]
        if wide(outputs.dtype) != outputs.dtype:
            share: Tensor = _OfRoundedLogits.apply(outputs, targets.labels, rows, labels, self.loss_sum)
            return share
        return self.loss_sum(outputs.index_select(0, rows), targets.labels.index_select(0, rows)) / labels

    def kept_of(self, outputs: Tensor, targets: Targets) -> Tensor:
        return outputs  # few rows of a large graph have labels, and no others need be widened

    def metrics(self, outputs: Tensor, targets: Targets) -> Scores:
        return measure(self._measured, outputs, targets, self._group)

    def validation_loss(self, outputs: Tensor, targets: Targets) -> float | None:
        rows, count = targets.rows["valid"], targets.global_counts["valid"]
        own = outputs.index_select(0, rows).to(wide(outputs.dtype))
        return mean_loss(self._group, self.loss_sum(own, targets.labels.index_select(0, rows)).double(), count)

    def tables(self, outputs: Tensor) -> dict[str, Tensor]:
        """``predictions``: int64 [n] classes, uint8 [n, C] labels, or [n, C] values."""
        return {"predictions": self.kind.predictions(outputs)}


def check_loss(run: RunConfig, task: TaskName, num_classes: int, labels: np.ndarray) -> None:
    """Raises ``ConfigError`` where one's own loss, label smoothing or class weights do not go with the labels."""
    config, kind = run.optim, KINDS[task]
    if config.loss is not None:
        dtype = torch.float64 if run.precision == "fp64" else torch.float32
        _check_own_loss(config, LABELS[task], torch.from_numpy(labels), num_classes, dtype)
    if kind.why_not_smoothed is not None and config.label_smoothing:
        raise ConfigError(
            kind.why_not_smoothed,
            given=f"optim.label_smoothing={config.label_smoothing}, labels of the task {task}",
            allowed="optim.label_smoothing=0",
        )
    if config.class_weights is None:
        return
    given = f"optim.class_weights={config.class_weights}"
    if task != "classes":
        raise ConfigError(
            "Only classes have weights.", given=f"{given}, labels of the task {task}", allowed="optim.class_weights=null"
        )
    if config.class_weights != "balanced" and (len(config.class_weights) != num_classes or not any(config.class_weights)):
        raise ConfigError(
            "'optim.class_weights' has a weight for each class, not all of them 0.",
            given=given,
            allowed=f"balanced, or {num_classes} numbers",
        )


def scaled_weights(weights: Sequence[float] | str, labels: Tensor, num_classes: int, group: Group) -> Tensor:
    """Weights of classes, fp64 [C], whose mean over all workers' training labels is 1; all workers must call it together.

    ``weights``: of each class, or ``balanced``; ``labels``: int64, of this worker's training rows.
    """
    counts = group.sum_(torch.bincount(labels, minlength=num_classes)).double()
    given = 1 / counts.clamp(min=1) if isinstance(weights, str) else torch.tensor(weights, dtype=torch.float64)
    return given * (counts.sum() / (given * counts).sum().clamp(min=torch.finfo(torch.float64).tiny))


def mean_loss(group: Group, total: Tensor, count: int) -> float | None:
    """All workers' losses, added up / ``count``; None without a label, and where it is not finite."""
    loss = float(group.sum_(total.detach())) / max(count, 1)
    return loss if count and math.isfinite(loss) else None


def _check_classes(metric: str, labels: np.ndarray, split: np.ndarray, early_stopping: int | None) -> None:
    """Say on which splits ``rocauc`` or ``ap`` is not defined, as all their nodes are of one class, for ``ap`` of class 0.

    Raises ``ConfigError`` where that ends the run.
    """
    for name in SPLITS:
        classes = np.unique(labels[in_split(split, name)])
        if len(classes) != 1 or (metric == "ap" and classes[0] == 1):
            continue
        if name == "valid" and early_stopping is not None:
            raise ConfigError(
                f"Early stopping needs validation nodes of both classes, for metric={metric} compares one with the other.",
                given=f"all are of class {classes[0]}, early_stopping={early_stopping}",
                hint="early_stopping=null, or metric=accuracy",
            )
        said = f"metric={metric} is not defined on the split '{name}': all its nodes are of class {classes[0]}"
        logging.getLogger(__name__).warning(said)


class _OfRoundedLogits(torch.autograd.Function):
    """The share of bf16 logits, in fp32, which no table is held in; saves its gradient, which is as large as they are."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, rows: Tensor, count: int, loss_sum: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        gradient = torch.zeros_like(logits) if ctx.needs_input_grad[0] else None
        share = torch.zeros((), dtype=torch.float64, device=logits.device)
        for chunk in rows.split(max(1, _NUMBERS_AT_ONCE // max(1, logits.shape[1]))):
            leaf = logits[chunk].to(wide(logits.dtype)).requires_grad_(gradient is not None)
            with torch.set_grad_enabled(gradient is not None):
                loss = loss_sum(leaf, labels[chunk]) / count
            if gradient is not None:
                gradient[chunk] = torch.autograd.grad(loss, leaf)[0].to(gradient.dtype)
            share += loss.detach()
        ctx.gradient = gradient
        return share.to(wide(logits.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradient, ctx.gradient = ctx.gradient, None
        return gradient.mul_(grad), None, None, None, None
