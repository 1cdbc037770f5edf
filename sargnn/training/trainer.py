"""Everything that one worker trains with, put together.

Letters: N own rows, D width of the model's input, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine
from sargnn.models.base import Model
from sargnn.plan.graph import WorkerGraph
from sargnn.profile import REST
from sargnn.tasks.base import load_task
from sargnn.tracking.memory import PeakMeter
from sargnn.training.batches import MicroBatches
from sargnn.training.evaluation import Evaluator, WithoutCopies
from sargnn.training.fit import Choose, evaluation_sample, fit_steps, trains_in_batches
from sargnn.training.history import History
from sargnn.training.loop import EarlyStopping, Listener, Loop
from sargnn.training.optim import Optimization
from sargnn.training.views import Forward, View, ViewBuilder


class Trainer:
    """A worker's model, data, steps and loop. All workers must make one, and call its methods, together.

    Args:
        model: the same parameters on every rank, but for those that ``model.inputs`` shards.
        engine: the worker's engine.
        graph: the worker's part of the graph.
        rows: [N, D] in the run's precision, as ``model.inputs`` loaded them.
        num_classes: C.
        scratch: a folder of this rank's alone, for what lies on disk meanwhile; None: nothing does.
        choose: what fits ``memory_budget``; None: there is none.
        flat: where ``graph`` has copies of other servers' nodes, makes a trainer of the same model on the part without.

    Attributes:
        ids: int64 [N], original ids.
        task: what is predicted.
        builder: makes views.
        forward: runs the model on them.
        evaluation: the view that evaluations read: all rows, with ``mfg`` those that reach a node of a split, or a sample.
        optimization: changes the parameters.
        evaluator: evaluates and predicts.
        loop: trains.
        planned_bytes: per rank what training was to hold at most, where that was asked for.
        remarks: lines about it.
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
        choose: Choose | None = None,
        flat: Callable[[], Trainer] | None = None,
    ) -> None:
        self.config, self.model, self.engine, self.graph, self.rows = config, model, engine, graph, rows
        self.ids = torch.from_numpy(np.array(graph.part.node_ids)).to(engine.device)
        self.task = load_task(config.task)(config, graph.part, num_classes, engine.group, reads_labels=model.reads_labels)
        trains_on_all = not config.mfg and not trains_in_batches(config)
        self.builder = ViewBuilder(model, engine, graph, rows, self.task, whole_recurs=trains_on_all or self.task.feeds_back)
        self.forward = Forward(model, engine, graph, rows, self.task, self.builder)
        training, self.evaluation = self._build_views()
        self.optimization = Optimization(config.optim, config.epochs, model)
        graph.release()  # what is given back is no part of what training starts from
        self.meter = PeakMeter.here()
        fitted = fit_steps(self, training, scratch, choose)
        self.planned_bytes, self.remarks = fitted.planned_bytes, fitted.remarks
        self.loop = Loop(engine, self.forward, self.task, fitted.steps, self.optimization, self.meter)
        self.evaluator = Evaluator(
            config,
            graph,
            self.builder,
            self.forward,
            self.task,
            self.meter,
            self.loop.history,
            WithoutCopies(flat, bounded=config.bounds_preload),
        )
        self.evaluator.views = fitted.evaluations
        self.loop.listeners.append(self.evaluator)
        if config.early_stopping is not None:
            self.loop.listeners.append(EarlyStopping(config.early_stopping, self.loop.history))

    def _build_views(self) -> tuple[View | None, View]:
        """The training and the evaluation view; and the whole one where labels are fed back, before memory is measured.

        No training view with micro-batches or drawn ones, which are not there yet when training starts.
        """
        later = trains_in_batches(self.config)
        if self.config.eval == "sampled":
            evaluation = self.builder.drawn_evaluation(self.task.rows(), evaluation_sample(self.config, self.model))
            if self.task.feeds_back:
                self.builder.whole()
            return None, evaluation
        if not self.config.mfg:
            whole = self.builder.whole()
            return None if later else whole, whole
        training = None if later else self.builder.reaching(self.task.rows("train"), recurring=True)
        evaluation = self.builder.reaching(self.task.rows(), recurring=False)
        if self.task.feeds_back:
            self.builder.whole()
        return training, evaluation

    @property
    def training(self) -> View:
        """What a step computes: the first micro-batch of several, or the last that was drawn."""
        view = self.loop.steps.last_view
        return self.loop.steps.views(0)[0] if view is None else view

    def run(self, first_epoch: int = 0, *listeners: Listener) -> History:
        """Train from an epoch on; the last one is always evaluated. listeners: hear of epochs after evaluations."""
        self.loop.listeners += listeners
        epochs = range(first_epoch, self.config.epochs)
        ended = any(isinstance(listener, EarlyStopping) and listener.has_enough for listener in self.loop.listeners)
        return self.loop.run(epochs[:0] if ended else epochs)

    def smooth(self) -> None:
        """Correct & Smooth after training, if it is on; nothing can be trained any more."""
        if self.config.smooth.name == "none":
            return
        if self.optimization.optimizer is not None:
            self.optimization.optimizer.state.clear()
        self.evaluator.smooth()

    def take_trial_step(self) -> None:
        """The first step's gradients, which nothing is done with; for its time."""
        with self.engine.profile.span(REST):
            self.model.zero_grad(set_to_none=True)
            self.loop.gradients(0)
            self.model.zero_grad(set_to_none=True)
        self.loop.steps.forget()

    def loss_by_wire(self, epoch: int = 0) -> tuple[float, float]:
        """The loss of an epoch's first step with rows sent as they are, and as ``comm.wire`` rounds them.

        All workers must call it.

        Costs two forward passes, and changes nothing: masks are drawn by epoch, buffers are put back.
        """
        engine, steps, losses = self.engine, self.loop.steps, []
        engine.epoch, wire = epoch * steps.count, engine.exchange.wire
        steps.begin(epoch)
        self.model.train()
        before = [buffer.clone() for buffer in self.model.buffers()]
        for rounded_to in (None, wire):
            engine.exchange.wire = rounded_to
            engine.forget_constants()
            steps.remake()
            with torch.no_grad():
                shares = [share for share, _ in self.loop.shares(0)]
                losses.append(float(engine.group.sum_(sum(shares, torch.zeros((), dtype=torch.float64)))))
                for buffer, value in zip(self.model.buffers(), before, strict=True):
                    buffer.copy_(value)
        self.graph.release()
        engine.pool.reset()
        engine.exchange.reset()  # buffers of fp32 rows are of no more use
        return losses[0], losses[1]

    def close(self) -> None:
        """Delete what lies on disk; nothing can be trained any more."""
        self.loop.steps.close()
        if isinstance(self.evaluator.views, MicroBatches):
            self.evaluator.views.close()
