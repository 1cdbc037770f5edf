"""``sargnn race``: ways to train beside one another, by time and steps to the same validation metric."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from sargnn.cli.command_line import CommandLine
from sargnn.cli.sweep import plan_sweep, run_points, show_sweep
from sargnn.errors import ConfigError, nearest
from sargnn.report.race import Ran, points_of, read_race, read_ran, write_race
from sargnn.tracking.progress import say
from sargnn.tracking.tables import show_table

GROUP = "race"


def main(line: CommandLine) -> int:
    """Run what is not finished, draw, print the table; the last lines are the pictures' paths."""
    names = line.folders.options(GROUP)
    if not line.words:
        if line.overrides:
            raise ConfigError("No race is named.", given=" ".join(line.overrides), hint="sargnn race lists all")
        specs = {name: read_race(_path(line, name)) for name in sorted(names)}
        rows = [(name, spec.title, str(len(spec.ways)), spec.needs) for name, spec in specs.items()]
        show_table(("race", "shows", "ways", "needs"), rows, words=("race", "shows", "needs"))
        return 0
    if len(line.words) > 1:
        raise ConfigError("One race at a time.", given=" ".join(line.words))
    (name,) = line.words
    spec = read_race(_path(line, name))
    by_way = points_of(spec, line.overrides)
    points = [point for of_way in by_way.values() for point in of_way]
    if line.dry_run:
        return show_sweep(points, line.folders)
    say(f"{name}: {spec.title}: {len(spec.ways)} ways, {spec.seeds} seeds each")
    plan = plan_sweep(points, line.folders)
    outcomes = dict(zip(points, run_points(plan, line.folders), strict=True))
    unfinished = [outcome for outcome in outcomes.values() if not outcome.is_done]
    for outcome in unfinished:
        say(f"{outcome.status}: {outcome.label}: {outcome.error or 'the race was interrupted'}")
    ran: dict[str, list[Ran]] = {}
    for way, of_way in by_way.items():
        done = [(seed, outcomes[point]) for seed, point in enumerate(of_way) if outcomes[point].is_done]
        runs = [run for seed, outcome in done if (run := read_ran(way, seed, outcome.run_dir)) is not None]
        if runs:
            ran[way] = runs
    interrupted = any(outcome.status in ("interrupted", "not run") for outcome in unfinished)
    if interrupted or not ran:
        say(f"the same command again goes on: sargnn race {name}")
        return 130 if interrupted else 1
    folder = Path(str(line.settings["races_dir"])).expanduser() / Path(name).stem
    try:
        lines, paths = write_race(name, spec, ran, f"{os.cpu_count()} cores", folder)
    except OSError as error:
        raise ConfigError(f"The race's folder cannot be written: {error.strerror}.", given=str(folder)) from error
    print("\n".join(lines))
    say(f"all figures of all runs: sargnn compare {shlex.quote(str(plan.folder))}/*/ seeds=true")
    print("\n".join(map(str, paths)))
    return int(bool(unfinished))


def _path(line: CommandLine, name: str) -> Path:
    """A race by its name, or a file of one's own. Raises ``ConfigError`` where there is none."""
    if name.endswith((".yaml", ".yml")) and Path(name).is_file():
        return Path(name)
    path = line.folders.find(f"{GROUP}/{name}")
    if path is None:
        names = line.folders.options(GROUP)
        raise ConfigError("There is no such race.", given=name, allowed=nearest(name, names), hint="sargnn race lists all")
    return path
