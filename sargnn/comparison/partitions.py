"""Partitioners side by side: what travels, as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sargnn.comparison.charts import Chart, Picture, Series
from sargnn.config import RunConfig
from sargnn.data.dataset import Dataset
from sargnn.partition.trial import Trial
from sargnn.planner.cut_edges import CutEdges, Messages
from sargnn.planner.wire import bytes_by_layer, shape_of
from sargnn.shards.cover import Share
from sargnn.shards.plan import RowCounts
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
    world, rows, shape = config.world, dataset.num_nodes, shape_of(dataset, config)
    cut = CutEdges.of(dataset, trial.part, world, int(config.add_self_loops))
    found = None if cut is None else cut.fewest()
    messages = None if found is None else found.rows + found.partials

    def serving(share: Share | None, labelled: bool) -> Messages:
        if share is None:
            return Messages(trial.quality.halo_rows)
        if cut is None:
            raise TooManyError
        return (cut.into_type(dataset, trial.part, shape.labelled) if labelled else cut).shared_by(share)

    counts = RowCounts(rows, rows, trial.quality.halo_rows)
    try:
        layers = bytes_by_layer(config, shape, counts, serving)
    except TooManyError:
        layers = None
    return Compared(trial, messages, None if layers is None else sum(layers))


class TooManyError(Exception):
    """There are more cut edges than are shared out here."""


def rows_of(compared: Sequence[Compared]) -> list[list[str]]:
    """The table's cells."""
    rows = []
    for one in compared:
        q, t = one.trial.quality, one.trial
        least = "-" if one.messages is None else f"{one.messages}"
        sent = "-" if one.epoch_bytes is None else human_bytes(one.epoch_bytes)
        rows.append(
            [t.name, f"{t.seconds:.1f}", human_bytes(t.peak_bytes), f"{q.edge_cut:.3f}", f"{q.halo_rows}", least,
             sent, f"{q.node_balance:.2f}", f"{q.work_balance:.2f}"]
        )  # fmt: skip
    return rows


TITLES = ("partitioner", "s", "peak", "cut", "halo rows", "least", "epoch", "nodes", "work")
"""Of ``rows_of``; ``least``: messages; epoch: bytes that are sent in one; the last two: largest part / mean."""


def picture(compared: Sequence[Compared]) -> Picture:
    """Bars of time, memory, cut and halo rows."""
    names = [one.trial.name for one in compared]

    def bars(title: str, values: Sequence[float]) -> Chart:
        series = [Series(n, [float(k)], [v], [0.0], [], [[v]]) for k, (n, v) in enumerate(zip(names, values, strict=True))]
        return Chart("bars", title, "", series, names)

    trials = [one.trial for one in compared]
    charts = [
        bars("cutting, s", [t.seconds for t in trials]),
        bars("peak memory, MB", [t.peak_bytes / 1e6 for t in trials]),
        bars("edge cut", [t.quality.edge_cut for t in trials]),
        bars("halo rows, thousands", [t.quality.halo_rows / 1e3 for t in trials]),
    ]
    return Picture("partitioners", "partitioners side by side", charts)


def write_picture(compared: Sequence[Compared], folder: Path) -> Path:
    """``partitioners.png``. Raises ``OSError``."""
    from sargnn.comparison.draw import write_pngs

    folder.mkdir(parents=True, exist_ok=True)
    return write_pngs([picture(compared)], folder)[0]
