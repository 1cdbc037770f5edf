"""Evaluations, predictions and Correct & Smooth of a model as it is now. All workers call these together.

Where servers hold copies of nodes (``plan.copies``) they read what the workers have without copies in two cases: Correct &
Smooth spreads over many hops, and where less is preloaded than the model reads an output would depend on the servers. Then a
second trainer, on the parts without copies, has the parameters of now.

Letters: N own rows, F features, C outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.config.run import RunConfig
from sargnn.engine.propagate import propagate
from sargnn.models.base import Model
from sargnn.plan.graph import WorkerGraph
from sargnn.profile import EVALUATION
from sargnn.tasks.base import Targets, Task
from sargnn.tasks.correct_smooth import correct_and_smooth
from sargnn.tasks.kinds import Scores
from sargnn.tracking.memory import PeakMeter
from sargnn.training.batches import MicroBatches
from sargnn.training.fit import evaluation_sample
from sargnn.training.history import EvaluationResult, History
from sargnn.training.loop import EpochEnd, Listener
from sargnn.training.views import Forward, View, ViewBuilder

if TYPE_CHECKING:
    from sargnn.training.trainer import Trainer


class WithoutCopies:
    """The trainer without copies beside one whose server holds some; made when it is needed first.

    Args:
        make: makes it; None: there are no copies.
        bounded: servers preload less than the model reads.
    """

    def __init__(self, make: Callable[[], Trainer] | None = None, *, bounded: bool = False) -> None:
        self._make, self._bounded = make, bounded
        self._made: Trainer | None = None

    @property
    def exists(self) -> bool:
        """Whether there are copies, so that it is another trainer."""
        return self._make is not None

    @property
    def serves_evaluations(self) -> bool:
        """Whether evaluations and predictions read it."""
        return self.exists and self._bounded

    def get(self, model: Model) -> Trainer:
        """It, with the parameters and buffers that ``model`` has now. All workers must call it together."""
        assert self._make is not None
        if self._made is None:
            self._made = self._make()
        theirs = [*self._made.model.parameters(), *self._made.model.buffers()]
        with torch.no_grad():
            for own, other in zip([*model.parameters(), *model.buffers()], theirs, strict=True):
                other.copy_(own)
        return self._made


class Evaluator(Listener):
    """Measures the model after every ``eval_every`` epochs and after the last one.

    Args:
        graph: the worker's part of the graph.
        builder: of views.
        forward: runs the model.
        meter: of memory peaks.
        history: gets what was measured.
        views: whose outputs an evaluation measures together: one view, or groups of its rows.
        flat: the trainer without copies.

    Attributes:
        evaluated: after how many epochs the last evaluation was.
    """

    def __init__(
        self,
        config: RunConfig,
        graph: WorkerGraph,
        builder: ViewBuilder,
        forward: Forward,
        task: Task,
        meter: PeakMeter,
        history: History,
        flat: WithoutCopies,
    ) -> None:
        self._config, self._graph, self._builder, self._forward = config, graph, builder, forward
        self._task, self._meter, self.history, self._flat = task, meter, history, flat
        self._model, self._engine = forward.model, forward.engine
        self.views: Sequence[View] | MicroBatches = ()
        self.evaluated = 0

    def on_epoch(self, end: EpochEnd) -> None:
        epochs = end.result.epoch + 1
        regular = epochs % self._config.eval_every == 0
        if regular or end.last:
            end.evaluation = self.evaluate(counts=regular)
            self.evaluated = epochs

    def evaluate(self, *, counts: bool = True) -> EvaluationResult:
        """The metric on all splits, in the same mode without autograd; ``counts``: for early stopping."""
        pool = self._engine.pool
        pool.reset()  # training's tables are of no use to an evaluation, nor the other way round
        self._meter.begin()
        started = time.perf_counter()
        self._model.eval()
        with torch.no_grad(), self._engine.profile.span(EVALUATION):
            scores = self._measure()
        time_s = time.perf_counter() - started
        peak = self._meter.end()
        pool.reset()
        self.history.add_evaluation(scores, time_s, peak, counts=counts)
        peaks = self._engine.group.gather(torch.tensor(peak, dtype=torch.int64))
        return EvaluationResult(self._task.name, self._task.metric, scores, [int(rank_peak) for rank_peak in peaks])

    def _measure(self) -> Scores:
        """The metric by split, of one view after the other; in evaluation mode, without gradients."""
        if self._flat.serves_evaluations:
            flat = self._flat.get(self._model)
            flat.model.eval()
            scores = flat.evaluator._measure()
            flat.engine.pool.reset()
            return scores
        logits, targets, columns = [], [], self._forward.columns(None)
        for number in range(len(self.views)):
            view = self.views[number]
            out = self._forward(view, columns)
            logits.append(out.to(wide(out.dtype)))
            targets.append(view.targets)
            del view, out
        joined = logits[0] if len(logits) == 1 else torch.cat(logits)
        del logits
        return self._task.metrics(joined, Targets.join(targets))

    def predictions(self, *, hidden: bool = False) -> Tensor:
        """Logits [N, C] of all own rows of the labelled type, or the last layer's input; evaluation mode, without gradients.

        Read are all rows, or a sample of the edges into each.
        """
        if self._flat.serves_evaluations:
            return self._flat.get(self._model).evaluator.predictions(hidden=hidden)
        if self._config.eval == "sampled":
            rows = self._graph.labelled_rows
            sample = evaluation_sample(self._config, self._model)
            view = self._builder.drawn_evaluation(np.arange(rows.start, rows.stop), sample)
        else:
            view = self._builder.whole()
        self._model.eval()
        with torch.no_grad(), self._engine.profile.span(EVALUATION):
            return self._forward.logits(view, hidden=hidden)

    def smoothed(self, logits: Tensor) -> Tensor:
        """Scores [N, C] after Correct & Smooth, for what ``predictions`` gave."""
        self._engine.pool.reset()
        targets = self._builder.whole().targets
        engine, graph = self._engine, self._graph
        if self._flat.exists:
            flat = self._flat.get(self._model)
            engine, graph = flat.engine, flat.graph
        with self._engine.profile.span(EVALUATION):
            spread = partial(propagate, engine, graph.neighbourhood())
            return correct_and_smooth(self._config.smooth, spread, engine.group, logits, targets)

    def smooth(self) -> None:
        """Correct & Smooth after training; its accuracies and memory peak go into the history."""
        self._engine.forget_constants()  # training is over
        logits = self.predictions()
        targets = self._builder.whole().targets
        self._engine.pool.reset()
        started = time.perf_counter()
        self._meter.begin()
        scores = self.smoothed(logits)
        self.history.smoothed = self._task.metrics(scores, targets)
        self.history.peak_smooth_bytes = self._meter.end()
        self.history.smooth_time_s = time.perf_counter() - started
