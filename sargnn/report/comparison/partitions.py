"""Partitioners side by side: what travels, as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.memory.plan_run import WorldPlan
from sargnn.memory.plan_traffic import CutEdges, traffic_of
from sargnn.memory.plan_worker import TERMS
from sargnn.partition.trial import Trial
from sargnn.report.comparison.charts import Chart, Picture, Series
from sargnn.report.comparison.draw import styled
from sargnn.tracking.memory import human_bytes


@dataclass(frozen=True)
class Compared:
    """Attributes: trial: how it went. messages: rows and sums that travel in one exchange where each cut edge is aggregated at
    the end that is cheaper (``comm.aggregate=least``); None: too many cut edges to say. epoch_bytes: what a model's full batch
    sends; None: not known."""

    trial: Trial
    messages: int | None
    epoch_bytes: int | None


def compared(trial: Trial, dataset: Dataset, config: RunConfig) -> Compared:
    """With what its cut edges send for the configured model."""
    cut = CutEdges.of(dataset, trial.part, config.world, int(config.add_self_loops))
    fewest = None if cut is None else cut.fewest()
    try:
        traffic = traffic_of(config, dataset, trial.part, trial.quality.halo_rows, cut)
    except ConfigError:  # the model cannot work on such a graph; partitioners can be compared
        traffic = None
    return Compared(
        trial,
        None if fewest is None else fewest.rows + fewest.partials,
        None if traffic is None else sum(layer.sent for layer in traffic),
    )


def rows_of(compared: Sequence[Compared]) -> list[list[str]]:
    """The table's cells."""
    rows = []
    for partitioner in compared:
        q, t = partitioner.trial.quality, partitioner.trial
        least = "-" if partitioner.messages is None else f"{partitioner.messages}"
        sent = "-" if partitioner.epoch_bytes is None else human_bytes(partitioner.epoch_bytes)
        rows.append(
            [
                t.name,
                f"{t.seconds:.1f}",
                human_bytes(t.peak_bytes),
                f"{q.edge_cut:.3f}",
                f"{q.halo_rows}",
                least,
                sent,
                f"{q.node_balance:.2f}",
                f"{q.work_balance:.2f}",
            ]
        )
    return rows


TITLES = ("partitioner", "s", "peak", "cut", "halo rows", "least", "epoch", "nodes", "work")
"""Of ``rows_of``; ``least``: messages; epoch: bytes that are sent in one; the last two: largest part / mean."""


def picture(compared: Sequence[Compared]) -> Picture:
    """Bars of time, memory, cut and halo rows."""
    names = [partitioner.trial.name for partitioner in compared]

    def bars(title: str, values: Sequence[float]) -> Chart:
        series = [Series(n, [float(k)], [v], [0.0], [], [[v]]) for k, (n, v) in enumerate(zip(names, values, strict=True))]
        return Chart("bars", title, "", series, names)

    trials = [partitioner.trial for partitioner in compared]
    charts = [
        bars("cutting, s", [t.seconds for t in trials]),
        bars("peak memory, MB", [t.peak_bytes / 1e6 for t in trials]),
        bars("edge cut", [t.quality.edge_cut for t in trials]),
        bars("halo rows, thousands", [t.quality.halo_rows / 1e3 for t in trials]),
    ]
    return Picture("partitioners", "partitioners side by side", charts)


def write_picture(compared: Sequence[Compared], folder: Path) -> Path:
    """``partitioners.png``. Raises ``OSError``."""
    from sargnn.report.comparison.draw import write_pngs

    folder.mkdir(parents=True, exist_ok=True)
    return write_pngs([picture(compared)], folder)[0]


_COLOURS = {
    "runtime": "#BBBBBB",
    "graph": "#0072B2",
    "features": "#56B4E9",
    "parameters": "#E69F00",
    "kept for backward": "#D55E00",
    "working set": "#009E73",
    "communication": "#CC79A7",
    "optimizer": "#F0E442",
}
"""By Okabe and Ito, which every eye tells apart; in grey they differ by their hatches."""
_HATCHES = ("", "//", "", "xx", "", "\\\\", "..", "--")
_BAR, _WIDTH, _GIGA = 0.27, 7.2, 1e9


def draw_plans(plans: Sequence[WorldPlan], path: Path, *, title: str, limit: int | None = None) -> None:
    """Draw one bar for each plan, by mode and number of workers.

    Args:
        path: a PNG or SVG file.
        limit: bytes of a worker, drawn as a line.

    Raises:
        ConfigError: the file cannot be written.
    """
    with styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(_WIDTH, 1.3 + _BAR * len(plans)), layout="constrained")
        axes = figure.subplots()
        heights = list(range(len(plans)))
        left = [0.0] * len(plans)
        for term, hatch in zip(TERMS, _HATCHES, strict=True):
            values = [plan.largest.terms[term] / _GIGA for plan in plans]
            axes.barh(
                heights,
                values,
                left=left,
                height=0.74,
                color=_COLOURS[term],
                hatch=hatch,
                edgecolor="white",
                linewidth=0.4,
                label=term,
            )
            left = [before + value for before, value in zip(left, values, strict=True)]
        for height, total in zip(heights, left, strict=True):
            axes.annotate(f" {total:.3g}", (total, height), va="center")
        axes.set_yticks(heights, [f"{plan.mode}, {plan.world}" for plan in plans])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.1 * max([*left, (limit or 0) / _GIGA]))
        axes.set_xlabel("the largest worker's memory at its peak, GB")
        axes.set_title(title)
        if limit is not None:
            axes.axvline(limit / _GIGA, color="black", linestyle="--", linewidth=1)
            axes.annotate(
                "budget", (limit / _GIGA, 1), xycoords=("data", "axes fraction"), xytext=(3, -9), textcoords="offset points"
            )
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
        try:
            figure.savefig(path, dpi=130)
        except OSError as error:
            raise ConfigError(f"The picture cannot be written: {error.strerror}.", given=str(path)) from error
