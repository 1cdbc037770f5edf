"""How long an epoch takes, before anything is launched: from two small trials of the same model, mode and kernel.

A trial says how many seconds a worker spends in each category of a profile (``sargnn.profile``) at a size x: rows of linear
maps and node-wise work, edges of aggregation, bytes of what is exchanged. Two trials give a line,

    t(x) = a + b x,    b = (t_2 - t_1) / (x_2 - x_1),    a = t_1 - b x_1

whose fixed part a and part b per row, edge or byte are not below zero. Workers that share cores take turns: with T threads
each on C cores, each runs at min(1, C / (T n)) of its speed while n of them are not done; the slowest ends the epoch.

Letters: T node types, R relations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sargnn.errors import ConfigError
from sargnn.planner.parts import PartSizes
from sargnn.profile import (
    AGGREGATION,
    ALL_REDUCE,
    BETWEEN_WAIT,
    CATEGORIES,
    EVALUATION,
    EXCHANGE_WAIT,
    LINEAR,
    PACKING,
    REST,
)

WAITING = (EXCHANGE_WAIT, BETWEEN_WAIT, ALL_REDUCE)
"""Categories that exchange; the others compute."""
_BY_BYTES = (PACKING, EXCHANGE_WAIT, BETWEEN_WAIT)


@dataclass(frozen=True)
class Load:
    """What one worker has in an epoch.

    Attributes:
        rows: of its own. edges: into them by relation [R], loops that the model adds with the first one. halo: rows of others
            that it reads. sent: own rows that others read. targets: training rows.
    """

    rows: int
    edges: tuple[int, ...]
    halo: int
    sent: int
    targets: int


def load_of(part: PartSizes, *, loops: bool) -> Load:
    """A part's. loops: the model adds a self-loop to each row."""
    rows = sum(part.rows)
    first, *others = part.edges
    return Load(rows, (first + rows * loops, *others), part.halo, part.sent, part.targets)


@dataclass(frozen=True)
class Trial:
    """A small training.

    Attributes:
        load: the mean of its workers'. sent_bytes: of an epoch, by a worker.
        seconds: of a worker in an epoch, by category. work: likewise, floating-point operations of linear maps, else bytes.
        epochs_s: each epoch's whole time, without the first.
    """

    load: Load
    sent_bytes: float
    seconds: dict[str, float]
    work: dict[str, float]
    epochs_s: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """What two trials of a configuration have measured on this machine.

    Attributes:
        threads: of each of their workers, who had cores of their own. small, large: the trials.
    """

    threads: int
    small: Trial
    large: Trial

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Calibration:
        """The inverse. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for content that is none."""
        return cls(int(content["threads"]), _trial(content["small"]), _trial(content["large"]))


@dataclass(frozen=True)
class EpochTime:
    """An epoch's time on the slowest worker, seconds, and the work of all.

    Attributes:
        seconds: computing and exchanging. low, high: between which it should lie.
        computing_s, exchanging_s: of the slowest worker, while it shares its cores. by_category: likewise.
        flops: of linear maps. bytes_moved: read and written by what else is counted; a mode whose operators do not count what
            they read has those of its exchange only.
    """

    seconds: float
    low: float
    high: float
    computing_s: float
    exchanging_s: float
    by_category: dict[str, float]
    flops: float
    bytes_moved: float


def epoch_time(
    loads: Sequence[Load],
    sent_bytes: int | None,
    calibration: Calibration,
    *,
    threads: int,
    cores: int,
    machines: int = 1,
    network_bytes_s: float | None = None,
) -> EpochTime:
    """The time of an epoch.

    Args:
        loads: of each worker. sent_bytes: of an epoch, by all; None: as many for each halo row as in the trial.
        threads: of each worker. cores: of a machine. machines: on which the workers are, evenly.
        network_bytes_s: what a machine sends and receives in a second, of several; None: as fast as between processes of one.

    Raises:
        ConfigError: no workers, or a speed, a number of cores, threads or machines below what there can be.
    """
    if not loads or min(threads, cores, machines) < 1 or (network_bytes_s is not None and network_bytes_s <= 0):
        raise ConfigError(
            "There is no epoch to foretell.",
            given=f"{len(loads)} workers, {threads} threads, {cores} cores, {machines} machines, network {network_bytes_s}",
            allowed="at least one of each, and a speed above 0",
        )  # fmt: skip
    sent = _sent_by(loads, sent_bytes, calibration.large)
    slower = calibration.threads / threads  # a worker with fewer threads than one of the trial
    each = [_seconds_of(load, b, calibration, slower) for load, b in zip(loads, sent, strict=True)]
    totals = [sum(one.values()) for one in each]
    here = -(-len(loads) // machines)
    slots, first = max(1.0, cores / threads), int(max(range(len(totals)), key=totals.__getitem__))
    seconds = max(_finish(totals[start : start + here], slots) for start in range(0, len(totals), here))
    share = seconds / totals[first] if totals[first] else 1.0
    by_category = {name: value * share for name, value in each[first].items()}
    network = 0.0
    if network_bytes_s is not None and machines > 1:
        leaving = sum(sent) * (1 - (here - 1) / max(1, len(loads) - 1)) / machines
        network = leaving / network_bytes_s
        by_category[BETWEEN_WAIT] += network
    low, high = _interval(loads, sent, calibration, slower)
    exchanging = sum(by_category[name] for name in WAITING)
    whole = seconds + network
    work = {name: sum(_work(name, load, b, calibration) for load, b in zip(loads, sent, strict=True)) for name in CATEGORIES}
    # What a network takes is hidden, in part or wholly, where rows are fetched ahead.
    return EpochTime(
        whole, seconds * low, whole * high, whole - exchanging, exchanging, by_category, work[LINEAR],
        sum(value for name, value in work.items() if name != LINEAR),
    )  # fmt: skip


def _size(category: str, load: Load, sent_bytes: float) -> float:
    """What a category's time grows with."""
    if category == AGGREGATION:
        return sum(load.edges)
    if category in _BY_BYTES:
        return sent_bytes
    return load.rows + load.halo if category == REST else load.rows


def _seconds_of(load: Load, sent_bytes: float, calibration: Calibration, slower: float) -> dict[str, float]:
    """Of a worker that has its cores for itself, by category."""
    found = {}
    for name in CATEGORIES:
        if name != EVALUATION:
            factor = 1.0 if name in WAITING else slower
            found[name] = factor * _on_line(name, _size(name, load, sent_bytes), calibration)
    return found


def _on_line(name: str, size: float, calibration: Calibration) -> float:
    small, large = calibration.small, calibration.large
    x1, x2 = (_size(name, one.load, one.sent_bytes) for one in (small, large))
    t1, t2 = small.seconds.get(name, 0.0), large.seconds.get(name, 0.0)
    if x2 <= x1 or t2 <= t1:  # nothing that grows with the size
        return max(t1, t2) if name in WAITING or not x2 else t2 * max(1.0, size / x2)
    slope = (t2 - t1) / (x2 - x1)
    fixed = t1 - slope * x1
    if fixed < 0:  # the larger one falls out of caches, as what is larger still does
        return t2 * size / x2
    return fixed + slope * size


def _interval(loads: Sequence[Load], sent: Sequence[float], calibration: Calibration, slower: float) -> tuple[float, float]:
    """What the least and the largest time are, of the expected one: by the epochs of the trials, and by either trial alone."""
    spread = [value / _middle(one.epochs_s) for one in (calibration.small, calibration.large) for value in one.epochs_s]
    expected = [sum(_seconds_of(load, b, calibration, slower).values()) for load, b in zip(loads, sent, strict=True)]
    alone = []
    for load, b in zip(loads, sent, strict=True):
        total = 0.0
        for name in CATEGORIES:
            x = _size(name, calibration.large.load, calibration.large.sent_bytes)
            if name != EVALUATION and x:
                factor = 1.0 if name in WAITING else slower
                total += factor * calibration.large.seconds.get(name, 0.0) * _size(name, load, b) / x
        alone.append(total)
    ratio = max(alone) / max(expected) if max(expected) else 1.0
    return min(1.0, ratio) * min(1.0, *spread), max(1.0, ratio) * max(1.0, *spread)


def _sent_by(loads: Sequence[Load], sent_bytes: int | None, trial: Trial) -> list[float]:
    """What each worker sends and receives of all, by the rows that it does."""
    rows = [(one.sent + one.halo) / 2 for one in loads]
    if sent_bytes is None:
        per_row = trial.sent_bytes / trial.load.halo if trial.load.halo else 0.0
        return [one * per_row for one in rows]
    return [sent_bytes * one / sum(rows) if sum(rows) else 0.0 for one in rows]


def _work(name: str, load: Load, sent_bytes: float, calibration: Calibration) -> float:
    large = calibration.large
    size = _size(name, large.load, large.sent_bytes)
    return large.work.get(name, 0.0) * _size(name, load, sent_bytes) / size if size else 0.0


def _finish(seconds: Sequence[float], slots: float) -> float:
    """When the last of several workers is done that share so many slots evenly, each at most one.

    Args:
        seconds: of each, alone.
    """
    now = done = 0.0
    left = sorted(seconds)
    for number, own in enumerate(left):
        now += (own - done) / min(1.0, slots / (len(left) - number))
        done = own
    return now


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _trial(content: Mapping[str, Any]) -> Trial:
    load = dict(content["load"])
    load["edges"] = tuple(load["edges"])
    epochs_s = tuple(float(one) for one in content["epochs_s"])
    return Trial(Load(**load), float(content["sent_bytes"]), dict(content["seconds"]), dict(content["work"]), epochs_s)
