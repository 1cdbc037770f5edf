"""What a person sees while a command runs: its steps, its epochs, single lines. All on stderr."""

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

from sargnn import steps
from sargnn.data.schema import Schema
from sargnn.tracking.scores import show_score


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
        if row.get("val_metric") is not None:
            name = "" if row["metric"] == "accuracy" else f" {row['metric']}"
            figures += f"  val{name} {show_score(row['val_metric'], row['metric'])}"
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


_OUTPUTS = {"classes": ("class", "classes"), "multilabel": ("label", "labels"), "regression": ("value", "values")}


def graph_lines(
    num_edges: int, schema: Schema, feature_widths: Sequence[int], num_classes: int, task: str = "classes"
) -> list[str]:  # fmt: skip
    """A graph's size, in one line; of a typed graph with its types and relations."""
    outputs = f"{num_classes} {_OUTPUTS[task][num_classes != 1]}"
    total = f"{schema.num_nodes} nodes, {num_edges} directed edges, "
    if not schema.typed:
        return [f"{total}{feature_widths[0]} features, {outputs}"]
    lines = [f"{total}{len(schema.relations)} relations, {outputs}"]
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
