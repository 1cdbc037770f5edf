"""The training loop of one worker.

Letters: N own rows, F features, C classes, P workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.group import sum_flat
from sargnn.config import RunConfig
from sargnn.data.dataset import SPLITS
from sargnn.engine.aggregate import Engine
from sargnn.engine.pool import POOL
from sargnn.errors import TrainingError
from sargnn.models.stack import Stack
from sargnn.shards.graph import WorkerGraph
from sargnn.shards.mfg import MessageFlow
from sargnn.shards.plan import LayerPlan
from sargnn.spans import EVALUATION, OPTIMIZER, REST, Spans, install, span
from sargnn.tracking.memory import PeakMeter
from sargnn.training.correct_smooth import correct_and_smooth
from sargnn.training.flops import counting
from sargnn.training.labels import LabelInputs
from sargnn.training.loss import Targets, accuracies, training_loss
from sargnn.training.optim import clip_gradients, learning_rate, make_optimizer


@dataclass
class History:
    """Figures of a run so far, the same on every rank but for the memory peaks.

    Attributes:
        losses: per epoch, sum over ranks / global count.
        epoch_times_s, compute_times_s, wait_times_s: per epoch, slowest rank.
        epoch_bytes: per epoch, rows and errors sent by all ranks.
        evaluate_times_s: per evaluation.
        accuracies: the last evaluation's, by split.
        best_val_acc, test_acc_at_best_val: the last of tied best epochs counts.
        stale: evaluations since the validation accuracy was better than ever before.
        peak_train_bytes, peak_evaluate_bytes, peak_smooth_bytes: this rank's, above its baseline.
        smoothed: accuracies after Correct & Smooth, by split; empty without it. smooth_time_s: how long it took.
        profile_s: this rank's seconds per epoch by category of ``spans.CATEGORIES``, first epoch left out; empty unless
            profiling. cpu_s: likewise, of all its threads. work: likewise, floating-point operations or bytes.
    """

    losses: list[float] = field(default_factory=list)
    epoch_times_s: list[float] = field(default_factory=list)
    compute_times_s: list[float] = field(default_factory=list)
    wait_times_s: list[float] = field(default_factory=list)
    epoch_bytes: list[int] = field(default_factory=list)
    evaluate_times_s: list[float] = field(default_factory=list)
    accuracies: dict[str, float | None] = field(default_factory=dict)
    best_val_acc: float | None = None
    test_acc_at_best_val: float | None = None
    stale: int = 0
    peak_train_bytes: int = 0
    peak_evaluate_bytes: int = 0
    smoothed: dict[str, float | None] = field(default_factory=dict)
    smooth_time_s: float | None = None
    peak_smooth_bytes: int = 0
    profile_s: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """A message flow, and what its last layer's rows should be.

    Attributes:
        flow: which rows every layer computes.
        targets: of the last layer's output rows.
        recurring: whether it comes again every epoch, so that aggregates of constant rows are worth keeping.
        inputs: [rows, D], the first layer's rows where they are constant and were gathered once; else None.
    """

    flow: MessageFlow
    targets: Targets
    recurring: bool
    inputs: Tensor | None = None


class Trainer:
    """Trains a model on one worker's part.

    Args:
        model: the same parameters on every rank, but for those that ``model.inputs`` shards.
        engine: the worker's engine.
        graph: the worker's part of the graph.
        rows: [N, D] in the run's precision, as ``model.inputs`` loaded them.
        num_classes: C.

    Attributes:
        training: the view that epochs train on: all rows, or with ``mfg`` those that reach a training node.
        evaluation: the view that evaluations read: all rows, or with ``mfg`` those that reach a node of the split.
        meter: of memory peaks; made once graph, features and parameters were read in.
    """

    def __init__(
        self, config: RunConfig, model: Stack, engine: Engine, graph: WorkerGraph, rows: Tensor, num_classes: int
    ) -> None:  # fmt: skip
        self.config, self.model, self.engine, self.graph = config, model, engine, graph
        self.rows = rows
        part, device = graph.part, engine.device
        self.ids = torch.from_numpy(np.array(part.node_ids)).to(device)
        self._own_labels = torch.from_numpy(np.array(part.labels)).to(device)
        self._own_split = torch.from_numpy(np.array(part.split)).to(device)
        self.labels: LabelInputs | None = None
        if config.labels.name != "none" or model.reads_labels:
            self.labels = LabelInputs(
                config.labels, self._own_labels, self._own_split, self.ids, num_classes, config.seed, engine.dtype
            )  # fmt: skip
        self._whole: View | None = None
        self.training = self._view(self._own_split == SPLITS["train"], recurring=True)
        self.evaluation = self._view(self._own_split > 0, recurring=False)
        if self.labels is not None and config.labels.reuse:
            assert self.whole.recurring  # made here, before memory is measured
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.sharded = model.inputs.sharded()
        own = {id(p) for p in self.sharded}
        self.replicated = [p for p in self.parameters if id(p) not in own]
        self.optimizer = make_optimizer(config.optim, self.parameters)
        self.history = History()
        self.first_epoch = self.evaluated = 0
        self.wants_checkpoint = self.wants_stop = self.stopped = False
        self._not_finite: list[int] = []
        self.spans = Spans() if config.profile else None
        install(self.spans)
        self.meter = PeakMeter.here()

    @property
    def whole(self) -> View:
        """The view of all rows; all workers must ask for it together the first time."""
        if self._whole is None:
            # Fed-back labels are predicted for all rows, every epoch.
            recurring = not self.config.mfg or (self.labels is not None and self.config.labels.reuse > 0)
            self._whole = self._made(self.graph.whole(len(self.model.layers)), recurring)
        return self._whole

    def _view(self, wanted: Tensor, *, recurring: bool) -> View:
        if not self.config.mfg:
            return self.whole
        flow = self.graph.flow(wanted.numpy(), [bool(layer.uses_edges) for layer in self.model.layers])
        if flow.input_rows is None and not recurring:
            return self.whole
        inputs = flow.own_inputs(self.rows) if recurring and self.model.inputs.constant else None
        return self._made(flow, recurring, inputs)

    def _made(self, flow: MessageFlow, recurring: bool, inputs: Tensor | None = None) -> View:
        labels, split = flow.own_outputs(self._own_labels), flow.own_outputs(self._own_split)
        return View(flow, Targets.gather(labels, split, self.engine.group), recurring, inputs)

    @property
    def plans(self) -> Sequence[LayerPlan]:
        """Of training, one per layer."""
        return self.training.flow.plans

    def logits(self, view: View, epoch: int | None = None, *, hidden: bool = False) -> Tensor:
        """The model on a view, [M, C]; all workers must call it.

        Args:
            epoch: the training epoch whose labels are carried; None: all training nodes carry theirs.
            hidden: the last layer's input instead.
        """
        columns = None
        if self.labels is not None:
            carried = self.labels.carried(epoch)
            columns = self.labels.columns(carried)
            training = self.model.training
            for _ in range(self.labels.config.reuse):
                self.model.eval()
                with torch.no_grad():
                    found = self._forward(self.whole, columns)
                columns = self.labels.filled(columns, carried, found, self.whole.flow.output_rows)
            self.model.train(training)
        return self._forward(view, columns, hidden=hidden)

    def _forward(self, view: View, columns: Tensor | None, *, hidden: bool = False) -> Tensor:
        flow = view.flow
        self.engine.keeps_constants = view.recurring
        inputs = view.inputs if view.inputs is not None else flow.own_inputs(self.model.inputs(self.rows))
        if columns is not None:
            columns = flow.own_inputs(columns)
        out: Tensor = self.model(self.engine, flow.plans, inputs, columns, hidden=hidden)
        return out

    def run(
        self,
        on_epoch: Callable[[dict[str, Any]], None] | None = None,
        on_checkpoint: Callable[[int], None] | None = None,
    ) -> History:
        """Train the epochs from ``first_epoch`` on; the last one is always evaluated.

        ``wants_checkpoint`` and ``wants_stop``, set on any rank at any time, hold for all after the epoch under way.

        Args:
            on_epoch: gets every epoch's figures.
            on_checkpoint: writes one, given the number of epochs that were trained; called on all ranks alike.
        """
        first: list[dict[str, float]] = []
        every = self.config.checkpoint.every
        for epoch in range(self.first_epoch, self.config.epochs):
            if self._has_enough:
                break  # a resumed run that had ended
            row = self.train_epoch(epoch)
            if (epoch + 1) % self.config.eval_every == 0 or epoch + 1 == self.config.epochs or not self.parameters:
                row |= self.evaluate(row["ranks"])
                self.evaluated = epoch + 1
            wanted, self.stopped = row.pop("wanted")
            if on_epoch is not None:
                on_epoch(row)
            last = epoch + 1 == self.config.epochs or self._has_enough or not self.parameters
            due = every is not None and (last or (epoch + 1) % every == 0)
            if on_checkpoint is not None and (due or wanted or self.stopped):
                on_checkpoint(epoch + 1)
            if self.stopped and not last:
                break
            self.stopped = False
            if last:
                break
            if epoch == self.first_epoch and self.spans is not None:
                first = [dict(one) for one in self.spans.recorded]
        if self.spans is not None:
            epochs = max(len(self.history.epoch_times_s) - self.first_epoch - 1, 1)
            before = first or [{}] * len(self.spans.recorded)
            self.history.profile_s, self.history.cpu_s, self.history.work = (
                {name: (sum_ - early.get(name, 0.0)) / epochs for name, sum_ in sums.items()}
                for sums, early in zip(self.spans.recorded, before, strict=True)
            )
        return self.history

    @property
    def _has_enough(self) -> bool:
        """Early stopping, also of a run that is resumed after it."""
        patience = self.config.early_stopping
        return patience is not None and self.history.stale >= patience

    def train_epoch(self, epoch: int) -> dict[str, Any]:
        """One step on the full graph.

        Raises:
            TrainingError: the loss is not finite; raised on every rank, before the optimizer's step.
        """
        group, traffic = self.engine.group, self.engine.group.traffic
        self.engine.epoch = epoch
        self.model.train()
        lr = learning_rate(self.config.optim, epoch, self.config.epochs)
        for settings in self.optimizer.param_groups if self.optimizer else ():
            settings["lr"] = lr
        traffic.reset()
        self.meter.begin()
        started = time.perf_counter()
        with span(REST), counting():
            self.model.zero_grad(set_to_none=True)
            loss = self.gradients()
            if not math.isfinite(loss):
                where = ", ".join(str(rank) for rank in self._not_finite)
                raise TrainingError(
                    f"The loss of epoch {epoch + 1} is not finite; it comes from rank {where}.",
                    given=loss,
                    hint="try a smaller optim.lr, or model.norm=batch; parameters are those of the epoch before",
                )
            with span(OPTIMIZER):
                if self.config.optim.clip is not None:
                    clip_gradients(group, self.replicated, self.sharded, self.config.optim.clip)
                if self.optimizer is not None:
                    self.optimizer.step()
        elapsed = time.perf_counter() - started
        wait, sent = traffic.wait_s, traffic.sent_bytes
        peak = self.meter.end()

        history = self.history
        history.peak_train_bytes = max(history.peak_train_bytes, peak)
        asked = self.wants_checkpoint, self.wants_stop
        self.wants_checkpoint = False
        figures = torch.tensor([elapsed, elapsed - wait, wait, sent, peak, *asked], dtype=torch.float64)
        every = torch.stack(group.gather(figures))
        slowest = every.amax(0)
        history.losses.append(loss)
        history.epoch_times_s.append(float(slowest[0]))
        history.compute_times_s.append(float(slowest[1]))
        history.wait_times_s.append(float(slowest[2]))
        history.epoch_bytes.append(int(every[:, 3].sum()))
        return {
            "epoch": epoch,
            "loss": loss,
            "lr": lr,
            "epoch_time_s": history.epoch_times_s[-1],
            "compute_time_s": history.compute_times_s[-1],
            "comm_wait_time_s": history.wait_times_s[-1],
            "comm_bytes": history.epoch_bytes[-1],
            "wanted": (bool(slowest[5]), bool(slowest[6])),
            "ranks": {
                "compute_time_s": every[:, 1].tolist(),
                "comm_wait_time_s": every[:, 2].tolist(),
                "sent_bytes": every[:, 3].long().tolist(),
                "peak_train_bytes": every[:, 4].long().tolist(),
            },
        }

    def gradients(self) -> float:
        """Forward, backward, one flattened all-reduce of the gradients; the loss over all ranks."""
        view, epoch = self.training, self.engine.epoch
        logits = self.logits(view, epoch)
        predicted = None
        if self.labels is not None and self.labels.masked:
            rows = view.targets.rows["train"]
            rows = rows[~view.flow.own_outputs(self.labels.carried(epoch))[rows]]
            predicted = rows, int(self.engine.group.sum_(torch.tensor(len(rows), dtype=torch.int64)))
        share = training_loss(
            logits, view.targets, predicted=predicted, label_smoothing=self.config.optim.label_smoothing
        )  # fmt: skip
        if share.requires_grad:
            share.backward()
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        sum_flat(self.engine.group, [p.grad for p in self.replicated if p.grad is not None])
        loss = float(self.engine.group.sum_(share.detach().double().clone()))
        if not math.isfinite(loss):  # on all ranks alike
            shares = self.engine.group.gather(share.detach().double())
            self._not_finite = [rank for rank, one in enumerate(shares) if not bool(one.isfinite())]
        return loss

    def evaluate(self, ranks: dict[str, Any]) -> dict[str, Any]:
        """Accuracies on all splits, in the same mode without autograd; memory peaks are added to ``ranks``."""
        history = self.history
        POOL.reset()  # what training keeps for its next step is not evaluation's, nor the other way round
        self.meter.begin()
        started = time.perf_counter()
        self.model.eval()
        with torch.no_grad(), span(EVALUATION):
            found = accuracies(self.logits(self.evaluation), self.evaluation.targets, self.engine.group)
        history.evaluate_times_s.append(time.perf_counter() - started)
        peak = self.meter.end()
        POOL.reset()
        history.peak_evaluate_bytes = max(history.peak_evaluate_bytes, peak)
        peaks = self.engine.group.gather(torch.tensor(peak, dtype=torch.int64))
        ranks["peak_evaluate_bytes"] = [int(one) for one in peaks]
        history.accuracies = found
        val = found["valid"]
        if val is not None:
            better = history.best_val_acc is None or val > history.best_val_acc
            history.stale = 0 if better else history.stale + 1
        if val is not None and (history.best_val_acc is None or val >= history.best_val_acc):
            history.best_val_acc, history.test_acc_at_best_val = val, found["test"]
        return {"train_acc": found["train"], "val_acc": val, "test_acc": found["test"]}

    def predictions(self, *, hidden: bool = False) -> Tensor:
        """Logits [N, C] of all own rows of the labelled type, or the last layer's input; evaluation mode, without gradients."""
        self.model.eval()
        with torch.no_grad(), span(EVALUATION):
            return self.logits(self.whole, hidden=hidden)

    def smoothed(self, logits: Tensor) -> Tensor:
        """Scores [N, C] after Correct & Smooth, for what ``predictions`` gave."""
        POOL.reset()
        with span(EVALUATION):
            plan = self.graph.neighbourhood()
            return correct_and_smooth(self.config.smooth, self.engine, plan, logits, self.whole.targets)

    def smooth(self) -> None:
        """Correct & Smooth after training, if it is on; its accuracies and memory peak go into the history."""
        if self.config.smooth.name == "none":
            return
        self.engine.forget_constants()  # training is over
        if self.optimizer is not None:
            self.optimizer.state.clear()
        logits = self.predictions()
        POOL.reset()
        started = time.perf_counter()
        self.meter.begin()
        scores = self.smoothed(logits)
        self.history.smoothed = accuracies(scores, self.whole.targets, self.engine.group)
        self.history.peak_smooth_bytes = self.meter.end()
        self.history.smooth_time_s = time.perf_counter() - started


def steady(values: Sequence[float]) -> float:
    """Median over the epochs after the first (which warms up), or of the only one."""
    return float(median(values[1:] or values))
