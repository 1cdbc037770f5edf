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

import torch
from torch import Tensor

from sargnn.comm.group import sum_flat
from sargnn.config import RunConfig
from sargnn.engine.aggregate import Engine
from sargnn.errors import TrainingError
from sargnn.models.stack import Stack
from sargnn.shards.plan import LayerPlan
from sargnn.spans import EVALUATION, OPTIMIZER, REST, Spans, install, span
from sargnn.tracking.memory import PeakMeter
from sargnn.train.loss import Targets, accuracies, training_loss
from sargnn.train.optim import learning_rate, make_optimizer


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
        peak_train_bytes, peak_evaluate_bytes: this rank's, above its baseline.
        profile_s: this rank's seconds per epoch by category of ``spans.CATEGORIES``, first epoch left out; empty unless
            profiling.
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
    peak_train_bytes: int = 0
    peak_evaluate_bytes: int = 0
    profile_s: dict[str, float] = field(default_factory=dict)


class Trainer:
    """Trains a model on one worker's part.

    Args:
        model: the same parameters on every rank, but for those that ``model.inputs`` shards.
        engine: the worker's engine.
        plans: one per layer.
        features: [N, D] in the run's precision, as ``model.inputs`` loaded them.
        targets: labels and splits of the last layer's output rows.
        meter: of memory peaks; made once graph, features and parameters were read in.
    """

    def __init__(
        self,
        config: RunConfig,
        model: Stack,
        engine: Engine,
        plans: Sequence[LayerPlan],
        features: Tensor,
        targets: Targets,
        meter: PeakMeter | None = None,
    ) -> None:
        self.config, self.model, self.engine, self.plans = config, model, engine, plans
        self.features, self.targets = features, targets
        self.meter = meter or PeakMeter.here()
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
        first: dict[str, float] = {}
        every = self.config.checkpoint.every
        for epoch in range(self.first_epoch, self.config.epochs):
            row = self.train_epoch(epoch)
            if (epoch + 1) % self.config.eval_every == 0 or epoch + 1 == self.config.epochs:
                row |= self.evaluate(row["ranks"])
                self.evaluated = epoch + 1
            wanted, self.stopped = row.pop("wanted")
            if on_epoch is not None:
                on_epoch(row)
            last = epoch + 1 == self.config.epochs
            due = every is not None and (last or (epoch + 1) % every == 0)
            if on_checkpoint is not None and (due or wanted or self.stopped):
                on_checkpoint(epoch + 1)
            if self.stopped and not last:
                break
            self.stopped = False
            if epoch == self.first_epoch and not last and self.spans is not None:
                first = dict(self.spans.own_s)
        if self.spans is not None:
            epochs = max(len(self.history.epoch_times_s) - self.first_epoch - 1, 1)
            self.history.profile_s = {
                name: (seconds - first.get(name, 0.0)) / epochs for name, seconds in self.spans.own_s.items()
            }
        return self.history

    def train_epoch(self, epoch: int) -> dict[str, Any]:
        """One step on the full graph.

        Raises:
            TrainingError: the loss is not finite; raised on every rank, before the optimizer's step.
        """
        group, traffic = self.engine.group, self.engine.group.traffic
        self.engine.epoch = epoch
        self.model.train()
        lr = learning_rate(self.config.optim, epoch, self.config.epochs)
        for settings in self.optimizer.param_groups:
            settings["lr"] = lr
        traffic.reset()
        self.meter.begin()
        started = time.perf_counter()
        with span(REST):
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.gradients()
            if not math.isfinite(loss):
                where = ", ".join(str(rank) for rank in self._not_finite)
                raise TrainingError(
                    f"The loss of epoch {epoch + 1} is not finite; it comes from rank {where}.",
                    given=loss,
                    hint="try a smaller optim.lr, or model.norm=batch; parameters are those of the epoch before",
                )
            with span(OPTIMIZER):
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
        logits = self.model(self.engine, self.plans, self.features)
        share = training_loss(logits, self.targets)
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
        self.meter.begin()
        started = time.perf_counter()
        self.model.eval()
        with torch.no_grad(), span(EVALUATION):
            logits = self.model(self.engine, self.plans, self.features)
            found = accuracies(logits, self.targets, self.engine.group)
        history.evaluate_times_s.append(time.perf_counter() - started)
        peak = self.meter.end()
        history.peak_evaluate_bytes = max(history.peak_evaluate_bytes, peak)
        peaks = self.engine.group.gather(torch.tensor(peak, dtype=torch.int64))
        ranks["peak_evaluate_bytes"] = [int(one) for one in peaks]
        history.accuracies = found
        val = found["valid"]
        if val is not None and (history.best_val_acc is None or val >= history.best_val_acc):
            history.best_val_acc, history.test_acc_at_best_val = val, found["test"]
        return {"train_acc": found["train"], "val_acc": val, "test_acc": found["test"]}


def steady(values: Sequence[float]) -> float:
    """Median over the epochs after the first (which warms up), or of the only one."""
    return float(median(values[1:] or values))
