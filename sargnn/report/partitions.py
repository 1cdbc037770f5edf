"""Side by side before anything is trained: partitioners, by what travels, as a table and a picture; plans, by memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, writing
from sargnn.graph.dataset import Dataset
from sargnn.memory.plan_run import WorldPlan
from sargnn.memory.plan_traffic import CutEdges, traffic_of
from sargnn.memory.plan_worker import TERMS
from sargnn.partition.trial import Trial
from sargnn.report.charts import Chart, Picture, Series
from sargnn.tracking.memory import human_bytes


@dataclass(frozen=True)
class Compared:
    """A partitioner on a graph.

    Attributes:
        messages: rows and sums that travel in one exchange where each cut edge is aggregated at the end that is cheaper
            (``comm.aggregate=least``); None: too many cut edges to say.
        epoch_bytes: what a model's full batch sends; None: not known.
    """

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
    rows = []
    for partitioner in compared:
        q, t = partitioner.trial.quality, partitioner.trial
        least = "-" if partitioner.messages is None else f"{partitioner.messages}"
        sent = "-" if partitioner.epoch_bytes is None else human_bytes(partitioner.epoch_bytes)
        cells = [t.name, f"{t.seconds:.1f}", human_bytes(t.peak_bytes), f"{q.edge_cut:.3f}", f"{q.halo_rows}", least, sent]
        rows.append([*cells, f"{q.node_balance:.2f}", f"{q.work_balance:.2f}"])
    return rows


TITLES = ("partitioner", "s", "peak", "cut", "halo rows", "least", "epoch", "nodes", "work")
"""Of ``rows_of``; ``least``: messages; epoch: bytes that are sent in one; the last two: largest part / mean."""


def picture(compared: Sequence[Compared]) -> Picture:
    names = [partitioner.trial.name for partitioner in compared]

    def bars(title: str, values: Sequence[float]) -> Chart:
        series = [Series.over_seeds(n, [k], [[v]]) for k, (n, v) in enumerate(zip(names, values, strict=True))]
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
    from sargnn.report.draw import write_pngs

    return write_pngs([picture(compared)], folder)[0]


def draw_plans(plans: Sequence[WorldPlan], path: Path, *, title: str, limit: int | None = None) -> None:
    """One bar for each plan, by mode and number of workers: what the largest worker's memory is made of.

    Args:
        path: a PNG or SVG file.
        limit: bytes of a worker, drawn as a line.

    Raises ``ConfigError``: the file cannot be written.
    """
    from sargnn.report.draw import draw, save

    rows = range(len(plans))
    series = [Series.over_seeds(term, rows, [[plan.largest.terms[term] / 1e9] for plan in plans]) for term in TERMS]
    what, line = "the largest worker's memory at its peak, GB", None
    if limit is not None:
        what, line = f"{what}; dashed: the budget", limit / 1e9
    names = [f"{plan.mode}, {plan.world}" for plan in plans]
    with writing("The picture", path):
        save(draw(Picture("plans", title, [Chart("stack", f"{title}\n{what}", "", series, names, line)])), path, 130)
