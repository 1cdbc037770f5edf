"""A figure's files: pictures four and eight inches wide, a scalable one, and the numbers as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.report.figures.drawings import draw_figure, write
from sargnn.report.figures.spec import Cell, FigureSpec, Panel, labels_of_x
from sargnn.report.figures.values import VALUES, RunFigures, Shown

WIDTHS = (8, 4)
"""Inches: a page, and a column of one."""


def caption_of(spec: FigureSpec, runs: Sequence[RunFigures]) -> str:
    """What the pictures are of: graphs with their scales, workers, machine; and the paper's."""
    graphs = dict.fromkeys(_graph(run.config) for run in runs)
    worlds = sorted({run.config.world for run in runs})
    summaries = [run.summary for run in runs]
    workers = ", ".join(map(str, worlds))
    machines = dict.fromkeys(
        f"{summary.cores} cores, {summary.cpu}"
        for summary in summaries
        if summary.cores is not None and summary.cpu is not None
    )
    text = f"{'; '.join(graphs)}. {workers} worker{'s' * (worlds != [1])}. {'; '.join(machines)}."
    about = list(dict.fromkeys(panel.published.about for panel in spec.panels if panel.published.about))
    return " ".join([text, *(f"The paper: {note.rstrip('.')}." for note in about)])


def _graph(config: RunConfig) -> str:
    scale = getattr(config.dataset, "scale", None)
    return config.dataset.name if scale is None else f"{config.dataset.name} at scale {scale:g}"


def table_of(panels: Sequence[Sequence[PanelData]], x: str) -> list[str]:
    """All numbers, ours and the paper's, as lines of Markdown. Of curves their last values, of parts their sums."""
    flat = [[of_groups[number] for of_groups in panels] for number in range(len(panels[0]))]
    grouped, several = len(flat) > 1, len(flat[0][0].ours) > 1
    labels = any(label for by_panel in flat for label in by_panel[0].x)
    heads = [*([""] if grouped else []), *([x] if labels else []), *(["run"] if several else [])]
    for row in panels:
        heads.append(row[0].title)
        if any(data.paper for data in row):
            unit = row[0].panel.published.unit
            heads.append(f"the paper{f', {unit}' if unit else ''}")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for of_group in flat:
        for place, label in enumerate(of_group[0].x):
            for series in of_group[0].ours:
                cells = [*([of_group[0].group] if grouped else []), *([_tick(of_group[0], place)] if labels else [])]
                cells += [series] if several else []
                for number, data in enumerate(of_group):
                    value = data.last(series)[place]
                    failed = (series, label) in data.failed
                    cells.append(
                        "failed" if failed else "" if value is None else f"{value:.{VALUES[data.panel.value].digits}g}"
                    )
                    if any(other.paper for other in panels[number]):
                        given = data.paper.get(series, [None] * len(data.x))[place]
                        cells.append("" if given is None else f"{given:g}")
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def _tick(data: PanelData, place: int) -> str:
    ours, paper = data.x[place], data.paper_x[place]
    return ours if ours == paper else f"{ours} ({paper})"


def write_files(name: str, spec: FigureSpec, panels: Sequence[Sequence[PanelData]], caption: str, folder: Path) -> Path:
    """``NAME-8in.png``, ``NAME-4in.png``, ``NAME.svg`` and ``NAME.md`` in the folder; the widest picture's path.

    Raises:
        ConfigError: they cannot be written.
    """
    paths = [folder / f"{name}-{width}in.png" for width in WIDTHS]
    lines = [f"# {name}: {spec.title}", "", f"{spec.shows} {spec.paper}.", "", f"![{spec.title}]({paths[0].name})", ""]
    lines += [*table_of(panels, spec.x.name), "", caption, "", spec.differs, ""]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, width in zip([*paths, folder / f"{name}.svg"], (*WIDTHS, WIDTHS[0]), strict=True):
            write(draw_figure(spec.kind, panels, title=spec.title, x=spec.x.name, caption=caption, width=width), path)
        (folder / f"{name}.md").write_text("\n".join(lines))
    except OSError as error:
        raise ConfigError(f"The figure cannot be written: {error.strerror}.", given=str(folder)) from error
    return paths[0]


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
