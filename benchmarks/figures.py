"""What benchmarks of kernels have in common: figures of repeated measurements, and whose operators are stock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from sargnn.interop.dgl import is_installed

Row = dict[str, Any]


def stock_kernel() -> str:
    """Whose operators the compiled ones are measured against: DGL's, or PyTorch's where there is no DGL."""
    return "dgl" if is_installed() else "reference"


def figure(seconds: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles of repeated measurements."""
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else list(seconds) * 3
    return {"median_s": median(seconds), "quartiles_s": [low, high]}


def write_plot(path: Path, labels: Sequence[str], series: dict[str, list[float]], *, title: str, y_label: str) -> None:
    """Grouped bars as a PNG.

    Args:
        labels: of the groups.
        series: name -> one value per group.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), dpi=110, layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = [group + (number - (len(series) - 1) / 2) * width for group in range(len(labels))]
        axes.bar(places, values, width, label=name)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylabel(y_label)
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
