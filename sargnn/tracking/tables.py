"""The tables that commands end with. All on stdout."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from rich import box
from rich.console import Console
from rich.table import Table

from sargnn.tracking.memory import human_bytes
from sargnn.tracking.scores import column_of, show_score
from sargnn.tracking.summary import Summary


def show_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str] | None],
    *,
    title: str | None = None,
    words: Collection[str] = (),
) -> None:
    """Print a table: figures to the right and never wrapped, words to the left.

    Args:
        heads: none: two columns of words, without a frame.
        rows: cells; None: a line between two rows.
        title: above a table with a frame; None: a table without one, at least 80 columns wide.
        words: heads of the columns that hold words.
    """
    if title is not None:
        table = Table(title=title)
    else:
        table = Table(box=box.SIMPLE_HEAD if heads else None, padding=(0, 1, 0, 0), pad_edge=False, show_header=bool(heads))
    for head in heads:
        table.add_column(head, justify="left" if head in words else "right", no_wrap=head not in words, overflow="fold")
    if not heads:
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*row)
    # Brackets in a user's names are no markup.
    console = Console(width=max(80, Console().width) if heads and title is None else None, markup=False)
    console.print(table, highlight=bool(heads))


def result_table(summary: Summary) -> None:
    peaks = summary.peak_train_bytes or [0]
    metric = summary.metric or "accuracy"
    rows = [
        (f"test {metric} at best validation", show_score(summary.test_metric_at_best_val, metric)),
        (f"best validation {metric}", show_score(summary.best_val_metric, metric)),
    ]
    if summary.best_val_metric is None:  # no validation nodes
        rows = [(f"test {metric}, last epoch", show_score(summary.test_metric, metric))]
    if summary.test_metric_smoothed is not None:
        rows.append((f"test {metric} after Correct & Smooth", show_score(summary.test_metric_smoothed, metric)))
    rows += [
        ("median epoch time", f"{summary.epoch_time_s or 0:.3f} s"),
        ("of that waiting for peers", f"{summary.comm_wait_time_s or 0:.3f} s"),
        ("bytes exchanged per epoch", human_bytes(summary.comm_bytes_per_epoch or 0)),
    ]
    if (summary.servers or 1) > 1:
        rows.append(("bytes between servers per epoch", human_bytes(summary.between_servers_bytes_per_epoch or 0)))
    if summary.disk_bytes is not None:
        written, read = human_bytes(summary.disk_written_per_epoch or 0), human_bytes(summary.disk_read_per_epoch or 0)
        rows.append(("written to disk and read per epoch", f"{written} and {read}"))
        rows.append(("of an epoch waiting for the disk", f"{summary.disk_wait_s or 0:.3f} s"))
        rows.append(("most on disk", human_bytes(sum(summary.disk_bytes))))
    whose = "worker" if summary.processes in (None, summary.world) else "process"
    rows.append((f"peak training memory per {whose}", f"{human_bytes(min(peaks))} to {human_bytes(max(peaks))}"))
    if summary.planned_alone_bytes is not None:
        rows.append(("of a worker with a process of its own", f"{human_bytes(summary.planned_alone_bytes)}, planned"))
    title = f"{summary.model} on {summary.dataset}, mode {summary.mode}, world {summary.world}"
    show_table(("figure", "value"), rows, title=title, words=("figure",))


def profile_tables(summary: Summary) -> None:
    """Where an epoch's time went, and who was waited for; nothing where no profile was asked for."""
    if profile_s := summary.profile_s:
        means = {name: sum(seconds) / len(seconds) for name, seconds in profile_s.items()}
        total = sum(means.values()) or 1.0
        rows = [
            (name, f"{means[name]:.3f}", f"{max(seconds):.3f}", f"{means[name] / total:.0%}")
            for name, seconds in profile_s.items()
        ]
        heads = ("what", "mean rank", "slowest rank", "share")
        title = "seconds per epoch, first epoch left out"
        show_table(heads, [*rows, ("all", f"{total:.3f}", "", "100%")], title=title, words=("what",))
    if waits := summary.profile_wait_s:
        # By the host, or on one host by the rank that was waited for: the mean and the longest of all ranks' waiting.
        names = summary.hosts or [f"rank {peer}" for peer in range(len(waits))]
        sums = {
            name: [sum(seconds for peer, seconds in enumerate(own) if names[peer] == name) for own in waits]
            for name in dict.fromkeys(names)
        }
        waited = [(name, f"{sum(each) / len(each):.3f}", f"{max(each):.3f}") for name, each in sums.items()]
        title = "seconds waited per epoch, first epoch left out"
        show_table(("for", "mean rank", "longest"), waited, title=title, words=("for",))


def score_table(metric: str, judge: str, scores: dict[str, dict[str, float | None]], unit: str, counts: dict[str, int]) -> None:
    """A row per split with its count of ``unit`` (``nodes`` or ``edges``), a column per kind of prediction."""
    rows = [
        (split, str(count), *(show_score(each[split], metric) for each in scores.values())) for split, count in counts.items()
    ]
    show_table(("split", unit, *scores), rows, title=f"{metric}, by {judge}", words=("split",))


class SweepPoint(Protocol):
    label: str
    status: str
    run_dir: Path
    summary: Summary | None


def sweep_table(points: Sequence[SweepPoint]) -> None:
    """What each point came to; where their metrics differ each value has its metric's name beside it."""
    metrics = {point.summary.metric for point in points if point.summary is not None and point.summary.metric is not None}
    test = f"test {column_of(next(iter(metrics), 'accuracy'))}" if len(metrics) <= 1 else "test"
    rows = []
    for point in points:
        summary, figures = point.summary, ["-"] * 3
        shown = point.status in ("finished", "skipped")
        if shown and summary is not None and summary.epoch_time_s is not None and summary.peak_train_bytes:
            score = show_score(summary.test_metric_at_best_val, summary.metric)
            if len(metrics) > 1 and summary.metric:
                score = f"{column_of(summary.metric)} {score}"
            figures = [score, f"{summary.epoch_time_s:.3f}", human_bytes(max(summary.peak_train_bytes))]
        rows.append((point.label, point.status, *figures, point.run_dir.name))
    heads = ("point", "status", test, "epoch s", "peak", "folder")
    show_table(heads, rows, title="the sweep", words=("point", "status", "folder"))
