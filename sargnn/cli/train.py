"""``sargnn train``, and what is worth trying after a run: commands that this machine can run, with one thing changed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sargnn.cli.command_line import CommandLine
from sargnn.cli.conf import show_path
from sargnn.config.decides import as_mapping
from sargnn.config.run import RunConfig, parse
from sargnn.errors import ConfigError, SargnnError


def main(line: CommandLine) -> int:
    """Train; prints the table of results and what is worth trying next."""
    from sargnn.cli.auto_world import provisional, with_world
    from sargnn.cli.compose import compose_verb, sweep_points
    from sargnn.cli.resume import read_resumed

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
    from sargnn.run.local import train
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

    say("worth trying next:")
    for text in show_commands(next_commands(config, overrides, run_dir)):
        say(text)


_WIDTH = 80
_MOST = 2
_BASELINE = "mode=domain_parallel"


def next_commands(config: RunConfig, overrides: Sequence[str], run_dir: Path) -> list[tuple[str, str]]:
    """At most four commands, each with what it is for: the same run changed, predictions, runs side by side.

    Args:
        overrides: of the run that just ended, with its ``--config-dir``. run_dir: its folder.
    """
    from sargnn.training import checkpoint

    program = ("" if shutil.which("sargnn") else f"{show_path(Path(sys.executable).parent)}/") + "sargnn"
    commands: list[tuple[str, str]] = []
    for change, purpose in _changes(config):
        if len(commands) < _MOST and _can_run(config, change):
            words = _changed(overrides, change)
            commands.append((" ".join([f"{program} train", *map(shlex.quote, words)]), purpose))
    if checkpoint.existing(run_dir):
        commands.append((f"{program} predict run={shlex.quote(show_path(run_dir))}", "its predictions for all nodes"))
    if not config.tracking.enabled:
        return [*commands, (f"{program} compare", "runs side by side")]
    uri = f" tracking.uri={shlex.quote(config.tracking.uri)}" if config.tracking.uri else ""
    return [*commands, (f"{program} ui{uri}", "runs side by side, in the browser")]


def show_commands(commands: Sequence[tuple[str, str]]) -> list[str]:
    """Lines to print: each purpose behind its command where all have room, else before it."""
    behind = [f"  {command}  # {purpose}" for command, purpose in commands]
    if all(len(text) <= _WIDTH for text in behind):
        return behind
    return [text for command, purpose in commands for text in (f"  # {purpose}", f"  {command}")]


def _changes(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Settings to change, the most telling first."""
    if 2 * config.world <= len(os.sched_getaffinity(0)) and config.partitioner.file is None:
        yield f"world={2 * config.world}", "less memory each, the same losses"
    if config.world > 1 and config.mode.name != "domain_parallel":
        yield _BASELINE, "the same losses, in the usual way: more memory"
    if config.world > 1 and config.mode.name != "sar":
        yield "mode=sar", "the same losses in less memory"
    if config.model.name == "sage":
        yield "model=gat", "attention instead of means"
    yield f"seed={config.seed + 1}", "how much is chance?"


def _changed(overrides: Sequence[str], change: str) -> list[str]:
    """The run's words with one thing changed: without what was said of that, and of the options of a group that changes."""
    key = change.partition("=")[0]
    dropped = (key, "run_dir", "run_name", "init_from")
    kept = [override for override in overrides if override.lstrip("+").partition("=")[0] not in dropped]
    return [*(override for override in kept if not override.startswith(f"{key}.")), change]


def _can_run(config: RunConfig, change: str) -> bool:
    from sargnn.cli.compose import compose_verb
    from sargnn.run.check import check_strategies

    key, _, value = change.partition("=")
    try:
        setting = compose_verb("train", [change])[key] if key in ("mode", "model") else int(value)
        changed = parse(as_mapping(config) | {key: setting})
        # Of all that the package computes a baseline has some kernel; whether it is DGL's takes a second to see.
        if not (change == _BASELINE and changed.kernel.choice == "auto" and changed.model.target is None):
            check_strategies(changed.stand_in)
    except SargnnError:
        return False
    return True
