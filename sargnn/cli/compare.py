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
    from sargnn.tracking.plots import write_plots
    from sargnn.tracking.progress import compare_table, say

    compare_table(runs)
    out = Path(str(line.settings["out"]))
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = write_plots(runs, out)
    except OSError as error:
        raise ConfigError(f"The folder cannot be written: {error.strerror}.", given=str(out)) from error
    say(f"plots: {', '.join(str(path) for path in written)}")
    return 0


NEEDED = ("model", "dataset", "mode", "world", "epoch_time_s", "comm_wait_time_s", "comm_bytes_per_epoch", "peak_train_bytes")


def read_runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Summaries of finished runs, each with ``name``, ``run_dir`` and ``epochs`` (its lines of ``metrics.jsonl``).

    Raises:
        ConfigError: a folder that is no run folder, or figures that cannot be read.
    """
    from sargnn.config import load
    from sargnn.tracking.progress import say

    runs = []
    for folder in folders:
        if not (folder / "config.yaml").is_file():
            if folder.parent == Path("runs"):
                continue
            points = [path for path in sorted(folder.glob("*")) if (path / "config.yaml").is_file()]
            hint = f"a sweep's points: sargnn compare {folder}/*/" if points else "a run folder holds config.yaml"
            raise ConfigError("This is no run folder.", given=str(folder), hint=hint)
        name = load(folder / "config.yaml").name
        try:
            summary = json.loads((folder / "summary.json").read_text())
            epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            status = summary.get("status")
            if status == "finished" and not all(key in summary for key in NEEDED):
                raise ValueError("summary.json lacks figures")
            if not all(isinstance(row.get("epoch"), int) for row in epochs):
                raise ValueError("metrics.jsonl has not the form that a run writes")
        except FileNotFoundError:
            status = "not over"
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError("A run's figures cannot be read.", given=str(folder), hint=str(error).splitlines()[0]) from error
        if status == "finished":
            runs.append(summary | {"name": name, "run_dir": str(folder), "epochs": epochs})
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
    except (OSError, ValueError, KeyError, IndexError):
        return None
