"""``sargnn train``."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.cli.help import Help, words_of

if TYPE_CHECKING:
    from sargnn.config import RunConfig

HELP = Help(
    usage="train [key=value ...] [group=option ...] [-m]",
    text="Train a model on local worker processes: prepare the stores where they are missing, start one process per worker, "
    "follow their figures, end with a table. With -m every list of values is a sweep.",
    examples=(
        ("train", "the embedded graph, 4 workers"),
        ("train model=gat mode=sar world=8", ""),
        ("train dataset=products_like dataset.scale=0.02 epochs=10", ""),
        ("train experiment=laptop_tour", "a graph that takes a minute"),
        ("train -m model=sage,gat mode=sar,domain_parallel", "a sweep: all four"),
    ),
    config="train",
)


def main(arguments: Sequence[str]) -> int:
    """Train; prints the table of results and what is worth trying next."""
    if (words := words_of(HELP, arguments)) is None:
        return 0
    from sargnn.cli.compose import compose_verb, sweep_points
    from sargnn.cli.resume import resumed
    from sargnn.config import parse
    from sargnn.errors import ConfigError

    if words.multirun and any(one.startswith("resume=") for one in words.overrides):
        raise ConfigError("A sweep cannot be resumed as one.", hint="started again it runs what is not finished")
    going_on = resumed(words.overrides)
    if going_on is not None:
        config, run_dir = going_on
        _train(config, [f"resume={run_dir}"], run_dir)
        return 0
    points = sweep_points("train", words.overrides, multirun=words.multirun)
    if points is not None:
        from sargnn.cli.sweep import run_sweep

        return run_sweep(points)
    _train(parse(compose_verb("train", words.overrides)), words.overrides)
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
    folder = "" if shutil.which("sargnn") else f"{shown(Path(sys.executable).parent)}/"

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


def shown(path: Path) -> str:
    """Relative to the working folder where it lies in it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
