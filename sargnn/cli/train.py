"""``sargnn train``."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.cli.command_line import CommandLine
from sargnn.cli.conf_files import show_path

if TYPE_CHECKING:
    from sargnn.config import RunConfig


def main(line: CommandLine) -> int:
    """Train; prints the table of results and what is worth trying next."""
    from sargnn.cli.compose import compose_verb, sweep_points
    from sargnn.cli.resume import read_resumed
    from sargnn.config import parse
    from sargnn.errors import ConfigError

    if line.multirun and any(one.startswith("resume=") for one in line.overrides):
        raise ConfigError("A sweep cannot be resumed as one.", hint="started again it runs what is not finished")
    going_on = read_resumed(line.overrides, line.folders)
    if going_on is not None:
        config, run_dir = going_on
        _train(config, [f"resume={run_dir}"], run_dir)
        return 0
    points = sweep_points("train", line.overrides, multirun=line.multirun, folders=line.folders)
    if points is not None:
        from sargnn.cli.sweep import run_sweep

        return run_sweep(points, line.folders)
    _train(parse(compose_verb("train", line.overrides, folders=line.folders)), [*line.folders.arguments, *line.overrides])
    return 0


def _train(config: RunConfig, overrides: Sequence[str], resume: Path | None = None) -> None:
    from sargnn.launch.local import train
    from sargnn.tracking.progress import say
    from sargnn.tracking.tables import profile_table, result_table

    summary, run_dir = train(config, resume=resume)
    result_table(summary)
    if summary.profile_s:
        profile_table(summary.profile_s)
        say(f"traces for ui.perfetto.dev: {run_dir / 'traces'}")
    say(f"figures, logs and configuration: {run_dir}")
    if resume:
        return
    say("worth trying next:")
    for command in next_commands(config, overrides):
        say(f"  {command}")


def next_commands(config: RunConfig, overrides: Sequence[str]) -> list[str]:
    """Three commands that show something beside the run that just ended: the same one with one thing changed."""
    other_mode = "sar" if config.mode.name == "domain_parallel" else "domain_parallel"
    folder = "" if shutil.which("sargnn") else f"{show_path(Path(sys.executable).parent)}/"

    def again(change: str) -> str:
        key = change.partition("=")[0]
        kept = [shlex.quote(o) for o in overrides if o.partition("=")[0] not in (key, "run_dir", "run_name")]
        return " ".join([f"{folder}sargnn train", *kept, change])

    commands = [
        f"{again(f'world={2 * config.world}')}  # less memory each, same losses",
        f"{again(f'mode={other_mode}')}  # same losses, another mode",
    ]
    if not config.tracking.enabled:
        return [*commands, f"{folder}sargnn compare  # runs side by side"]
    uri = f" tracking.uri={shlex.quote(config.tracking.uri)}" if config.tracking.uri else ""
    return [*commands, f"{folder}sargnn ui{uri}  # compare runs in the browser"]
