"""The training loop of one worker: steps of views, one optimizer step each.

It knows a model, a task and steps; not graphs, files, labels or budgets. What else happens after an epoch (evaluations, lines
of ``metrics.jsonl``, checkpoints, an early end) its listeners do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sargnn.comm.group import sum_flat
from sargnn.engine.aggregate import Engine
from sargnn.errors import TrainingError
from sargnn.profile import LINEAR, OPTIMIZER, REST, Profile
from sargnn.tasks.base import Counted, Of, Task
from sargnn.tasks.kinds import epoch_columns
from sargnn.tracking.memory import PeakMeter, trim
from sargnn.training.history import (
    EpochProfile,
    EpochResult,
    EvaluationResult,
    History,
    RankFigures,
    Requests,
    StoppedError,
    Underway,
)
from sargnn.training.optim import Optimization
from sargnn.training.steps import Steps, Views
from sargnn.training.views import Forward

_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::addmm_": 1}
"""Where an operator's first factor stands; the second one follows it."""


@dataclass
class EpochEnd:
    """As listeners hear of it in turn. ``last``: no epoch comes after it; a listener may say so."""

    result: EpochResult
    last: bool
    evaluation: EvaluationResult | None = None


class Listener:
    """Does something beside training. All ranks have the same listeners, and call them in the same order."""

    def on_step(self, epoch: int, asked: Requests) -> None:
        """Two steps of an epoch are apart here. ``asked``: what any rank was asked for meanwhile."""

    def on_epoch(self, end: EpochEnd) -> None:
        """An epoch has ended."""


@dataclass(frozen=True)
class StepLoss:
    """The loss of a step over all ranks, of how many labels it is the mean, and the ranks whose share of it is not finite."""

    value: float
    labels: int
    not_finite: Sequence[int] = field(default=())


class Loop:
    """Trains. All workers make one, and call its methods, together. Listeners are called in their order; ``requests`` is what
    is asked of this rank, and holds for all ranks after the step under way.
    """

    def __init__(
        self, engine: Engine, forward: Forward, task: Task, steps: Steps, optimization: Optimization, meter: PeakMeter
    ) -> None:
        self.engine, self.forward, self.task, self.steps = engine, forward, task, steps
        self.optimization, self.meter = optimization, meter
        self.listeners: list[Listener] = []
        self.history = History(task.name, task.metric)
        self.underway, self.requests, self.stopped = Underway(), Requests(), False

    def run(self, epochs: range) -> History:
        """Train these epochs, or as many of them as a listener wants."""
        profile = EpochProfile(self.engine.profile)
        for epoch in epochs:
            try:
                result = self.train_epoch(epoch)
            except StoppedError:
                self.stopped = True
                break
            end = EpochEnd(result, last=epoch + 1 == epochs.stop or not self.optimization.parameters)
            for listener in self.listeners:
                listener.on_epoch(end)
            self.stopped = result.requests.stop and not end.last
            profile.end_epoch(last=end.last or self.stopped)
            if end.last or self.stopped:
                break
        self.history.add_profile(profile, since=epochs.start)
        return self.history

    def train_epoch(self, epoch: int) -> EpochResult:
        """Train the steps of an epoch that are left: one on the full graph, or several.

        Raises:
            StoppedError: the run is to end before the epoch does.
            TrainingError: the loss is not finite; raised on every rank, before the optimizer's step.
        """
        group, traffic, done = self.engine.group, self.engine.group.traffic, self.underway
        self.task.begin(self.of_first_step)
        self.forward.model.train()
        self.meter.begin()
        started, moved = time.perf_counter(), self.engine.pool.moved
        traffic.reset()
        moved.reset()
        self.engine.pool.begin()
        self.steps.begin(epoch)
        for step in range(done.steps, self.steps.count):
            done.add(*self.train_step(epoch, step))
            if step + 1 == self.steps.count:
                self.engine.place.synchronize()
            done.elapsed_s += time.perf_counter() - started
            done.add_traffic(traffic)
            done.add_moved(moved)
            if step + 1 == self.steps.count:
                break
            asked = self.requests.agreed(group)
            for listener in self.listeners:
                listener.on_step(epoch, asked)
            if asked.stop:
                self.history.note_training_peak(self._end_peak())
                self.steps.forget()
                raise StoppedError
            started = time.perf_counter()
            traffic.reset()
            moved.reset()
        peak = self._end_peak()
        result = self._gather(epoch, peak)
        self.history.add_epoch(result, peak)
        self.underway = Underway()
        self.steps.forget()  # nothing between two epochs is to hold views that do not come again
        return result

    def _end_peak(self) -> int:
        return self.meter.end(training=True)

    def _gather(self, epoch: int, peak: int) -> EpochResult:
        done, asked = self.underway, self.requests.take()
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
            done.written_bytes,
            done.read_bytes,
            done.disk_wait_s,
        ]
        every = torch.stack(self.engine.group.gather(torch.tensor(figures, dtype=torch.float64)))
        slowest = every.amax(0)
        return EpochResult(
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
            written_bytes=int(every[:, 9].sum()),
            read_bytes=int(every[:, 10].sum()),
            disk_wait_s=float(every[:, 11].sum()),
        )

    def train_step(self, epoch: int, step: int) -> tuple[float, int, float]:
        """One optimizer step: its loss, the number of labels that this is the mean over, and the learning rate."""
        steps, profile = self.steps.count, self.engine.profile
        self.engine.epoch = number = epoch * steps + step
        lr = self.optimization.set_rate(number, steps)
        with profile.span(REST), _ProductCounter(profile) if profile.recording else nullcontext():
            self.forward.model.zero_grad(set_to_none=True)
            loss = self.gradients(step)
            if not math.isfinite(loss.value):
                which = f"epoch {epoch + 1}" if steps == 1 else f"step {step + 1} of epoch {epoch + 1}"
                raise TrainingError(
                    f"The loss of {which} is not finite; it comes from rank {', '.join(map(str, loss.not_finite))}.",
                    given=loss.value,
                    hint="try a smaller optim.lr, or model.norm=batch; parameters are those of the "
                    f"{'epoch' if steps == 1 else 'step'} before",
                )
            with profile.span(OPTIMIZER):
                self.optimization.step(self.engine.group)
        return loss.value, loss.labels, lr

    def gradients(self, step: int = 0) -> StepLoss:
        """Forward and backward of each view, one flattened all-reduce of the gradients; the loss over all ranks."""
        group, labels = self.engine.group, 0
        total = torch.zeros((), dtype=torch.float64, device=self.engine.device)
        with self.engine.rounds_products():
            for share, counted in self.shares(step):
                labels = counted
                if share.requires_grad:
                    share.backward()
                total += share.detach().double()
                del share  # and with it all that the next one needs room for
        for parameter in self.optimization.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        sum_flat(group, [p.grad for p in self.optimization.replicated if p.grad is not None])
        loss = float(group.sum_(total.clone()))
        if math.isfinite(loss):
            return StepLoss(loss, labels)
        shares = group.gather(total)  # on all ranks alike
        return StepLoss(loss, labels, [rank for rank, rank_share in enumerate(shares) if not bool(rank_share.isfinite())])

    def of_first_step(self, of: Of, epoch: int = 0) -> Tensor:
        """What a function makes of the outputs of an epoch's first step, summed over its views and all workers: a forward pass,
        without gradients, that changes nothing."""
        model, steps = self.forward.model, self.steps
        self.engine.epoch = epoch * steps.count
        steps.begin(epoch)
        model.train()
        before = [buffer.clone() for buffer in model.buffers()]
        with torch.no_grad(), self.engine.profile.span(REST):
            shares = [share for share, _ in self.shares(0, of)]
            total = self.engine.group.sum_(sum(shares, torch.zeros((), dtype=torch.float64, device=self.engine.device)))
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)
        return total

    def shares(self, step: int, of: Of | None = None) -> Iterator[tuple[Tensor, int]]:
        """Forward, view by view: this rank's share of the step's loss, and how many labels the loss is the mean over. ``of``:
        what is made of outputs in place of the loss."""
        number = self.engine.epoch
        columns, counted = self.forward.columns(number), self.task.counted(number, self.steps.rows(step))
        views = self.steps.views(step)
        for place in range(len(views)):
            if place:
                trim()  # what the one before has left between small allocations
            yield self._share(views, place, columns, counted, of or self.task.loss)

    def _share(self, views: Views, place: int, columns: Tensor | None, counted: Counted, of: Of) -> tuple[Tensor, int]:
        """Of one view, which nothing but its gradient holds while the next one is read."""
        view = views[place]
        return of(self.forward(view, columns), view.targets, counted), counted.total(view.targets)


class _ProductCounter(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch imports its compiler: a second, and 160 MB

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self._profile = profile

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        at = _PRODUCTS.get(func._schema.name)  # type: ignore[attr-defined]
        if at is not None and self._profile.inside(LINEAR):
            first, other = args[at], args[at + 1]
            self._profile.work(LINEAR, 2.0 * first.shape[0] * first.shape[1] * other.shape[1])
        return func(*args, **(kwargs or {}))


class EarlyStopping(Listener):
    """Comes after evaluations; ends a run after so many without a better validation metric."""

    def __init__(self, patience: int, history: History) -> None:
        self._patience, self._history = patience, history

    @property
    def has_enough(self) -> bool:
        """Also of a run that is resumed after its end."""
        return self._history.stale >= self._patience

    def on_epoch(self, end: EpochEnd) -> None:
        end.last |= self.has_enough


class TimeLimit(Listener):
    """Ends a run after so many seconds of training; it comes before evaluations, so that the last epoch is evaluated."""

    def __init__(self, seconds: float, history: History) -> None:
        self._seconds, self._history = seconds, history

    @property
    def is_over(self) -> bool:
        """Also of a run that is resumed after its end."""
        return sum(self._history.epoch_times_s) >= self._seconds

    def on_epoch(self, end: EpochEnd) -> None:
        end.last |= self.is_over


class Rows(Listener):
    """Gives every epoch's line of ``metrics.jsonl`` to ``take``. ``spills``: tables may lie on disk."""

    def __init__(self, take: Callable[[dict[str, Any]], None], *, spills: bool = False) -> None:
        self._take, self._spills = take, spills

    def on_epoch(self, end: EpochEnd) -> None:
        result, evaluation = end.result, end.evaluation
        row: dict[str, Any] = {
            "epoch": result.epoch,
            "optimizer_steps": (result.epoch + 1) * result.steps,
            "loss": result.loss,
            "lr": result.lr,
            "epoch_time_s": result.epoch_time_s,
            "compute_time_s": result.compute_time_s,
            "comm_wait_time_s": result.comm_wait_time_s,
            "comm_bytes": result.comm_bytes,
            "between_servers_bytes": result.between_bytes,
            "between_servers_wait_s": result.between_wait_s,
            **({"disk_written_bytes": result.written_bytes, "disk_read_bytes": result.read_bytes} if self._spills else {}),
            "ranks": dict(vars(result.ranks)),
        }
        if evaluation is not None:
            row["ranks"]["peak_evaluate_bytes"] = evaluation.peak_evaluate_bytes
            row |= epoch_columns(evaluation.task, evaluation.metric, evaluation.scores)
        self._take(row)
