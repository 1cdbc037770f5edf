"""``sargnn compare``: runs side by side, as a table and as plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sargnn.cli.command_line import CommandLine
from sargnn.errors import ConfigError


def main(line: CommandLine) -> int:
    """Print the table, write the plots."""
    runs = read_runs([Path(folder) for folder in line.words] or sorted(p for p in Path("runs").glob("*") if p.is_dir()))
    if not runs:
        raise ConfigError("There is no finished run to compare.", hint="sargnn train makes one in runs/; or name run folders")
    from sargnn.cli.compare_curves import losses_equal, over_seeds, seeds_table
    from sargnn.tracking.plots import write_plots
    from sargnn.tracking.progress import say
    from sargnn.tracking.tables import compare_table

    compare_table(runs)
    if line.settings["seeds"]:
        seeds_table(over_seeds(runs))
    equal = losses_equal(runs) if line.settings["losses"] == "equal" else True
    out = Path(str(line.settings["out"]))
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = write_plots(runs, out)
    except OSError as error:
        raise ConfigError(f"The folder cannot be written: {error.strerror}.", given=str(out)) from error
    say(f"plots: {', '.join(str(path) for path in written)}")
    return int(not equal)


def read_runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Summaries of finished runs, each with ``name``, ``run_dir`` and ``epochs`` (its lines of ``metrics.jsonl``).

    Raises:
        ConfigError: a folder that is no run folder.
        SargnnError: a file of a run that is damaged, named.
    """
    from sargnn.config import load
    from sargnn.tracking.files import CONFIG, MetricsTail
    from sargnn.tracking.progress import say
    from sargnn.tracking.summary import read_summary

    runs = []
    for folder in folders:
        if not (folder / CONFIG).is_file():
            if folder.parent == Path("runs"):
                continue
            points = [path for path in sorted(folder.glob("*")) if (path / CONFIG).is_file()]
            hint = f"a sweep's points: sargnn compare {folder}/*/" if points else "a run folder holds config.yaml"
            raise ConfigError("This is no run folder.", given=str(folder), hint=hint)
        name = load(folder / CONFIG).name
        summary, epochs = read_summary(folder), list(MetricsTail(folder).new_rows())
        status = summary.status if summary is not None and epochs else "not over"
        if summary is not None and status == "finished":
            runs.append(summary.as_dict() | {"name": name, "run_dir": str(folder), "epochs": epochs})
        else:
            say(f"left out: {folder} ({status})")
    names = [run["name"] for run in runs]
    for run, name in zip(runs, names, strict=True):
        if names.count(name) > 1:
            run["name"] = _label(Path(run["run_dir"])) or run["run_dir"]
    return runs


def _label(folder: Path) -> str | None:
    """What a sweep calls its point."""
    try:
        return str(json.loads((folder.parent / "sweep.json").read_text())["labels"][int(folder.name[:3])])
    except (OSError, ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None
