"""A figure's files: pictures four and eight inches wide, a scalable one, and the numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.report.figures.drawings import draw_figure, write
from sargnn.report.figures.spec import FigureSpec
from sargnn.report.figures.values import VALUES, PanelData, RunFigures

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
