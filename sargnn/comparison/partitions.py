"""Partitioners side by side: what travels, as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sargnn.comparison.charts import Chart, Picture, Series
from sargnn.data.dataset import Dataset
from sargnn.partition.blocks import in_edge_blocks
from sargnn.partition.trial import Trial
from sargnn.shards.cover import least_cover
from sargnn.tracking.memory import human_bytes

MOST_CUT_EDGES = 50_000_000
"""Beyond so many the fewest messages are not found: that takes a maximum flow for each pair of parts."""


@dataclass(frozen=True)
class Compared:
    """Attributes: trial: how it went. messages: rows and sums that travel in one exchange where each cut edge is aggregated at
    the end that is cheaper (``comm.aggregate=least``); None: too many cut edges to say."""

    trial: Trial
    messages: int | None


def count_messages(dataset: Dataset, part: np.ndarray, world: int) -> int | None:
    """The sizes of least covers of the cut edges between all pairs of parts, added up."""
    sources, destinations, found = [], [], 0
    for first, indptr, indices in in_edge_blocks(dataset, "listing cut edges"):
        destination = first + np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        crossing = part[indices] != part[destination]
        sources.append(np.asarray(indices[crossing], np.int64))
        destinations.append(destination[crossing])
        found += len(sources[-1])
        if found > MOST_CUT_EDGES:
            return None
    source, destination = np.concatenate(sources), np.concatenate(destinations)
    pair = part[destination].astype(np.int64) * world + part[source]
    order = np.argsort(pair, kind="stable")
    bounds = np.searchsorted(pair[order], np.arange(world * world + 1))
    total = 0
    for a, b in zip(bounds, bounds[1:], strict=False):
        if a == b:
            continue
        some = order[a:b]
        ids, rows = np.unique(source[some], return_inverse=True)
        chosen = least_cover(rows.astype(np.int32), destination[some], len(ids), 1.0)
        total += int(chosen.sum()) + len(np.unique(destination[some][~chosen[rows]]))
    return total


def rows_of(compared: Sequence[Compared], width: int) -> list[list[str]]:
    """The table's cells. ``width``: numbers in a row that travels."""
    rows = []
    for one in compared:
        q, t = one.trial.quality, one.trial
        least = "-" if one.messages is None else f"{one.messages}"
        sent = q.halo_rows if one.messages is None else one.messages
        rows.append(
            [t.name, f"{t.seconds:.1f}", human_bytes(t.peak_bytes), f"{q.edge_cut:.3f}", f"{q.halo_rows}", least,
             human_bytes(2 * 4 * width * sent), f"{q.node_balance:.2f}", f"{q.work_balance:.2f}"]
        )  # fmt: skip
    return rows


TITLES = ("partitioner", "s", "peak", "cut", "halo rows", "least", "a layer", "nodes", "work")
"""Of ``rows_of``; ``least``: messages; a layer: bytes that it sends in a step; the last two: largest part / mean."""


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
