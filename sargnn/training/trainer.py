"""Everything that one worker trains with, put together.

Letters: N own rows, D width of the model's input.
"""

from __future__ import annotations

from collections.abc import Callable

from sargnn.profile import REST
from sargnn.training.evaluation import Evaluator
from sargnn.training.fit import Fitted, Setup
from sargnn.training.history import History
from sargnn.training.loop import EarlyStopping, Listener, Loop, TimeLimit
from sargnn.training.steps import MicroBatches
from sargnn.training.views import Forward, View


class Trainer:
    """A worker's model, data, steps and loop. All workers must make one, and call its methods, together.

    ``flat``: where the graph has copies of other servers' nodes, makes a trainer of the same model on the part without.

    Attributes:
        model: the same parameters on every rank, but for those that ``model.inputs`` shards.
        evaluation: the view that evaluations read: all rows, with ``mfg`` those that reach a node of a split, or a sample.
        rows: [N, D] in the run's precision, as ``model.inputs`` loaded them.
        ids: int64 [N], original ids, on the host.
        planned_bytes: per rank what training was to hold at most, where that was asked for; ``remarks`` are lines about it.
    """

    def __init__(self, setup: Setup, fitted: Fitted, flat: Callable[[], Trainer] | None = None) -> None:
        self.config, self.model, self.engine, self.graph = setup.config, setup.model, setup.engine, setup.graph
        self.task, self.builder, self.evaluation = setup.task, setup.builder, setup.evaluation
        self.optimization, self.meter, self.rows = setup.optimization, setup.meter, setup.builder.rows
        self.forward = forward = Forward(setup.builder)
        self.ids = setup.ids
        self.planned_bytes, self.remarks = fitted.planned_bytes, fitted.remarks
        self.loop = Loop(setup.engine, forward, setup.task, fitted.steps, setup.optimization, setup.meter)
        self.loop.history.select = setup.config.select
        self.evaluator = Evaluator(setup, forward, fitted.evaluations, self.loop.history, flat)
        if setup.config.max_seconds is not None:
            self.loop.listeners.append(TimeLimit(setup.config.max_seconds, self.loop.history))
        self.loop.listeners.append(self.evaluator)
        if setup.config.early_stopping is not None:
            self.loop.listeners.append(EarlyStopping(setup.config.early_stopping, self.loop.history))

    @property
    def training(self) -> View:
        """What a step computes: the first micro-batch of several, or the last that was drawn."""
        view = self.loop.steps.last_view
        return self.loop.steps.views(0)[0] if view is None else view

    def run(self, first_epoch: int = 0, *listeners: Listener) -> History:
        """Train from an epoch on, counted from 0, and evaluate the last. Listeners hear of epochs after evaluations."""
        self.loop.listeners += listeners
        epochs = range(first_epoch, self.config.epochs)
        ended = any(
            (isinstance(listener, EarlyStopping) and listener.has_enough)
            or (isinstance(listener, TimeLimit) and listener.is_over)
            for listener in self.loop.listeners
        )
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

        Costs two forward passes, and changes nothing. All workers must call it.
        """
        engine, losses = self.engine, []
        wire = engine.exchange.wire
        for rounded_to in (None, wire):
            engine.exchange.wire = rounded_to
            engine.forget_constants()
            self.loop.steps.remake()
            losses.append(float(self.loop.of_first_step(self.task.loss, epoch)))
        self.graph.release()
        engine.pool.reset()
        engine.exchange.reset()  # buffers of fp32 rows are of no more use
        return losses[0], losses[1]

    def close(self) -> None:
        """Delete what lies on disk; nothing can be trained any more."""
        self.loop.steps.close()
        if isinstance(self.evaluator.views, MicroBatches):
            self.evaluator.views.close()
