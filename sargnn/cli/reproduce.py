"""``sargnn reproduce``: a paper's figure from runs of one's own; with no name a list of what there is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from sargnn.cli.command_line import CommandLine
from sargnn.cli.conf import ConfFolders
from sargnn.cli.sweep import Outcome, Point, plan_sweep, run_points, show_sweep
from sargnn.errors import ConfigError, nearest
from sargnn.report.drawings import caption_of, table_of, write_files
from sargnn.report.study import Cell, FigureSpec, cells_of, place_of, read_spec
from sargnn.report.values import Place, RunFigures, gather, read_figures
from sargnn.tracking.progress import say
from sargnn.tracking.tables import show_table

GROUP = "figure"


def main(line: CommandLine) -> int:
    """Run what is not finished, draw, print the table; the last line is the picture's path."""
    if not line.words:
        if line.overrides:
            raise ConfigError("No figure is named.", given=" ".join(line.overrides), hint="sargnn reproduce lists all")
        specs = {name: _spec(name, line.folders) for name in sorted(line.folders.options(GROUP), key=place_of)}
        rows = [(name, f"{spec.minutes:g}", spec.shows, spec.needs) for name, spec in specs.items()]
        show_table(("figure", "minutes", "shows", "needs"), rows, words=("figure", "shows", "needs"))
        print("minutes: on two cores, with its own settings. sargnn reproduce FIGURE draws one.")
        return 0
    if len(line.words) > 1:
        raise ConfigError("One figure at a time.", given=" ".join(line.words))
    (name,) = line.words
    spec = _spec(name, line.folders)
    cells = cells_of(spec, [f"tracking.experiment={name}", *line.overrides])
    points = list(dict.fromkeys(cell.point for cell in cells))
    if line.settings["launch"] == "slurm":
        from sargnn.cli.slurm import write_sweep

        # The same command without ``launch`` draws what is finished.
        return write_sweep(points, line, ["reproduce", *line.folders.arguments, name, *line.overrides, "launch=slurm"])
    if line.dry_run:
        return show_sweep(points, line.folders)
    say(f"{name}: {spec.title}")
    say(f"  {spec.paper}; about {spec.minutes:g} minutes on two cores with its own settings")
    outcomes = run_points(plan_sweep(points, line.folders), line.folders)
    return _draw(name, spec, cells, dict(zip(points, outcomes, strict=True)), Path(str(line.settings["figures_dir"])))


def _spec(name: str, folders: ConfFolders) -> FigureSpec:
    path = folders.find(f"{GROUP}/{name}")
    if path is None:
        names = sorted(folders.options(GROUP), key=place_of)  # in the order of papers and of numbers in them
        raise ConfigError(
            "There is no such figure.", given=name, allowed=nearest(name, names), hint="sargnn reproduce lists all"
        )
    return read_spec(path)


def _draw(name: str, spec: FigureSpec, cells: Sequence[Cell], by_point: dict[Point, Outcome], folder: Path) -> int:
    """From the runs that are finished. Exit code 1 where one is not, 130 after an interrupt."""
    runs: dict[Place, RunFigures] = {}
    unfinished: list[Outcome] = []
    for cell in cells:
        outcome = by_point[cell.point]
        if outcome.is_done and outcome.summary is not None:
            runs[cell.group, cell.series, cell.x] = read_figures(outcome.run_dir, outcome.summary)
        elif outcome not in unfinished:
            unfinished.append(outcome)
    for outcome in unfinished:
        say(f"{outcome.status}: {outcome.label}: {outcome.error or 'the figure was interrupted'}")
    interrupted = any(incomplete.status in ("interrupted", "not run") for incomplete in unfinished)
    if interrupted or not runs:
        say(f"the same command again goes on: sargnn reproduce {name}")
        return 130 if interrupted else 1
    panels = gather(spec, cells, runs)
    caption = caption_of(spec, list(runs.values()))
    path = write_files(name, spec, panels, caption, folder)
    print("\n".join(table_of(panels, spec.x.name)))
    print(f"\n{caption}\n{spec.differs}")
    say(f"compare them: sargnn compare {shlex.quote(str(next(iter(by_point.values())).run_dir.parent))}/*/")
    print(path)
    return int(bool(unfinished))
