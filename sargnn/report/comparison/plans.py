"""Plans side by side: what the largest worker's memory is made of, as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sargnn.errors import ConfigError
from sargnn.memory.plan_run import WorldPlan
from sargnn.memory.plan_worker import TERMS
from sargnn.report.comparison.draw import styled

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
        path: a PNG or SVG file. limit: bytes of a worker, drawn as a line.

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
