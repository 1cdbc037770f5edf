"""``sargnn train``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.cli.command_line import CommandLine

if TYPE_CHECKING:
    from sargnn.config.run import RunConfig


def main(line: CommandLine) -> int:
    """Train; prints the table of results and what is worth trying next."""
    from sargnn.cli.auto_world import provisional, with_world
    from sargnn.cli.compose import compose_verb, sweep_points
    from sargnn.cli.resume import read_resumed
    from sargnn.config.run import parse
    from sargnn.errors import ConfigError

    if line.multirun and any(override.startswith("resume=") for override in line.overrides):
        raise ConfigError("A sweep cannot be resumed as one.", hint="started again it runs what is not finished")
    going_on = read_resumed(line.overrides, line.folders)
    if going_on is not None:
        config, run_dir = going_on
        if line.dry_run:
            from sargnn.cli.dry_run import show_run

            return show_run(config, line.overrides, line.folders, resume=run_dir)
        _train(config, [f"resume={run_dir}"], run_dir)
        return 0
    points = sweep_points("train", line.overrides, multirun=line.multirun, folders=line.folders)
    if points is not None:
        if line.dry_run:
            from sargnn.cli.dry_run import show_sweep

            return show_sweep(points, line.folders)
        from sargnn.cli.sweep import run_sweep

        return run_sweep(points, line.folders)
    if line.dry_run:
        from sargnn.cli.dry_run import show_run

        config = parse(provisional(compose_verb("train", line.overrides, folders=line.folders)))
        return show_run(config, line.overrides, line.folders)
    overrides = with_world(line.overrides, line.folders)
    config = parse(compose_verb("train", overrides, folders=line.folders))
    _train(config, [*line.folders.arguments, *overrides])
    return 0


def _train(config: RunConfig, overrides: Sequence[str], resume: Path | None = None) -> None:
    from sargnn.launch.local import train
    from sargnn.tracking.progress import say
    from sargnn.tracking.tables import profile_tables, result_table

    summary, run_dir = train(config, resume=resume)
    result_table(summary)
    profile_tables(summary)
    if summary.profile_s:
        say(f"traces for ui.perfetto.dev: {run_dir / 'traces'}")
    say(f"figures, logs and configuration: {run_dir}")
    if resume:
        return
    from sargnn.cli.next_commands import next_commands, show_commands

    say("worth trying next:")
    for text in show_commands(next_commands(config, overrides, run_dir)):
        say(text)
