"""What a person sees: live progress, the partition's figures, and the table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from sargnn import steps
from sargnn.data.schema import Schema
from sargnn.tracking.memory import human_bytes


class EpochProgress:
    """A progress bar on a terminal; a plain line per epoch where stderr is none. Use as a context manager."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.console = Console(stderr=True, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> EpochProgress:
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("training"), BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(compact=True), console=self.console,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("training", total=self.epochs, figures="starting workers")
        return self

    def update(self, row: dict[str, Any]) -> None:
        """Show one epoch."""
        figures = f"loss {row['loss']:.4f}"
        if row.get("val_acc") is not None:
            figures += f"  val {row['val_acc']:.4f}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=row["epoch"] + 1, figures=figures)
        else:
            self.console.print(
                f"epoch {row['epoch'] + 1}/{self.epochs}  {figures}  {row['epoch_time_s']:.3f} s", highlight=False
            )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()


class Steps:
    """Shows what a preparation is doing, a line on a terminal; nothing elsewhere. Use as a context manager."""

    def __enter__(self) -> Steps:
        self._console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn(),
            console=self._console, transient=True, disable=not self._console.is_terminal,
        )  # fmt: skip
        self._progress.start()
        self._task = self._progress.add_task("starting", total=None)
        steps.install(self._show)
        return self

    def _show(self, text: str, done: int | None, total: int | None) -> None:
        self._progress.update(self._task, description=text, completed=done or 0, total=total)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        steps.install(None)
        self._progress.stop()


def say(text: str) -> None:
    """One line for the person, on stderr."""
    Console(stderr=True, soft_wrap=True).print(text, highlight=False, markup=False)


def graph_lines(num_edges: int, schema: Schema, feature_widths: Sequence[int], num_classes: int) -> list[str]:
    """A graph's size, in one line; of a typed graph with its types and relations."""
    total = f"{schema.num_nodes} nodes, {num_edges} directed edges, "
    if not schema.typed:
        return [f"{total}{feature_widths[0]} features, {num_classes} classes"]
    lines = [f"{total}{len(schema.relations)} relations, {num_classes} classes"]
    for node_type, name in enumerate(schema.node_types):
        width = feature_widths[node_type]
        lines.append(f"  {name}: {schema.count(node_type)} nodes, {f'{width} features' if width else 'no features'}")
    return lines


def partition_lines(stats: dict[str, Any]) -> list[str]:
    """The partition's quality in a few lines."""
    halo = stats["halo_rows"]
    lines = [
        f"  edge cut {stats['edge_cut']:.3f} ({stats['cut_edges']} edges)",
        f"  halo rows {min(halo)} to {max(halo)} a worker, {stats['volume_rows']} travel in one exchange",
        f"  balance (largest / mean): nodes {stats['node_balance']:.3f}, edges {stats['edge_balance']:.3f}",
    ]
    if len(stats["type_balance"]) > 1:
        lines.append(f"  of each node type: {', '.join(f'{one:.3f}' for one in stats['type_balance'])}")
    return lines


def result_table(summary: dict[str, Any]) -> None:
    """Print the table at the end of a run to stdout."""

    def accuracy(name: str) -> str:
        return "-" if summary[name] is None else f"{summary[name]:.4f}"

    peaks: Sequence[int] = summary["peak_train_bytes"]
    smoothed = []
    if summary.get("test_acc_smoothed") is not None:
        smoothed = [("test accuracy after Correct & Smooth", accuracy("test_acc_smoothed"))]
    rows = [
        ("test accuracy at best validation", accuracy("test_acc_at_best_val")),
        ("best validation accuracy", accuracy("best_val_acc")),
        *smoothed,
        ("median epoch time", f"{summary['epoch_time_s']:.3f} s"),
        ("of that waiting for peers", f"{summary['comm_wait_time_s']:.3f} s"),
        ("bytes exchanged per epoch", human_bytes(summary["comm_bytes_per_epoch"])),
        ("peak training memory per worker", f"{human_bytes(min(peaks))} to {human_bytes(max(peaks))}"),
    ]
    table = Table(title=f"{summary['model']} on {summary['dataset']}, mode {summary['mode']}, world {summary['world']}")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table)


def profile_table(profile_s: dict[str, list[float]]) -> None:
    """Print where an epoch's time went: the mean and the slowest rank, by category."""
    table = Table(title="seconds per epoch, first epoch left out")
    for name in ("what", "mean rank", "slowest rank", "share"):
        table.add_column(name, justify="left" if name == "what" else "right")
    means = {name: sum(seconds) / len(seconds) for name, seconds in profile_s.items()}
    total = sum(means.values()) or 1.0
    for name, seconds in profile_s.items():
        table.add_row(name, f"{means[name]:.3f}", f"{max(seconds):.3f}", f"{means[name] / total:.0%}")
    table.add_row("all", f"{total:.3f}", "", "100%")
    Console().print(table)


def epoch_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print an epoch's parts, the last row for all of them."""
    table = Table(title="an epoch, mean over the workers, first epoch left out")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    for number, row in enumerate(rows, start=1):
        table.add_row(*row, end_section=number == len(rows) - 1)
    Console().print(table)


def info_table(rows: Sequence[tuple[str, str]]) -> None:
    """Print what is here, two columns."""
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table, highlight=False)


def accuracy_table(found: dict[str, dict[str, float | None]], counts: dict[str, int]) -> None:
    """Print accuracies: a row per split, a column per kind of prediction."""
    table = Table(title="accuracy, by OGB's evaluator")
    for name in ("split", "nodes", *found):
        table.add_column(name, justify="left" if name == "split" else "right")
    for split, nodes in counts.items():
        shown = ("-" if (value := each[split]) is None else f"{value:.4f}" for each in found.values())
        table.add_row(split, str(nodes), *shown)
    Console().print(table)


def sweep_table(outcomes: Sequence[Any]) -> None:
    """Print a sweep's points: what each came to."""
    table = Table(title="the sweep")
    for name in ("point", "status", "test acc", "epoch s", "peak", "folder"):
        table.add_column(name, justify="left" if name in ("point", "status", "folder") else "right", overflow="fold")
    for outcome in outcomes:
        figures = outcome.summary if outcome.status in ("finished", "skipped") else {}
        table.add_row(outcome.label, outcome.status, *_figures(figures), outcome.run_dir.name)
    Console().print(table)


def _figures(summary: dict[str, Any]) -> list[str]:
    if not summary:
        return ["-"] * 3
    accuracy = summary["test_acc_at_best_val"]
    return [
        "-" if accuracy is None else f"{accuracy:.4f}",
        f"{summary['epoch_time_s']:.3f}",
        human_bytes(max(summary["peak_train_bytes"])),
    ]


def compare_table(runs: Sequence[dict[str, Any]]) -> None:
    """Print runs side by side; the best of each column is marked with *."""
    table = Table(title="runs; * is the best of its column")
    table.add_column("run", overflow="fold")
    table.add_column("world", justify="right", no_wrap=True)
    columns: list[tuple[str, str, Any, Any, Any]] = [
        ("test acc", "test_acc_at_best_val", lambda v: v, max, lambda v: f"{v:.4f}"),
        ("epoch s", "epoch_time_s", lambda v: v, min, lambda v: f"{v:.3f}"),
        ("wait s", "comm_wait_time_s", lambda v: v, min, lambda v: f"{v:.3f}"),
        ("sent/epoch", "comm_bytes_per_epoch", lambda v: v, min, human_bytes),
        ("peak/worker", "peak_train_bytes", max, min, human_bytes),
    ]
    if any(run.get("test_acc_smoothed") is not None for run in runs):
        columns.insert(1, ("smoothed", "test_acc_smoothed", lambda v: v, max, lambda v: f"{v:.4f}"))
    for title, *_ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    values = [[None if run.get(key) is None else read(run[key]) for run in runs] for _, key, read, _, _ in columns]
    best = [
        pick([v for v in column if v is not None], default=None)
        for column, (_, _, _, pick, _) in zip(values, columns, strict=True)
    ]
    for number, run in enumerate(runs):
        cells = []
        for column, top, (_, _, _, _, show) in zip(values, best, columns, strict=True):
            value = column[number]
            cells.append("-" if value is None else show(value) + ("*" if value == top and len(runs) > 1 else " "))
        name = run["name"] if run["mode"] in run["name"] else f"{run['name']} ({run['mode']})"
        table.add_row(name, str(run["world"]), *cells)
    Console().print(table)


def attention_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the attention benchmark: medians, how many times faster the compiled kernel is, and peak memory."""
    table = Table(title="Attention, DGL's operators and the compiled kernel: median ms")
    for name in ("heads", "pass", "DGL", "fused", "faster"):
        table.add_column(name, justify="left" if name == "pass" else "right", no_wrap=True)
    for row in rows:
        for number, part in enumerate(("forward", "backward", "total")):
            shown = (f"{row[side][part]['median_s'] * 1e3:.0f}" for side in ("dgl", "fused"))
            table.add_row(str(row["heads"]) if number == 0 else "", part, *shown, f"{row['speedup'][part]:.1f}")
        peaks = [row[side]["peak_bytes"] for side in ("dgl", "fused")]
        table.add_row("", "peak memory", *(human_bytes(peak) for peak in peaks), f"{peaks[1] / peaks[0]:.2f} of it")
        table.add_section()
    Console().print(table)
    say("from rows and scores to the output and all gradients; peak above these and the")
    say("graph, the output let go after forward")


def kernels_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the kernels benchmark: medians with quartiles, and how many times faster the compiled kernel is."""
    table = Table(title="DGL's SpMM and the compiled kernel: median ms (quartiles)")
    for name in ("", "width", "DGL", "fused", "faster", "folded", "new"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)

    def shown(figure: dict[str, Any]) -> str:
        low, high = figure["quartiles_s"]
        return f"{figure['median_s'] * 1e3:.0f} ({low * 1e3:.0f}-{high * 1e3:.0f})"

    for row in rows:
        ratios = (f"{row[name]:.2f}" for name in ("speedup", "speedup_fold", "speedup_fresh"))
        table.add_row(row["operation"], str(row["width"]), shown(row["dgl"]), shown(row["fused"]), *ratios)
    Console().print(table)
    say("faster: DGL / fused, which adds into the destination rows; folded: DGL's result added")
    say("to them too; new: both into a new tensor")
