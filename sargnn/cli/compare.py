"""``sargnn compare``: runs side by side, as a table and pictures, one page, JSON or CSV."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.cli.command_line import CommandLine
from sargnn.errors import ConfigError

if TYPE_CHECKING:
    from sargnn.comparison.charts import Picture
    from sargnn.comparison.groups import Group
    from sargnn.comparison.runs import LeftOut, Run

FOLDER = "compare"


def main(line: CommandLine) -> int:
    """Print the table, or JSON or CSV; write the pictures, or the page."""
    from sargnn.comparison.charts import make_pictures
    from sargnn.comparison.export import as_csv, as_json
    from sargnn.comparison.groups import make_groups
    from sargnn.comparison.losses import losses_equal
    from sargnn.comparison.runs import find_folders, no_run_left, read_runs
    from sargnn.tracking.find_runs import find_run
    from sargnn.tracking.progress import say

    asked = line.settings
    out, is_page = _place(str(asked["out"]))
    if asked["json"] and asked["csv"]:
        raise ConfigError("One form is printed at a time.", given="--json --csv", allowed="--json or --csv")
    folders, no_runs = find_folders(line.words)
    baseline = find_run(str(asked["baseline"])) if asked["baseline"] else None
    if baseline is not None and baseline.resolve() not in [folder.resolve() for folder in folders]:
        folders.append(baseline)
    runs, damaged = read_runs(folders)
    left_out = [*no_runs, *damaged]
    for skipped in left_out:
        say(f"left out: {skipped.folder} ({skipped.reason})")
    if not runs:
        raise no_run_left(left_out)
    groups = make_groups(runs)
    pictures = make_pictures(groups, _group_of(baseline, groups))
    if asked["seeds"]:
        _refuse_repeats(groups)
    equal, said = losses_equal(runs) if asked["losses"] == "equal" else (True, [])
    if asked["json"]:
        print(as_json(runs, groups, pictures, left_out))
    elif asked["csv"]:
        print(as_csv(runs, groups), end="")
    else:
        _print_tables(runs, groups, seeds=bool(asked["seeds"]))
    for text in said:
        say(text)
    if asked["out"] or not (asked["json"] or asked["csv"]):
        _write(out, is_page, runs, groups, pictures, left_out)
    return int(not equal)


def _write(
    out: Path,
    is_page: bool,
    runs: Sequence[Run],
    groups: Sequence[Group],
    pictures: Sequence[Picture],
    left_out: Sequence[LeftOut],
) -> None:
    from sargnn.tracking.progress import say

    try:
        if is_page:
            from sargnn.cli.repeat import command_of
            from sargnn.comparison.page import write_page

            write_page(out, runs, groups, pictures, {run.name: command_of(run.settings) for run in runs}, left_out)
            say(f"report: {out}")
        else:
            from sargnn.comparison.draw import write_pngs

            out.mkdir(parents=True, exist_ok=True)
            say(f"plots: {', '.join(str(path) for path in write_pngs(pictures, out))}")
    except OSError as error:
        what = "The report" if is_page else "The folder"
        raise ConfigError(f"{what} cannot be written: {error.strerror}.", given=str(out)) from error


def _place(text: str) -> tuple[Path, bool]:
    """Where the pictures go, and whether that is a page. Raises ``ConfigError`` for another file's name."""
    out = Path(text or FOLDER).expanduser()
    if out.is_dir() or not out.suffix:
        return out, False
    if out.suffix != ".html":
        raise ConfigError("Pictures go into a folder, or into one page.", given=text, allowed="out=FOLDER, out=REPORT.html")
    return out, True


def _group_of(folder: Path | None, groups: Sequence[Group]) -> Group | None:
    """The group of a run. Raises ``ConfigError`` for a run that cannot be compared."""
    if folder is None:
        return None
    for group in groups:
        if any(run.folder.resolve() == folder.resolve() for run in group.members):
            return group
    raise ConfigError("The run to compare with has not finished.", given=f"baseline={folder}", hint="name another one")


def _refuse_repeats(groups: Sequence[Group]) -> None:
    again = [group for group in groups if group.repeat > 1]
    if again:
        twins = [run for group in groups for run in group.members if run.telling == again[0].first.telling]
        same = ", ".join(str(run.folder) for run in twins if run.seed == again[0].first.seed)
        raise ConfigError("Two runs have the same settings and the same seed.", given=same, hint="name one of them")


def _print_tables(runs: Sequence[Run], groups: Sequence[Group], *, seeds: bool) -> None:
    from rich.console import Console

    from sargnn.comparison.table import groups_lines, runs_lines

    width = max(80, Console(file=sys.stdout).width)
    lines = runs_lines(runs, width)
    if seeds:
        lines += ["", *groups_lines(groups, width)]
    print("\n".join(lines))
