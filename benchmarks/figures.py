"""What benchmarks of kernels have in common: figures of repeated measurements, and whose operators are stock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from sargnn.interop.dgl import is_installed
from sargnn.report.draw import save
from sargnn.report.drawings import draw_figure
from sargnn.report.study import Panel
from sargnn.report.values import PanelData, Shown

Row = dict[str, Any]


def stock_kernel() -> str:
    """Whose operators the compiled ones are measured against: DGL's, or PyTorch's where there is no DGL."""
    return "dgl" if is_installed() else "reference"


def figure(seconds: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles of repeated measurements."""
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else list(seconds) * 3
    return {"median_s": median(seconds), "quartiles_s": [low, high]}


def write_bars(
    path: Path, labels: Sequence[str], panels: dict[str, dict[str, list[float]]], *, title: str, x: str = ""
) -> None:
    """Grouped bars as a PNG.

    Args:
        labels: of the groups.
        panels: title -> series -> one value per group.
        x: what the labels are.
    """
    names = tuple(labels)
    drawn = []
    for name, series in panels.items():
        ours: dict[str, list[Shown]] = {key: list(values) for key, values in series.items()}
        drawn.append([PanelData(Panel(""), "", name, names, names, ours, {}, frozenset())])
    save(draw_figure("bars", drawn, title=title, x=x, caption="", width=8), path)
