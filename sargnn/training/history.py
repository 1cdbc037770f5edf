"""Figures of a run: of one epoch, of one evaluation, and of all so far."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch

from sargnn.backends.memory import Moved
from sargnn.comm.group import Group, Traffic
from sargnn.profile import Profile
from sargnn.tasks.kinds import Scores, is_better, selected


class StoppedError(Exception):
    """The run ends between two steps of an epoch, because somebody asked for that."""


@dataclass
class Requests:
    """What is asked of the loop for the end of the step under way; set at any time, such as by a signal."""

    checkpoint: bool = False
    stop: bool = False

    def take(self) -> Requests:
        """What is asked now. A checkpoint is asked for once; a stop stays."""
        taken = Requests(self.checkpoint, self.stop)
        if taken.checkpoint:  # not otherwise: a signal may have asked since
            self.checkpoint = False
        return taken

    def agreed(self, group: Group) -> Requests:
        """What is asked of any rank now, taken from this one; all ranks must call it."""
        mine = self.take()
        asked = group.sum_(torch.tensor([mine.checkpoint, mine.stop], dtype=torch.int64))
        return Requests(bool(asked[0]), bool(asked[1]))


@dataclass
class Underway:
    """What an epoch's steps so far have come to.

    Attributes:
        labels: how many labels the losses were means over.
        summed: the losses times these.
        lr, last_loss: of the last step.
        elapsed_s, wait_s: of this rank, as all that follows (``comm.group.Traffic``, ``backends.memory.Moved``).
        sent_bytes: rows and gradients.
        between_bytes, between_wait_s: to and for other servers.
    """

    steps: int = 0
    labels: int = 0
    summed: float = 0.0
    lr: float = 0.0
    last_loss: float = 0.0
    elapsed_s: float = 0.0
    wait_s: float = 0.0
    sent_bytes: int = 0
    between_bytes: int = 0
    between_wait_s: float = 0.0
    written_bytes: int = 0
    read_bytes: int = 0
    disk_wait_s: float = 0.0

    def add(self, loss: float, labels: int, lr: float) -> None:
        self.steps, self.labels, self.lr, self.last_loss = self.steps + 1, self.labels + labels, lr, loss
        self.summed += loss * labels

    def add_traffic(self, traffic: Traffic) -> None:
        self.wait_s, self.sent_bytes = self.wait_s + traffic.wait_s, self.sent_bytes + traffic.sent_bytes
        self.between_bytes += traffic.between_bytes
        self.between_wait_s += traffic.between_wait_s

    def add_moved(self, moved: Moved) -> None:
        self.written_bytes, self.read_bytes = self.written_bytes + moved.written_bytes, self.read_bytes + moved.read_bytes
        self.disk_wait_s += moved.wait_s

    @property
    def loss(self) -> float:
        """The mean over all labels; of one step its own."""
        return self.last_loss if self.steps == 1 else self.summed / max(self.labels, 1)


@dataclass(frozen=True)
class RankFigures:
    """One epoch's figures of each rank, in rank order."""

    compute_time_s: list[float]
    comm_wait_time_s: list[float]
    sent_bytes: list[int]
    peak_train_bytes: list[int]


@dataclass(frozen=True)
class EpochResult:
    """One training epoch, the same on every rank.

    Attributes:
        loss: sum over ranks / global count.
        epoch_time_s, compute_time_s, comm_wait_time_s: of the slowest rank.
        comm_bytes: rows and gradients sent by all ranks.
        ranks: the same of each rank.
        requests: what any rank was asked for meanwhile.
        steps: optimizer steps.
        between_bytes: of all traffic, collectives included, what all ranks sent to other servers.
        between_wait_s: of the slowest rank's waiting that for other servers.
        written_bytes, read_bytes: what all ranks had written to disk and read from it.
        disk_wait_s: seconds that the ranks waited for that, together.
    """

    epoch: int
    loss: float
    lr: float
    epoch_time_s: float
    compute_time_s: float
    comm_wait_time_s: float
    comm_bytes: int
    ranks: RankFigures
    requests: Requests
    steps: int = 1
    between_bytes: int = 0
    between_wait_s: float = 0.0
    written_bytes: int = 0
    read_bytes: int = 0
    disk_wait_s: float = 0.0


@dataclass(frozen=True)
class EvaluationResult:
    """One evaluation, the same on every rank: scores by split, ``peak_evaluate_bytes`` by rank."""

    task: str
    metric: str
    scores: Scores
    peak_evaluate_bytes: list[int]


class EpochProfile:
    """What was profiled after the first epoch, empty if it is the only one, and after the last one that was whole."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.first: list[dict[str, float]] | None = None
        self.recorded = copy.deepcopy(list(profile.recorded))

    def end_epoch(self, *, last: bool) -> None:
        """Note what was recorded; ``last``: no epoch comes after this one."""
        self.recorded = copy.deepcopy(list(self.profile.recorded))
        if self.first is None:
            self.first = [] if last else self.recorded


@dataclass
class History:
    """Figures of a run so far, the same on every rank but for the memory peaks. Per epoch as of ``EpochResult``.

    Attributes:
        between_bytes, between_waits_s, written_bytes, read_bytes, disk_waits_s: of this process's epochs.
        evaluate_times_s: per evaluation.
        scores: the last evaluation's, by split.
        select: what the best epoch is chosen by: ``val_metric`` or ``val_loss``.
        best_selected: that of the best epoch; the last of tied ones counts.
        best_val, test_at_best_val: of the metric, of the best epoch.
        stale: evaluations that count for early stopping since what is selected by was better than in all of them before.
        counted_best: the best of those evaluations.
        peak_train_bytes, peak_evaluate_bytes, peak_smooth_bytes: this rank's, above its baseline.
        smoothed: the metric after Correct & Smooth, by split; empty without it.
        profile_s: this rank's seconds per epoch by category of ``profile.CATEGORIES``, first epoch left out; empty unless
            profiling.
        cpu_s: likewise, of all its threads.
        work: likewise, floating-point operations or bytes.
        waited_s: likewise, seconds by the peer that was waited for.
        shard_cpu_s, shard_edges: likewise, by the kind of shard that was aggregated (``profile.SHARDS``).
    """

    task: str = "classes"
    metric: str = "accuracy"
    losses: list[float] = field(default_factory=list)
    epoch_times_s: list[float] = field(default_factory=list)
    compute_times_s: list[float] = field(default_factory=list)
    wait_times_s: list[float] = field(default_factory=list)
    epoch_bytes: list[int] = field(default_factory=list)
    between_bytes: list[int] = field(default_factory=list)
    between_waits_s: list[float] = field(default_factory=list)
    written_bytes: list[int] = field(default_factory=list)
    read_bytes: list[int] = field(default_factory=list)
    disk_waits_s: list[float] = field(default_factory=list)
    evaluate_times_s: list[float] = field(default_factory=list)
    scores: Scores = field(default_factory=dict)
    select: str = "val_metric"
    best_selected: float | None = None
    best_val: float | None = None
    test_at_best_val: float | None = None
    stale: int = 0
    counted_best: float | None = None
    peak_train_bytes: int = 0
    peak_evaluate_bytes: int = 0
    smoothed: Scores = field(default_factory=dict)
    smooth_time_s: float | None = None
    peak_smooth_bytes: int = 0
    profile_s: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)
    shard_cpu_s: dict[str, float] = field(default_factory=dict)
    shard_edges: dict[str, float] = field(default_factory=dict)

    def add_epoch(self, result: EpochResult, peak_train_bytes: int) -> None:
        self.note_training_peak(peak_train_bytes)
        self.losses.append(result.loss)
        self.epoch_times_s.append(result.epoch_time_s)
        self.compute_times_s.append(result.compute_time_s)
        self.wait_times_s.append(result.comm_wait_time_s)
        self.epoch_bytes.append(result.comm_bytes)
        self.between_bytes.append(result.between_bytes)
        self.between_waits_s.append(result.between_wait_s)
        self.written_bytes.append(result.written_bytes)
        self.read_bytes.append(result.read_bytes)
        self.disk_waits_s.append(result.disk_wait_s)

    def note_training_peak(self, peak_bytes: int) -> None:
        self.peak_train_bytes = max(self.peak_train_bytes, peak_bytes)

    def add_profile(self, profile: EpochProfile, *, since: int) -> None:
        """Per epoch, the first one left out; ``since`` is its number."""
        if not profile.profile.recording:
            return
        epochs = max(len(self.epoch_times_s) - since - 1, 1)
        self.profile_s, self.cpu_s, self.work, self.waited_s, self.shard_cpu_s, self.shard_edges = (
            {name: (total - early.get(name, 0.0)) / epochs for name, total in totals.items()}
            for totals, early in zip(profile.recorded, profile.first or [{}] * len(profile.recorded), strict=True)
        )

    def add_evaluation(self, scores: Scores, time_s: float, peak_bytes: int, *, counts: bool = True) -> None:
        """Append an evaluation; ``peak_bytes`` is this rank's.

        ``counts``: for early stopping. That of the last epoch alone does not: a run of more epochs has none there.
        """
        self.evaluate_times_s.append(time_s)
        self.peak_evaluate_bytes = max(self.peak_evaluate_bytes, peak_bytes)
        self.scores = scores
        value, by = selected(self.select, self.metric, scores)
        if value is None:
            return
        if counts:
            better = self.counted_best is None or is_better(by, value, self.counted_best)
            self.stale = 0 if better else self.stale + 1
            self.counted_best = value if better else self.counted_best
        if self.best_selected is None or not is_better(by, self.best_selected, value):
            self.best_selected, self.best_val, self.test_at_best_val = value, scores["valid"], scores["test"]
