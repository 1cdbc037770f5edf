"""What a person wants to know while a run trains, from its epochs' figures: where it stands, its best, what is left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

from sargnn.tasks.kinds import best_of
from sargnn.tracking.memory import human_bytes
from sargnn.tracking.scores import show_score

_RECENT = 20
_NEEDED_LEAST = ("time", "peak", "best")
"""What is left out first where a line has no room."""


class ProgressFigures:
    """The state of a run, epoch by epoch.

    Args:
        epochs: how many the run will have. clock: seconds, never going back.

    Attributes:
        row: of the newest epoch, as ``metrics.jsonl`` has it; None before the first.
    """

    def __init__(self, epochs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.epochs, self.row = epochs, dict[str, Any]()
        self._clock, self._began = clock, clock()
        self._ends: deque[tuple[int, float]] = deque(maxlen=_RECENT)
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._scored: dict[str, Any] = {}
        self._best: float | None = None
        self._peak = 0

    @property
    def done(self) -> int:
        """How many epochs are over."""
        return self.row["epoch"] + 1 if self.row else 0

    def take(self, row: dict[str, Any], *, before: bool = False) -> None:
        """Note an epoch. ``before``: it was over when this run was gone on with, so it says nothing of the pace."""
        if (score := row.get("val_metric")) is not None:
            self._scored = row
            self._best = score if self._best is None else best_of(row["metric"], self._best, score)
        if before:
            return
        self.row = row
        self._ends.append((row["epoch"], self._clock()))
        self._times.append(row["epoch_time_s"])
        self._peak = max([self._peak, *row.get("ranks", {}).get("peak_train_bytes", [])])

    def seconds_left(self) -> float:
        """Until the last epoch is over, at the pace of the last ones, evaluation included."""
        (first, since), (last, until) = self._ends[0], self._ends[-1]
        pace = (until - since) / (last - first) if last > first else 0.0
        if pace < median(self._times) / 2:  # their lines were all there at once
            pace = median(self._times)
        to_go = self.epochs - 1 - last
        return max(to_go * pace - (self._clock() - until), (to_go - 1) * pace, 0.0)

    def line(self, width: int) -> str:
        """Loss, the last validation and the best, epoch time, largest worker's peak, time left; what has room in ``width``."""
        row, parts = self.row, dict[str, str]()
        parts["loss"] = f"loss {row['loss']:.4f}"
        if self._scored:
            metric = self._scored["metric"]
            name = "val" if metric == "accuracy" else f"val {metric}"
            parts["val"] = f"{name} {show_score(self._scored['val_metric'], metric)}"
            parts["best"] = f"best {show_score(self._best, metric)}"
        parts["time"] = f"{row['epoch_time_s']:.3f} s"
        if self._peak:
            parts["peak"] = f"peak {human_bytes(self._peak)}"
        over = self.done >= self.epochs
        parts["left"] = (
            f"in {human_seconds(self._clock() - self._began)}" if over else f"{human_seconds(self.seconds_left())} left"
        )
        for unneeded in (None, *_NEEDED_LEAST):
            parts.pop(unneeded or "", None)
            text = "  ".join(parts.values()).replace("  best", " best")
            if len(text) <= width:
                break
        return text


def human_seconds(seconds: float) -> str:
    """``14 s``, ``3 min``, ``1 h 20 min``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours / 24:.1f} days"
