"""``sargnn reproduce`` and ``sargnn race``: a study's runs, then its pictures and tables; with no name all that there are."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from sargnn.cli.command_line import CommandLine
from sargnn.cli.sweep import plan_sweep, run_points, show_sweep
from sargnn.errors import ConfigError, nearest
from sargnn.report.drawings import write_figure
from sargnn.report.race import read_ran, write_race
from sargnn.report.study import Cell, FigureSpec, RaceSpec, cells_of, place_of, read_spec
from sargnn.report.values import RunFigures, read_figures
from sargnn.tracking.progress import say
from sargnn.tracking.tables import show_table

_VERBS = {"figure": "reproduce", "race": "race"}
"""What a study is, and the folder of its files in the configuration -> the verb."""


def reproduce(line: CommandLine) -> int:
    """Run what is not finished of a paper's figure, draw it, print its table; the last line is the picture's path."""
    return _study(line, "figure")


def race(line: CommandLine) -> int:
    """Run what is not finished of a race, draw it, print its table; the last lines are the pictures' paths."""
    return _study(line, "race")


def _study(line: CommandLine, what: str) -> int:
    """From the runs that are finished. Exit code 1 where one is not, 130 after an interrupt."""
    verb = _VERBS[what]
    if not line.words:
        if line.overrides:
            raise ConfigError(f"No {what} is named.", given=" ".join(line.overrides), hint=f"sargnn {verb} lists all")
        names = sorted(line.folders.options(what), key=place_of)
        rows = [_listed(what, name, _read(line, what, name)) for name in names]
        show_table(list(rows[0]), [list(row.values()) for row in rows], words=(what, "shows", "needs"))
        if "minutes" in rows[0]:
            print("minutes: on two cores, with its own settings. sargnn reproduce FIGURE draws one.")
        return 0
    if len(line.words) > 1:
        raise ConfigError(f"One {what} at a time.", given=" ".join(line.words))
    (name,) = line.words
    study = _read(line, what, name)
    own = [f"tracking.experiment={name}"] if isinstance(study, FigureSpec) else []
    cells = cells_of(study, [*own, *line.overrides])
    points = list(dict.fromkeys(cell.point for cell in cells))
    if line.settings.get("launch") == "slurm":
        from sargnn.cli.slurm import write_sweep

        # The same command without ``launch`` draws what is finished.
        return write_sweep(points, line, [verb, *line.folders.arguments, name, *line.overrides, "launch=slurm"])
    if line.dry_run:
        return show_sweep(points, line.folders)
    say(f"{name}: {study.title}")
    if isinstance(study, FigureSpec):
        say(f"  {study.paper}; about {study.minutes:g} minutes on two cores with its own settings")
    else:
        say(f"  {len(study.series)} ways, {study.seeds} seeds each")
    plan = plan_sweep(points, line.folders)
    outcomes = dict(zip(points, run_points(plan, line.folders), strict=True))
    unfinished = [outcome for outcome in outcomes.values() if not outcome.is_done]
    for outcome in unfinished:
        say(f"{outcome.status}: {outcome.label}: {outcome.error or f'the {what} was interrupted'}")
    runs: dict[Cell, RunFigures] = {}
    for cell in cells:
        if (done := outcomes[cell.point]).is_done and done.summary is not None:
            runs[cell] = read_figures(done.run_dir, done.summary)
    interrupted = any(outcome.status in ("interrupted", "not run") for outcome in unfinished)
    drawn = None if interrupted else _draw(name, study, cells, runs, Path(str(line.settings[f"{what}s_dir"])).expanduser())
    if drawn is None:
        say(f"the same command again goes on: sargnn {verb} {name}")
        return 130 if interrupted else 1
    lines, paths = drawn
    print("\n".join(lines))
    say(f"compare them: sargnn compare {shlex.quote(str(plan.folder))}/*/{' seeds=true' * isinstance(study, RaceSpec)}")
    print("\n".join(map(str, paths)))
    return int(bool(unfinished))


def _listed(what: str, name: str, study: FigureSpec | RaceSpec) -> dict[str, str]:
    """A row of the list, by the heads of its columns."""
    if isinstance(study, FigureSpec):
        return {what: name, "minutes": f"{study.minutes:g}", "shows": study.shows, "needs": study.needs}
    return {what: name, "ways": str(len(study.series)), "shows": study.title, "needs": study.needs}


def _draw(
    name: str, study: FigureSpec | RaceSpec, cells: list[Cell], runs: Mapping[Cell, RunFigures], folder: Path
) -> tuple[list[str], list[Path]] | None:
    """What is printed, and the pictures; None where no run can be shown."""
    if isinstance(study, FigureSpec):
        return write_figure(name, study, cells, runs, folder) if runs else None
    evaluated = [ran for cell, run in runs.items() if (ran := read_ran(cell.series, cell.seed, run.rows)) is not None]
    by_way = {way: own for way in study.series if (own := [ran for ran in evaluated if ran.way == way])}
    return write_race(name, study, by_way, f"{os.cpu_count()} cores", folder / Path(name).stem) if by_way else None


def _read(line: CommandLine, what: str, name: str) -> FigureSpec | RaceSpec:
    """By its name, or a file of one's own. Raises ``ConfigError`` where there is none."""
    own = name.endswith((".yaml", ".yml")) and Path(name).is_file()
    path = Path(name) if own else line.folders.find(f"{what}/{name}")
    if path is None:
        allowed = nearest(name, sorted(line.folders.options(what), key=place_of))
        raise ConfigError(f"There is no such {what}.", given=name, allowed=allowed, hint=f"sargnn {_VERBS[what]} lists all")

    def find(other: str) -> Path | None:
        return line.folders.find(f"{what}/{other}")

    return read_spec(path, FigureSpec, find) if what == "figure" else read_spec(path, RaceSpec, find)
