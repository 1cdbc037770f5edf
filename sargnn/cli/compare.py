"""``sargnn compare``: runs side by side, as a table and as plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sargnn.cli.help import Help, help_text, wanted
from sargnn.errors import ConfigError

HELP = Help(
    usage="compare [RUN_DIR ...] [out=FOLDER]",
    text="A table of runs with the best of each column marked, and plots of memory and epoch time against workers by mode, of "
    "loss and of accuracy over epochs, in FOLDER (compare). Without folders: all of runs/.",
    examples=(("compare", "everything in runs/"), ("compare runs/sage-sar-w4-s0 runs/gat-sar-w4-s0", "")),
)


def main(arguments: Sequence[str]) -> int:
    """Print the table, write the plots."""
    if wanted(arguments):
        print(help_text(HELP))
        return 0
    from sargnn.cli.settings import read_settings

    folders, settings = read_settings(arguments, {"out": "compare"})
    runs = read_runs([Path(folder) for folder in folders] or sorted(p for p in Path("runs").glob("*") if p.is_dir()))
    if not runs:
        raise ConfigError("There is no finished run to compare.", hint="sargnn train makes one in runs/; or name run folders")
    from sargnn.tracking.plots import write_plots
    from sargnn.tracking.progress import compare_table, say

    compare_table(runs)
    out = Path(str(settings["out"]))
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = write_plots(runs, out)
    except OSError as error:
        raise ConfigError(f"The folder cannot be written: {error.strerror}.", given=str(out)) from error
    say(f"plots: {', '.join(str(path) for path in written)}")
    return 0


def read_runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Summaries of finished runs, each with ``name``, ``run_dir`` and ``epochs`` (its lines of ``metrics.jsonl``).

    Raises:
        ConfigError: a folder that is no run folder.
    """
    from sargnn.config import load

    runs = []
    for folder in folders:
        if not (folder / "config.yaml").is_file():
            if folder.parent == Path("runs"):
                continue
            raise ConfigError("This is no run folder.", given=str(folder), hint="a run folder holds config.yaml")
        try:
            summary = json.loads((folder / "summary.json").read_text())
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            epochs = [json.loads(line) for line in lines]
        except FileNotFoundError:
            continue  # still running, or it failed before the first epoch
        except (OSError, ValueError) as error:
            raise ConfigError("A run's figures cannot be read.", given=str(folder), hint=str(error)) from error
        if summary.get("status") == "finished":
            runs.append(summary | {"name": load(folder / "config.yaml").name, "run_dir": str(folder), "epochs": epochs})
    names = [run["name"] for run in runs]
    for run in runs:
        if names.count(run["name"]) > 1:
            run["name"] = f"{run['name']} {Path(run['run_dir']).name}"
    return runs
