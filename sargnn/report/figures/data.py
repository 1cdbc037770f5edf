"""The values of a figure's runs beside the paper's, in the places where they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sargnn.report.figures.spec import Cell, FigureSpec, Panel, labels_of_x
from sargnn.report.figures.values import VALUES, RunFigures, Shown

Place = tuple[str, str, str]
"""Group, series, x."""


@dataclass(frozen=True)
class PanelData:
    """One panel of one group.

    Attributes:
        title: of its axis, with its unit. x: labels, in order; paper_x: the paper's in their places.
        ours, paper: by series, one for each x; None: there is none. unit: of the paper's where it is another.
        failed: series and x whose run is not finished.
    """

    panel: Panel
    group: str
    title: str
    x: tuple[str, ...]
    paper_x: tuple[str, ...]
    ours: dict[str, list[Shown]]
    paper: dict[str, list[float | None]]
    failed: frozenset[tuple[str, str]]

    @property
    def own_axis(self) -> bool:
        """Whether the paper's numbers have an axis of their own: they are of another graph, not relative."""
        return self.panel.relative_to is None and self.panel.published.unit is not None

    def numbers(self, series: str) -> list[float | None]:
        """A series' numbers; None for what is no number."""
        return [value if isinstance(value, float | int) else None for value in self.ours[series]]

    def last(self, series: str) -> list[float | None]:
        """The same, of curves their last, of parts their sum."""
        return [_last(value) for value in self.ours[series]]


def _last(value: Shown) -> float | None:
    if isinstance(value, dict):
        return sum(value.values())
    if isinstance(value, tuple):
        return value[1][-1] if value[1] else None
    return value


def gather(spec: FigureSpec, cells: Sequence[Cell], runs: Mapping[Place, RunFigures]) -> list[list[PanelData]]:
    """By panel, by group.

    Args:
        runs: of the cells, those that are finished.
    """
    failed = {(cell.group, cell.series, cell.x) for cell in cells} - set(runs)
    panels = []
    for panel in spec.panels:
        of_groups = []
        for group in spec.groups:
            of, x = VALUES[panel.value].of, labels_of_x(cells, group)
            paper_x = spec.x.paper[-len(x) :] or x  # fewer workers than there are shares: the largest ones have theirs
            ours: dict[str, list[Shown]] = {
                series: [of(runs[place]) if (place := (group, series, label)) in runs else None for label in x]
                for series in spec.series
            }
            paper = {series: [*numbers][-len(x) :] for series, numbers in panel.published.values.get(group, {}).items()}
            title = panel.title or VALUES[panel.value].title
            if panel.relative_to is not None:
                ours = _relative(ours, ours[panel.relative_to])
                title = f"{panel.title or panel.value.replace('_', ' ')}, {panel.relative_to} = 1"
            missing = frozenset((series, label) for of_group, series, label in failed if of_group == group)
            of_groups.append(PanelData(panel, group, title, tuple(x), tuple(paper_x), ours, paper, missing))
        panels.append(of_groups)
    return panels


def _relative(ours: dict[str, list[Shown]], base: Sequence[Shown]) -> dict[str, list[Shown]]:
    """Numbers divided by those of one series at the same x."""

    def divided(value: Shown, by: Shown) -> Shown:
        return value / by if isinstance(value, float | int) and isinstance(by, float | int) and by else None

    return {series: [divided(value, by) for value, by in zip(values, base, strict=True)] for series, values in ours.items()}
