"""Where labels go beside the ends of curves, and which curves lie on each other."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from sargnn.report.comparison.charts import Series

_SAME = 0.002
_NAMED, _WIDTH = 6, 34


def spread_out(wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Centres as near to the wanted ones as they can be without overlapping, in the same order, from ``low`` to ``high``.

    The sum of squared shifts is smallest (pool adjacent violators). Where there is no room for all, they go beyond ``high``.
    """
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    starts, below = [], 0.0  # of each label's lower edge, if all below it had no height
    pools: list[tuple[float, int]] = []
    for number in order:
        starts.append(below)
        pools.append((wanted[number] - heights[number] / 2 - below, 1))
        below += heights[number]
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (previous, few), (two, more) = pools[-2:]
            pools[-2:] = [((previous * few + two * more) / (few + more), few + more)]
    edges = [max(low, min(edge, high - below)) for edge, count in pools for _ in range(count)]
    placed = [0.0] * len(wanted)
    for number, edge, start in zip(order, edges, starts, strict=True):
        placed[number] = edge + start + heights[number] / 2
    return placed


def coinciding(series: Sequence[Series]) -> list[list[Series]]:
    """Series that no eye could tell apart, together: the same xs, and ys within two thousandths of all that is drawn."""
    ys = [y for curve in series for y in curve.ys]
    near = _SAME * (max(ys) - min(ys)) if ys else 0.0
    xs = [x for curve in series for x in curve.xs]
    near_x = _SAME * (max(xs) - min(xs)) if xs else 0.0
    together: list[list[Series]] = []
    for curve in series:
        for others in together:
            first = others[0]
            if len(first.xs) == len(curve.xs) and all(
                abs(a - b) <= near_x and abs(c - d) <= near
                for a, b, c, d in zip(first.xs, curve.xs, first.ys, curve.ys, strict=True)
            ):
                others.append(curve)
                break
        else:
            together.append([curve])
    return together


def label_of(series: Sequence[Series]) -> str:
    """The names of series that coincide, in lines of a few words."""
    names = [curve.name for curve in series]
    text = " = ".join(names[:_NAMED]) + (f" = {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return wrapped(text)


def wrapped(text: str, width: int = _WIDTH) -> str:
    """In lines; a word that is longer than a line is cut."""
    return "\n".join(textwrap.wrap(text, width, break_on_hyphens=False)) or text
