"""The tables that commands end with. All on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sargnn.tracking.memory import human_bytes
from sargnn.tracking.progress import say
from sargnn.tracking.scores import column_of, show_score
from sargnn.tracking.summary import Summary


def _table(title: str, heads: Sequence[str], words: Sequence[str], *, no_wrap: bool = False) -> Table:
    """``words``: the columns that hold words, not figures."""
    table = Table(title=title)
    for head in heads:
        table.add_column(head, justify="left" if head in words else "right", no_wrap=no_wrap)
    return table


def result_table(summary: Summary) -> None:
    """Print the table at the end of a run."""
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
    table = _table(title, ("figure", "value"), ("figure",))
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def profile_tables(summary: Summary) -> None:
    """Print where an epoch's time went, and who was waited for; nothing where no profile was asked for."""
    if profile_s := summary.profile_s:
        heads = ("what", "mean rank", "slowest rank", "share")
        table = _table("seconds per epoch, first epoch left out", heads, ("what",))
        means = {name: sum(seconds) / len(seconds) for name, seconds in profile_s.items()}
        total = sum(means.values()) or 1.0
        for name, seconds in profile_s.items():
            table.add_row(name, f"{means[name]:.3f}", f"{max(seconds):.3f}", f"{means[name] / total:.0%}")
        table.add_row("all", f"{total:.3f}", "", "100%")
        Console().print(table)
    if waits := summary.profile_wait_s:
        # By the host, or on one host by the rank that was waited for: the mean and the longest of all ranks' waiting.
        names = summary.hosts or [f"rank {peer}" for peer in range(len(waits))]
        table = _table("seconds waited per epoch, first epoch left out", ("for", "mean rank", "longest"), ("for",))
        for name in dict.fromkeys(names):
            sums = [sum(seconds for peer, seconds in enumerate(own) if names[peer] == name) for own in waits]
            table.add_row(name, f"{sum(sums) / len(sums):.3f}", f"{max(sums):.3f}")
        Console().print(table)


def epoch_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print an epoch's parts, the last row for all of them."""
    table = _table("an epoch, mean over the workers, first epoch left out", heads, heads[:1])
    for number, row in enumerate(rows, start=1):
        table.add_row(*row, end_section=number == len(rows) - 1)
    Console().print(table)


def info_table(rows: Sequence[tuple[str, str]]) -> None:
    """Print what is here, two columns."""
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))  # brackets in a user's names are no markup
    Console().print(table, highlight=False)


def score_table(metric: str, judge: str, scores: dict[str, dict[str, float | None]], unit: str, counts: dict[str, int]) -> None:
    """Print a metric's values: a row per split, a column per kind of prediction.

    Args:
        judge: who has computed them.
        unit: what was predicted: ``nodes`` or ``edges``.
        counts: how many of them, by split.
    """
    table = _table(f"{metric}, by {judge}", ("split", unit, *scores), ("split",))
    for split, count in counts.items():
        table.add_row(split, str(count), *(show_score(each[split], metric) for each in scores.values()))
    Console().print(table)


class SweepPoint(Protocol):
    """A point of a sweep: its label, how it ended, its folder and, if it has one, its summary."""

    label: str
    status: str
    run_dir: Path
    summary: Summary | None


def sweep_table(points: Sequence[SweepPoint]) -> None:
    """Print a sweep's points and what each came to; where their metrics differ each value has its metric's name beside it."""
    table = Table(title="the sweep")
    metrics = {point.summary.metric for point in points if point.summary is not None and point.summary.metric is not None}
    test = f"test {column_of(next(iter(metrics), 'accuracy'))}" if len(metrics) <= 1 else "test"
    for name in ("point", "status", test, "epoch s", "peak", "folder"):
        table.add_column(name, justify="left" if name in ("point", "status", "folder") else "right", overflow="fold")
    for point in points:
        summary, figures = point.summary, ["-"] * 3
        shown = point.status in ("finished", "skipped")
        if shown and summary is not None and summary.epoch_time_s is not None and summary.peak_train_bytes:
            score = show_score(summary.test_metric_at_best_val, summary.metric)
            if len(metrics) > 1 and summary.metric:
                score = f"{column_of(summary.metric)} {score}"
            figures = [score, f"{summary.epoch_time_s:.3f}", human_bytes(max(summary.peak_train_bytes))]
        table.add_row(point.label, point.status, *figures, point.run_dir.name)
    Console().print(table)


def attention_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the attention benchmark: medians, how many times faster the compiled kernel is, and peak memory."""
    title = "Attention, stock operators and the compiled kernel: median ms"
    table = _table(title, ("heads", "pass", "stock", "fused", "faster"), ("pass",), no_wrap=True)
    for row in rows:
        for number, part in enumerate(("forward", "backward", "total")):
            shown = (f"{row[side][part]['median_s'] * 1e3:.0f}" for side in ("stock", "fused"))
            table.add_row(str(row["heads"]) if number == 0 else "", part, *shown, f"{row['speedup'][part]:.1f}")
        peaks = [row[side]["peak_bytes"] for side in ("stock", "fused")]
        table.add_row("", "peak memory", *(human_bytes(peak) for peak in peaks), f"{peaks[1] / peaks[0]:.2f} of it")
        table.add_section()
    Console().print(table)
    say("from rows and scores to the output and all gradients; peak above these and the")
    say("graph, the output let go after forward")


def norms_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the norms benchmark: medians of batch norm and layer norm, and PyTorch's times as multiples of them."""
    heads = ("width", "batch", "layer", "layer / batch", "torch / batch", "torch / layer")
    table = _table("Norm, ReLU and dropout, forward and backward: median ms", heads, (), no_wrap=True)
    for row in rows:
        medians = (f"{row[name]['median_s'] * 1e3:.1f}" for name in ("batch", "layer"))
        ratios = (f"{row[name]:.2f}" for name in ("layer_ratio", "batch_speedup", "layer_speedup"))
        table.add_row(str(row["width"]), *medians, *ratios)
    Console().print(table)
    say("batch, layer: compiled, with a mask drawn by id; torch: PyTorch's operators")


def weighted_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the benchmark of sums with edge weights: medians, beside sums without and stock ones."""
    heads = ("width", "sum", "weighted", "weighted / sum", "stock, weighted", "stock / ours")
    table = _table("Sums with edge weights, forward and backward: median ms", heads, (), no_wrap=True)
    for row in rows:
        sums, weighted, stock = (f"{row[name]['median_s'] * 1e3:.0f}" for name in ("sum", "weighted", "stock"))
        table.add_row(str(row["width"]), sums, weighted, f"{row['ratio']:.2f}", stock, f"{row['speedup']:.2f}")
    Console().print(table)


def kernels_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the kernels benchmark: medians with quartiles, and how many times faster the compiled kernel is."""
    heads = ("", "width", "stock", "fused", "faster", "folded", "new")
    table = _table("Stock sums and the compiled kernel: median ms (quartiles)", heads, ("",), no_wrap=True)

    def shown(figure: dict[str, Any]) -> str:
        low, high = figure["quartiles_s"]
        return f"{figure['median_s'] * 1e3:.0f} ({low * 1e3:.0f}-{high * 1e3:.0f})"

    for row in rows:
        ratios = (f"{row[name]:.2f}" for name in ("speedup", "speedup_fold", "speedup_fresh"))
        table.add_row(row["operation"], str(row["width"]), shown(row["stock"]), shown(row["fused"]), *ratios)
    Console().print(table)
    say("faster: stock / fused, which adds into the destination rows; folded: stock's added")
    say("to them too; new: both into a new tensor")
