"""How long an epoch takes, before anything is launched: from small trials of the same model, mode and kernel.

A trial says how many seconds a worker spends in each category of a profile (``sargnn.profile``) at a size x: rows of linear
maps and node-wise work, edges of aggregation, bytes of what is exchanged. A small trial and a large one tell a fixed part and
one per row, edge or byte, and another large one that reads more of others what that costs beside it: h edges from rows of
others where shards are aggregated one by one, else h halo rows,

    t(x, h) = a + b x + c h,    c = (t_3 - t_2) / (h_3 - h_2),    a, b by t_1 and t_2,    a, b, c >= 0

where c is 0 for what a worker does with its own rows alone; linear maps of rows of others go by these rows in any case. Workers
that share cores take turns: with T threads each on C cores, each runs at min(1, C / (T n)) of its speed while n of them are not
done; the slowest ends the epoch.

Letters: T node types, R relations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sargnn.errors import ConfigError
from sargnn.memory.plan_parts import PartSizes
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
_READS_HALO = (AGGREGATION, REST)
_BY_BYTES = (PACKING, EXCHANGE_WAIT, BETWEEN_WAIT)


@dataclass(frozen=True)
class Load:
    """What one worker has in an epoch.

    Attributes:
        rows: of its own.
        edges: into them by relation [R], loops that the model adds with the first one.
        halo: rows of others that it reads.
        sent: own rows that others read.
        targets: training rows.
        crossing: edges from rows of others; None: not counted, as many for each halo row as in a trial.
    """

    rows: int
    edges: tuple[int, ...]
    halo: int
    sent: int
    targets: int
    crossing: int | None = None


def load_of(part: PartSizes, *, loops: bool) -> Load:
    """A part's. loops: the model adds a self-loop to each row."""
    rows = sum(part.rows)
    first, *others = part.edges
    return Load(rows, (first + rows * loops, *others), part.halo, part.sent, part.targets, part.crossing)


@dataclass(frozen=True)
class Trial:
    """A small training.

    Attributes:
        load: the mean of its workers'.
        sent_bytes: of an epoch, by a worker.
        seconds: of a worker in an epoch, by category.
        work: likewise, floating-point operations of linear maps, else bytes.
        epochs_s: each epoch's whole time, without the first.
    """

    load: Load
    sent_bytes: float
    seconds: dict[str, float]
    work: dict[str, float]
    epochs_s: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """What trials of a configuration have measured on this machine.

    Attributes:
        threads: of each of their workers, who had cores of their own.
        by_shard: whether shards are aggregated one by one.
        small: a trial.
        large: one of a larger graph.
        halo: one as large that reads more of others; None: of one worker.
    """

    threads: int
    by_shard: bool
    small: Trial
    large: Trial
    halo: Trial | None = None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Calibration:
        """Of its JSON. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for content that is none."""
        halo = content["halo"]
        trials = _trial(content["small"]), _trial(content["large"]), None if halo is None else _trial(halo)
        return cls(int(content["threads"]), bool(content["by_shard"]), *trials)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All of them."""
        return (self.small, self.large) if self.halo is None else (self.small, self.large, self.halo)


@dataclass(frozen=True)
class EpochTime:
    """An epoch's time on the slowest worker, seconds, and the work of all.

    Attributes:
        seconds: computing and exchanging.
        low: the least that it should be.
        high: the most.
        computing_s: of the slowest worker, while it shares its cores.
        exchanging_s: likewise.
        by_category: likewise.
        flops: of linear maps.
        bytes_moved: read and written by what else is counted; a mode whose operators do not count what they read has those of
            its exchange only.
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
        loads: of each worker.
        sent_bytes: of an epoch, by all; None: as many for each halo row as in the trial.
        calibration: of the configuration on this machine.
        threads: of each worker.
        cores: of a machine.
        machines: on which the workers are, evenly.
        network_bytes_s: what a machine sends and receives in a second, of several; None: as fast as between processes of one.

    Raises:
        ConfigError: no workers, or a speed, a number of cores, threads or machines below what there can be.
    """
    if not loads or min(threads, cores, machines) < 1 or (network_bytes_s is not None and network_bytes_s <= 0):
        raise ConfigError(
            "There is no epoch to foretell.",
            given=f"{len(loads)} workers, {threads} threads, {cores} cores, {machines} machines, network {network_bytes_s}",
            allowed="at least one of each, and a speed above 0",
        )
    # What each worker sends and receives of all, by the rows that it does.
    travelling, trial = [(load.sent + load.halo) / 2 for load in loads], calibration.trials[-1]
    every = sum(travelling)
    if sent_bytes is None:
        per_row = trial.sent_bytes / trial.load.halo if trial.load.halo else 0.0
        sent = [rows * per_row for rows in travelling]
    else:
        sent = [sent_bytes * rows / every if every else 0.0 for rows in travelling]
    slower = calibration.threads / threads  # a worker with fewer threads than one of the trial
    each = [_seconds_of(load, b, calibration, slower) for load, b in zip(loads, sent, strict=True)]
    totals = [sum(times.values()) for times in each]
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
    work = {}
    for name in CATEGORIES:
        per_worker = _line(name, calibration, "work")
        work[name] = sum(per_worker(load, b) for load, b in zip(loads, sent, strict=True))
    # What a network takes is hidden, in part or wholly, where rows are fetched ahead.
    return EpochTime(
        whole,
        seconds * low,
        whole * high,
        whole - exchanging,
        exchanging,
        by_category,
        work[LINEAR],
        sum(value for name, value in work.items() if name != LINEAR),
    )


def _size(category: str, load: Load, sent_bytes: float) -> float:
    """What a category's time grows with."""
    if category == AGGREGATION:
        return sum(load.edges)
    return sent_bytes if category in _BY_BYTES else load.rows


def _seconds_of(load: Load, sent_bytes: float, calibration: Calibration, slower: float) -> dict[str, float]:
    """Of a worker that has its cores for itself, by category."""
    by_category = {}
    for name in CATEGORIES:
        if name != EVALUATION:
            factor = 1.0 if name in WAITING else slower
            by_category[name] = factor * _line(name, calibration)(load, sent_bytes)
    return by_category


def _read_of_others(name: str, load: Load, calibration: Calibration) -> float:
    """Edges from rows of others, or those rows."""
    if name == LINEAR or not calibration.by_shard:
        return load.halo
    if load.crossing is not None:
        return load.crossing
    known = calibration.trials[-1].load
    return load.halo * (known.crossing or 0) / max(1, known.halo)


def _line(name: str, calibration: Calibration, of: Literal["seconds", "work"] = "seconds") -> Callable[[Load, float], float]:
    """Seconds or work of a category, by a worker's load and the bytes that it sends: fixed, for each row, edge or byte, and for
    each row or edge of others."""
    last = calibration.trials[-1] if name in _BY_BYTES else calibration.large
    (x1, h1, t1), (x2, h2, t2) = (_point(name, trial, calibration, of) for trial in (calibration.small, last))
    per_other = 0.0
    # Where a worker multiplies rows of others, too, as relational layers may, more of them are more operations.
    large, halo = calibration.large.work.get(LINEAR, 0.0), calibration.trials[-1].work.get(LINEAR, 0.0)
    maps_halo = name == LINEAR and halo > 1.01 * large
    if calibration.halo is not None and (name in _READS_HALO or maps_halo):
        _, h3, t3 = _point(name, calibration.halo, calibration, of)
        per_other = max(0.0, (t3 - t2) / (h3 - h2)) if h3 > h2 else 0.0
    t1, t2 = max(0.0, t1 - per_other * h1), max(0.0, t2 - per_other * h2)
    fixed, each = t2, 0.0
    if x2 > x1:
        each = max(0.0, (t2 - t1) / (x2 - x1))
        fixed = t2 - each * x2
        if fixed < 0:  # the larger one falls out of caches, as what is larger still does
            fixed, each = 0.0, t2 / x2

    def at(load: Load, sent_bytes: float) -> float:
        return fixed + each * _size(name, load, sent_bytes) + per_other * _read_of_others(name, load, calibration)

    return at


def _point(
    name: str, trial: Trial, calibration: Calibration, of: Literal["seconds", "work"] = "seconds"
) -> tuple[float, float, float]:
    """Size, what is read of others, seconds or work."""
    values = trial.seconds if of == "seconds" else trial.work
    size = _size(name, trial.load, trial.sent_bytes)
    return size, _read_of_others(name, trial.load, calibration), values.get(name, 0.0)


def _interval(loads: Sequence[Load], sent: Sequence[float], calibration: Calibration, slower: float) -> tuple[float, float]:
    """What the least and the largest time are, of the expected one: by the trials' epochs, and by the last trial alone."""
    spread = [value / min(trial.epochs_s) for trial in calibration.trials for value in trial.epochs_s]
    expected = max(sum(_seconds_of(load, b, calibration, slower).values()) for load, b in zip(loads, sent, strict=True))
    last, alone = calibration.trials[-1], []
    for load, b in zip(loads, sent, strict=True):
        total = 0.0
        for name in CATEGORIES:
            x, _, seconds = _point(name, last, calibration)
            if name != EVALUATION and x:
                total += (1.0 if name in WAITING else slower) * seconds * _size(name, load, b) / x
        alone.append(total)
    ratio = max(alone) / expected if expected else 1.0
    middle = sorted(spread)[len(spread) // 2]
    return min(1.0, ratio) / middle, max(1.0, ratio) * middle


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


def _trial(content: Mapping[str, Any]) -> Trial:
    load = dict(content["load"])
    load["edges"] = tuple(load["edges"])
    epochs_s = tuple(float(epoch_s) for epoch_s in content["epochs_s"])
    return Trial(Load(**load), float(content["sent_bytes"]), dict(content["seconds"]), dict(content["work"]), epochs_s)
