"""What a person sees while a command runs: its steps, its epochs with what is left of a run, single lines. All on stderr."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from sargnn import steps
from sargnn.graph.schema import Schema
from sargnn.tasks.kinds import KINDS, best_of
from sargnn.tracking.memory import human_bytes
from sargnn.tracking.scores import show_score

EVERY_S = "SARGNN_PROGRESS_S"
"""The environment variable with the seconds between plain lines; fewer in a notebook, where one takes the other's place."""
_EVERY_S, _SILENCE_S, _WIDTH = 5.0, 30.0, 80
_SURE_AFTER_S = 5.0
"""Of a step, before anything is said about the rest of it."""
_RECENT = 20
_NEEDED_LEAST = ("time", "peak", "best")
"""What is left out first where a line has no room."""


class EpochProgress:
    """A progress bar on a terminal; elsewhere a plain line every ``every_s`` seconds, and of the first epoch and the last."""

    def __init__(self, epochs: int, every_s: float | None = None) -> None:
        self.console = Console(stderr=True, soft_wrap=True)
        self._figures = ProgressFigures(epochs)
        self._every_s = float(os.environ.get(EVERY_S, _EVERY_S)) if every_s is None else every_s
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._said_at = time.monotonic()
        self._said = 0
        self._patience_s = _SILENCE_S

    def __enter__(self) -> EpochProgress:
        if self.console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=8), MofNCompleteColumn(), _FiguresColumn(self._figures, self.console), console=self.console
            )
            self._bar.start()
            self._task = self._bar.add_task("training", total=self._figures.epochs)
        return self

    def begin_after(self, row: dict[str, Any]) -> None:
        """Note an epoch of before the run was gone on with."""
        self._figures.take(row, before=True)

    def update(self, row: dict[str, Any]) -> None:
        first = not self._figures.row
        self._figures.take(row)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._figures.done)
        elif first or self._figures.done == self._figures.epochs or time.monotonic() - self._said_at >= self._every_s:
            self._say()

    def tick(self) -> None:
        """Called every moment: says that an epoch is under way where that takes long."""
        silent_s = time.monotonic() - self._said_at
        if self._bar is None and silent_s >= self._patience_s:
            self._patience_s *= 2
            what = f"epoch {self._figures.done + 1}/{self._figures.epochs}"
            self.console.print(f"{what} is under way, {human_seconds(silent_s)} since the line before", highlight=False)

    def _say(self) -> None:
        figures = self._figures
        head = f"epoch {figures.done}/{figures.epochs}  "
        self.console.print(head + figures.line(_WIDTH - len(head)), highlight=False)
        self._said_at, self._said, self._patience_s = time.monotonic(), figures.done, _SILENCE_S

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._said < self._figures.done:
            self._say()


class _FiguresColumn(ProgressColumn):
    """What ``ProgressFigures`` says, as long as the terminal is wide; its time left counts down between epochs."""

    def __init__(self, figures: ProgressFigures, console: Console) -> None:
        super().__init__(Column(no_wrap=True))
        self._figures, self._console = figures, console

    def render(self, task: Task) -> Text:
        if not self._figures.row:
            return Text("starting workers, then the first epoch")
        taken = 8 + 2 * len(str(self._figures.epochs)) + 4
        return Text(self._figures.line(self._console.width - taken))


class TimeLeft:
    """How long a step will go on, from how long it took so far: said once that can be known."""

    def __init__(self) -> None:
        self._text, self._began, self._from, self._last = "", 0.0, 0, 0

    def of(self, text: str, done: int | None, total: int | None, now: float) -> str:
        """`` (about 3 min left)``; empty in a step's first seconds, and where nobody knows how much there is. ``now``: in
        seconds."""
        if text != self._text or (done or 0) < self._last:
            self._text, self._began, self._from = text, now, done or 0
        self._last = done or 0
        passed, came = now - self._began, (done or 0) - self._from
        if not total or came <= 0 or passed < _SURE_AFTER_S:
            return ""
        left = passed * (total - (done or 0)) / came
        return f" (about {human_seconds(left)} left)"


class Steps:
    """What a preparation is doing, a line on a terminal; nothing elsewhere. Use as a context manager."""

    def __enter__(self) -> Steps:
        self._console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._progress.start()
        self._task = self._progress.add_task("starting", total=None)
        self._left = TimeLeft()
        steps.install(self._show)
        return self

    def _show(self, text: str, done: int | None, total: int | None) -> None:
        shown = f"{text}{self._left.of(text, done, total, time.monotonic())}"
        self._progress.update(self._task, description=shown, completed=done or 0, total=total)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        steps.install(None)
        self._progress.stop()


def say(text: str) -> None:
    """One line for the person, on stderr."""
    Console(stderr=True, soft_wrap=True).print(text, highlight=False, markup=False)


def graph_lines(
    num_edges: int,
    schema: Schema,
    feature_widths: Sequence[int],
    num_classes: int,
    task: str = "classes",
    *,
    weighted: bool = False,
    edge_width: int = 0,
    pairs: Mapping[str, int] | None = None,
    pairs_called: str = "pairs",
) -> list[str]:
    """A graph's size, in one line; of a typed graph with its types and relations.

    Args:
        edge_width: features of an edge.
        pairs: links or labelled edges by split, where there are some to predict.
    """
    outputs = f"{num_classes} {KINDS[task].output if num_classes == 1 else KINDS[task].outputs}"
    if pairs is not None:
        outputs = f"{pairs_called}: {', '.join(f'{split} {count}' for split, count in pairs.items())}"
    total = f"{schema.num_nodes} nodes, {num_edges} directed{' weighted' if weighted else ''} edges"
    total += f" ({edge_width} feature{'s' * (edge_width > 1)} each), " if edge_width else ", "
    if not schema.typed:
        return [f"{total}{feature_widths[0]} features, {outputs}"]
    lines = [f"{total}{len(schema.relations)} relations, {outputs}"]
    for node_type, name in enumerate(schema.node_types):
        width = feature_widths[node_type]
        lines.append(f"  {name}: {schema.count(node_type)} nodes, {f'{width} features' if width else 'no features'}")
    return lines


def partition_lines(stats: dict[str, Any], whose: str = "worker") -> list[str]:
    """The partition's quality in a few lines. ``whose``: what has a part."""
    halo = stats["halo_rows"]
    lines = [
        f"  edge cut {stats['edge_cut']:.3f} ({stats['cut_edges']} edges)",
        f"  halo rows {min(halo)} to {max(halo)} a {whose}, {stats['volume_rows']} travel in one exchange",
        f"  balance (largest / mean): nodes {stats['node_balance']:.3f}, edges {stats['edge_balance']:.3f}",
    ]
    if len(stats["type_balance"]) > 1:
        lines.append(f"  of each node type: {', '.join(f'{balance:.3f}' for balance in stats['type_balance'])}")
    return lines


class ProgressFigures:
    """The state of a run. ``row``: of the newest epoch, as ``metrics.jsonl`` has it; empty before the first."""

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
        """Epochs that are over."""
        return self.row["epoch"] + 1 if self.row else 0

    def take(self, row: dict[str, Any], *, before: bool = False) -> None:
        """``before``: the epoch was over when this run was gone on with, so it says nothing of the pace."""
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
