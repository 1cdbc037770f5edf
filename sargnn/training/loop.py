"""The training loop of one worker.

Letters: N own rows, F features, C outputs, P workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.comm.group import sum_flat
from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine
from sargnn.errors import TrainingError
from sargnn.models.base import LayerInput, Model
from sargnn.profile import EVALUATION, OPTIMIZER, REST
from sargnn.shards.graph import WorkerGraph
from sargnn.shards.plan import LayerPlan
from sargnn.tasks.base import Counted, load_task
from sargnn.tracking.memory import PeakMeter, trim
from sargnn.training.account.record import Accounts
from sargnn.training.batches import MicroBatches
from sargnn.training.evaluation import measured, predictions, smoothed
from sargnn.training.fit import evaluation_sample, fit_batches, trains_in_batches
from sargnn.training.flat import Flat
from sargnn.training.flops import count_products
from sargnn.training.history import (
    EpochResult,
    EvaluationResult,
    History,
    RankFigures,
    Requests,
    StoppedError,
    Underway,
    metrics_row,
)
from sargnn.training.optim import clip_gradients, learning_rate, make_optimizer
from sargnn.training.steps import OneStep, Steps
from sargnn.training.views import View, ViewBuilder


class Trainer:
    """Trains a model on one worker's part. All workers must make one, and call its methods, together.

    Args:
        model: the same parameters on every rank, but for those that ``model.inputs`` shards.
        engine: the worker's engine.
        graph: the worker's part of the graph.
        rows: [N, D] in the run's precision, as ``model.inputs`` loaded them.
        num_classes: C.
        scratch: a folder of this rank's alone, for what lies on disk meanwhile; None: nothing does.
        flat: where ``graph`` has copies of other servers' nodes, makes a trainer of the same model on the part without.
        accounts: gives what says beforehand what steps will hold; for ``memory_budget``.

    Attributes:
        task: what is predicted.
        steps: the steps of an epoch, and the views whose gradients make each: one of all rows, or with ``mfg`` of those that
            reach a training node; those of micro-batches; or what is drawn.
        evaluation: the view that evaluations read: all rows, with ``mfg`` those that reach a node of a split, or a sample.
        whole: the view of all rows; None until ``build_whole`` where nothing needs it before.
        view: the one at hand. builder: makes views.
        output_bytes: bytes of a row of outputs.
        evaluations: the views whose outputs an evaluation measures together: ``evaluation``, or groups of its rows.
        planned_bytes: per rank what training was to hold at most, where that was asked for. remarks: lines about it.
        requests: what is asked of this rank; holds for all ranks after the step under way.
        underway: of the epoch that is trained, the steps so far.
        meter: of memory peaks; made once graph, features and parameters were read in.
    """

    def __init__(
        self,
        config: RunConfig,
        model: Model,
        engine: Engine,
        graph: WorkerGraph,
        rows: Tensor,
        num_classes: int,
        scratch: Path | None = None,
        accounts: Callable[[], Accounts] | None = None,
        flat: Callable[[], Trainer] | None = None,
    ) -> None:
        self.config, self.model, self.engine, self.graph = config, model, engine, graph
        self.rows, self.flat = rows, Flat(flat, bounded=config.bounds_preload)
        part, device = graph.part, engine.device
        self.ids = torch.from_numpy(np.array(part.node_ids)).to(device)
        self.task = load_task(config.task)(config, part, num_classes, engine.group, reads_labels=model.reads_labels)
        self.builder = ViewBuilder(model, engine, graph, rows, self.task)
        self.whole: View | None = None
        self.view: View | None = None
        training, self.evaluation = self._build_views()
        self.evaluations: Sequence[View] | MicroBatches = [self.evaluation]
        self.output_bytes = num_classes * wide(engine.dtype).itemsize
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.sharded = model.inputs.sharded()
        own = {id(p) for p in self.sharded}
        self.replicated = [p for p in self.parameters if id(p) not in own]
        self.optimizer = make_optimizer(config.optim, self.parameters, model.decay_groups())
        self.history = History(self.task.name, self.task.metric)
        self.first_epoch = self.evaluated = 0
        self.underway = Underway()
        self.requests = Requests()
        self.stopped = False
        self._not_finite: list[int] = []
        self._labels_counted = 0
        graph.release()  # what is given back is no part of what training starts from
        self.meter = PeakMeter.here()
        self.steps: Steps = OneStep([] if training is None else [training])
        self.planned_bytes: tuple[int, ...] | None = None
        self.remarks: list[str] = []
        if training is None or config.budget_bytes is not None:
            fit_batches(self, scratch, accounts)

    def _build_views(self) -> tuple[View | None, View]:
        """The training and the evaluation view; and the whole one where labels are fed back, before memory is measured.

        No training view with micro-batches or drawn ones, which are not there yet when training starts.
        """
        later = trains_in_batches(self.config)
        if self.config.eval == "sampled":
            evaluation = self.builder.drawn_evaluation(self.task.rows(), evaluation_sample(self.config, self.model))
            if self.task.feeds_back:
                self.build_whole()
            return None, evaluation
        if not self.config.mfg:
            whole = self.build_whole()
            return None if later else whole, whole
        training = None if later else self.builder.reaching(self.task.rows("train"), recurring=True)
        evaluation = self.builder.reaching(self.task.rows(), recurring=False)
        if self.task.feeds_back:
            self.build_whole()
        return training, evaluation

    @property
    def training(self) -> View:
        """What a step computes; the first micro-batch of several, or the last that was drawn."""
        view = self.steps.last_view
        if view is None:
            view = self.steps.views(0)[0]
        return view

    def build_whole(self) -> View:
        """The view of all rows, built the first time."""
        if self.whole is None:
            trained = not self.config.mfg and not trains_in_batches(self.config)
            self.whole = self.builder.whole(recurring=trained or self.task.feeds_back)
        return self.whole

    @property
    def plans(self) -> Sequence[LayerPlan]:
        """Of training, one per layer; of the first micro-batch of several."""
        return self.training.flow.plans

    def logits(self, view: View, epoch: int | None = None, *, hidden: bool = False) -> Tensor:
        """The model on a view, [M, C], fp32 where rows are bf16.

        Args:
            epoch: the training epoch whose labels are carried; None: all training nodes carry theirs.
            hidden: the last layer's input instead.
        """
        out = self.forward(view, self.label_columns(epoch), hidden=hidden)
        return out.to(wide(out.dtype))

    def label_columns(self, epoch: int | None) -> Tensor | None:
        """Labels as inputs, [N, C], with predictions where they are fed back; None if they are no inputs."""
        training = self.model.training

        def predict(columns: Tensor) -> tuple[Tensor, Tensor | None]:
            whole = self.build_whole()
            self.model.eval()
            with torch.no_grad():
                logits = self.forward(whole, columns)
            return logits.to(wide(logits.dtype)), whole.flow.output_rows

        copies = self.graph.copies
        columns = self.task.columns(epoch, predict, lambda rows: None if copies is None else copies.fetch(rows))
        self.model.train(training)
        return columns

    def forward(self, view: View, columns: Tensor | None, *, hidden: bool = False) -> Tensor:
        """The model on a view, with labels as inputs; [M, C], or the last layer's input."""
        flow, self.view = view.flow, view
        self.engine.keeps_constants = view.recurring
        rows = view.inputs if view.inputs is not None else flow.own_inputs(self.model.inputs(self.rows))
        x = LayerInput(rows, None if columns is None else flow.own_inputs(columns))
        with self.engine.rounds_products():
            out: Tensor = self.model(self.engine, flow.plans, x, hidden=hidden)
        return out

    def run(
        self,
        on_epoch: Callable[[dict[str, Any]], None] | None = None,
        on_checkpoint: Callable[[int], None] | None = None,
    ) -> History:
        """Train the epochs from ``first_epoch`` on; the last one is always evaluated.

        Args:
            on_epoch: gets every epoch's line of ``metrics.jsonl``.
            on_checkpoint: writes one, given the number of epochs that were trained; called on all ranks alike, also within an
                epoch, where ``underway`` says how many of its steps were trained.
        """
        first: list[dict[str, float]] = []
        whole: Sequence[Mapping[str, float]] = self.engine.profile.recorded
        every = self.config.checkpoint.every
        for epoch in range(self.first_epoch, self.config.epochs):
            if self._has_enough:
                break  # a resumed run that had ended
            evaluation = None
            before = [dict(by_category) for by_category in self.engine.profile.recorded]
            try:
                result = self.train_epoch(epoch, on_checkpoint)
            except StoppedError:
                self.stopped, whole = True, before  # an epoch in part is no epoch
                break
            regular = (epoch + 1) % self.config.eval_every == 0
            if regular or epoch + 1 == self.config.epochs or not self.parameters:
                evaluation = self.evaluate(counts=regular)
                self.evaluated = epoch + 1
            if on_epoch is not None:
                on_epoch(metrics_row(result, evaluation))
            last = epoch + 1 == self.config.epochs or self._has_enough or not self.parameters
            due = every is not None and (last or (epoch + 1) % every == 0)
            if on_checkpoint is not None and (due or result.requests.checkpoint or result.requests.stop):
                on_checkpoint(epoch + 1)
            if last:
                break
            if result.requests.stop:
                self.stopped = True
                break
            if epoch == self.first_epoch:
                first = [dict(by_category) for by_category in self.engine.profile.recorded]
        if self.engine.profile.recording:
            self.history.average_profile(first, whole, since=self.first_epoch)
        return self.history

    @property
    def _has_enough(self) -> bool:
        """Early stopping, also of a run that is resumed after it."""
        patience = self.config.early_stopping
        return patience is not None and self.history.stale >= patience

    def train_epoch(self, epoch: int, checkpoint: Callable[[int], None] | None = None) -> EpochResult:
        """The steps of an epoch that are left: one on the full graph, or several.

        Args:
            checkpoint: writes one where that is asked for between two steps.

        Raises:
            StoppedError: the run is to end before the epoch does.
            TrainingError: the loss is not finite; raised on every rank, before the optimizer's step.
        """
        group, traffic, done = self.engine.group, self.engine.group.traffic, self.underway
        self.model.train()
        self.meter.begin()
        started, asked = time.perf_counter(), Requests()
        traffic.reset()
        self.steps.begin(epoch)
        for step in range(done.steps, self.steps.count):
            done.add(*self._train_step(epoch, step))
            done.elapsed_s += time.perf_counter() - started
            done.add_traffic(traffic)
            if step + 1 == self.steps.count:
                break
            asked = self.requests.agreed(group)
            if checkpoint is not None and (asked.checkpoint or asked.stop):
                checkpoint(epoch)
            if asked.stop:
                peak = self.meter.end()
                self.meter.training_bytes = max(self.meter.training_bytes, peak)
                self.history.peak_train_bytes = max(self.history.peak_train_bytes, peak)
                self._let_go()
                raise StoppedError
            started = time.perf_counter()
            traffic.reset()
        peak = self.meter.end()
        self.meter.training_bytes = max(self.meter.training_bytes, peak)

        asked = self.requests.take()
        figures = [
            done.elapsed_s,
            done.elapsed_s - done.wait_s,
            done.wait_s,
            done.sent_bytes,
            peak,
            asked.checkpoint,
            asked.stop,
            done.between_bytes,
            done.between_wait_s,
        ]
        every = torch.stack(group.gather(torch.tensor(figures, dtype=torch.float64)))
        slowest = every.amax(0)
        result = EpochResult(
            epoch=epoch,
            loss=done.loss,
            lr=done.lr,
            epoch_time_s=float(slowest[0]),
            compute_time_s=float(slowest[1]),
            comm_wait_time_s=float(slowest[2]),
            comm_bytes=int(every[:, 3].sum()),
            ranks=RankFigures(
                every[:, 1].tolist(), every[:, 2].tolist(), every[:, 3].long().tolist(), every[:, 4].long().tolist()
            ),
            requests=Requests(bool(slowest[5]), bool(slowest[6])),
            steps=self.steps.count,
            between_bytes=int(every[:, 7].sum()),
            between_wait_s=float(slowest[8]),
        )
        self.history.add_epoch(result, peak)
        self.underway = Underway()
        self._let_go()
        return result

    def _let_go(self) -> None:
        """Of views that do not come again: nothing between two epochs is to hold them."""
        self.view = None
        self.steps.forget()

    def _train_step(self, epoch: int, step: int) -> tuple[float, int, float]:
        """One optimizer step: its loss, the number of labels that this is the mean over, and the learning rate."""
        steps, profile = self.steps.count, self.engine.profile
        self.engine.epoch = number = epoch * steps + step
        lr = learning_rate(self.config.optim, number, self.config.epochs, steps)
        for settings in self.optimizer.param_groups if self.optimizer else ():
            settings["lr"] = lr
        with profile.span(REST), count_products(profile):
            self.model.zero_grad(set_to_none=True)
            loss = self.gradients(step)
            if not math.isfinite(loss):
                where = ", ".join(str(rank) for rank in self._not_finite)
                which = f"epoch {epoch + 1}" if steps == 1 else f"step {step + 1} of epoch {epoch + 1}"
                raise TrainingError(
                    f"The loss of {which} is not finite; it comes from rank {where}.",
                    given=loss,
                    hint="try a smaller optim.lr, or model.norm=batch; parameters are those of the "
                    f"{'epoch' if steps == 1 else 'step'} before",
                )
            with profile.span(OPTIMIZER):
                if self.config.optim.clip is not None:
                    clip_gradients(self.engine.group, self.replicated, self.sharded, self.config.optim.clip)
                if self.optimizer is not None:
                    self.optimizer.step()
        return loss, self._labels_counted, lr

    def take_trial_step(self) -> None:
        """The first step's gradients, which nothing is done with; for its time."""
        with self.engine.profile.span(REST):
            self.model.zero_grad(set_to_none=True)
            self.gradients(0)
            self.model.zero_grad(set_to_none=True)
        self._let_go()

    def gradients(self, step: int = 0) -> float:
        """Forward and backward of each view, one flattened all-reduce of the gradients; the loss over all ranks."""
        total = torch.zeros((), dtype=torch.float64)
        with self.engine.rounds_products():
            for share in self._shares(step):
                if share.requires_grad:
                    share.backward()
                total += share.detach().double()
                del share  # and with it all that the next one needs room for
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        sum_flat(self.engine.group, [p.grad for p in self.replicated if p.grad is not None])
        loss = float(self.engine.group.sum_(total.clone()))
        if not math.isfinite(loss):  # on all ranks alike
            shares = self.engine.group.gather(total)
            self._not_finite = [rank for rank, rank_share in enumerate(shares) if not bool(rank_share.isfinite())]
        return loss

    def _shares(self, step: int) -> Iterator[Tensor]:
        """Forward, view by view; this rank's share of the loss."""
        columns = self.label_columns(self.engine.epoch)
        counted = self.task.counted(self.engine.epoch, self.steps.rows(step))
        self.view = None
        views = self.steps.views(step)
        for number in range(len(views)):
            self.view = None  # which would keep the one before while this one is read
            if number:
                trim()  # what the one before has left between small allocations
            yield self._share(views[number], columns, counted)

    def _share(self, view: View, columns: Tensor | None, counted: Counted) -> Tensor:
        """One view's."""
        self._labels_counted = counted.total(view.targets)
        return self.task.loss(self.forward(view, columns), view.targets, counted)

    def loss_by_wire(self) -> tuple[float, float]:
        """The loss of the next epoch's first step with rows sent as they are, and as ``comm.wire`` rounds them.

        All workers must call it.

        Costs two forward passes, and changes nothing: masks are drawn by epoch, buffers are put back.
        """
        engine, losses = self.engine, []
        engine.epoch, wire = self.first_epoch * self.steps.count, engine.exchange.wire
        self.steps.begin(self.first_epoch)
        self.model.train()
        before = [buffer.clone() for buffer in self.model.buffers()]
        for rounded_to in (None, wire):
            engine.exchange.wire = rounded_to
            engine.forget_constants()
            self.steps.remake()
            with torch.no_grad():
                losses.append(float(engine.group.sum_(sum(self._shares(0), torch.zeros((), dtype=torch.float64)))))
                for buffer, value in zip(self.model.buffers(), before, strict=True):
                    buffer.copy_(value)
        self.graph.release()
        engine.pool.reset()
        engine.exchange.reset()  # buffers of fp32 rows are of no more use
        return losses[0], losses[1]

    def evaluate(self, *, counts: bool = True) -> EvaluationResult:
        """The metric on all splits, in the same mode without autograd; ``counts``: for early stopping."""
        pool = self.engine.pool
        pool.reset()  # training's tables are of no use to an evaluation, nor the other way round
        self.meter.begin()
        started = time.perf_counter()
        self.model.eval()
        with torch.no_grad(), self.engine.profile.span(EVALUATION):
            scores = measured(self)
        time_s = time.perf_counter() - started
        peak = self.meter.end()
        pool.reset()
        self.history.add_evaluation(scores, time_s, peak, counts=counts)
        peaks = self.engine.group.gather(torch.tensor(peak, dtype=torch.int64))
        return EvaluationResult(self.task.name, self.task.metric, scores, [int(rank_peak) for rank_peak in peaks])

    def predictions(self, *, hidden: bool = False) -> Tensor:
        """See ``training.evaluation``."""
        return predictions(self, hidden=hidden)

    def smoothed(self, logits: Tensor) -> Tensor:
        """See ``training.evaluation``."""
        return smoothed(self, logits)

    def close(self) -> None:
        """Delete what lies on disk; nothing can be trained any more."""
        self.steps.close()
        if isinstance(self.evaluations, MicroBatches):
            self.evaluations.close()

    def smooth(self) -> None:
        """Correct & Smooth after training, if it is on; its accuracies and memory peak go into the history."""
        if self.config.smooth.name == "none":
            return
        self.engine.forget_constants()  # training is over
        if self.optimizer is not None:
            self.optimizer.state.clear()
        logits = self.predictions()
        targets = self.build_whole().targets
        self.engine.pool.reset()
        started = time.perf_counter()
        self.meter.begin()
        scores = self.smoothed(logits)
        self.history.smoothed = self.task.metrics(scores, targets)
        self.history.peak_smooth_bytes = self.meter.end()
        self.history.smooth_time_s = time.perf_counter() - started
