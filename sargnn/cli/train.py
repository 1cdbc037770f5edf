"""``sargnn train``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sargnn.cli.compose import run_verb
from sargnn.config import RunConfig, parse


def main(arguments: Sequence[str]) -> int:
    """Train; prints the table of results and what is worth trying next."""
    run_verb("train", arguments, _task)
    return 0


def _task(mapping: dict[str, Any]) -> None:
    config = parse(mapping)
    from sargnn.launch.local import train
    from sargnn.tracking.progress import profile_table, result_table, say

    summary, run_dir = train(config)
    result_table(summary)
    if summary["profile_s"]:
        profile_table(summary["profile_s"])
        say(f"traces for ui.perfetto.dev: {run_dir / 'traces'}")
    say(f"figures, logs and configuration: {run_dir}")
    say("worth trying next:")
    for command in next_commands(config):
        say(f"  {command}")


def next_commands(config: RunConfig) -> list[str]:
    """Three commands that show something beside the run that just ended."""
    dataset = ""
    if config.dataset.name == "ogb_dir":
        dataset = f"dataset=ogb_dir dataset.root={config.dataset.root} "
        dataset += f"dataset.add_inverse_edges={str(config.dataset.add_inverse_edges).lower()} "
    other_mode = "sar" if config.mode.name == "domain_parallel" else "domain_parallel"
    uri = config.tracking.uri or "sqlite:///mlflow.db"
    folder = "" if shutil.which("sargnn") else f"{_shown(Path(sys.executable).parent)}/"
    return [
        f"{folder}sargnn train {dataset}mode={config.mode.name} world={2 * config.world}  # less memory each, same losses",
        f"{folder}sargnn train {dataset}mode={other_mode} world={config.world}  # same losses, another mode",
        f"{folder}mlflow ui --backend-store-uri {uri}  # compare runs",
    ]


def _shown(path: Path) -> str:
    """Relative to the working folder where it lies in it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
