"""What every benchmark says about itself: the machine, and a plot."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

from sargnn.errors import ConfigError
from sargnn.interop.dgl import is_installed
from sargnn.tracking.provenance import versions

Row = dict[str, Any]


def figure(seconds: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles of repeated measurements."""
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else list(seconds) * 3
    return {"median_s": median(seconds), "quartiles_s": [low, high]}


def machine() -> dict[str, Any]:
    """Cores, memory and versions: a figure means nothing without them."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
    }


def stock_kernel() -> str:
    """Whose operators the compiled ones are measured against: DGL's, or PyTorch's where there is no DGL."""
    return "dgl" if is_installed() else "reference"


def open_folder(folder: Path, names: Sequence[str]) -> None:
    """Make it and its files, before anything long is begun. Raises ``ConfigError`` where they cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).open("a").close()
    except OSError as error:
        raise ConfigError(
            f"The folder cannot be written: {error.strerror}.", given=str(folder), hint="choose another bench_dir"
        ) from error


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
