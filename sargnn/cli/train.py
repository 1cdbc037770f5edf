"""``sargnn train``."""

from __future__ import annotations

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
    from sargnn.config import parse

    points = sweep_points("train", words.overrides, multirun=words.multirun)
    if points is not None:
        from sargnn.cli.sweep import run_sweep

        return run_sweep(points)
    _train(parse(compose_verb("train", words.overrides)))
    return 0


def _train(config: RunConfig) -> None:
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
    uri = f" tracking.uri={config.tracking.uri}" if config.tracking.uri else ""
    folder = "" if shutil.which("sargnn") else f"{_shown(Path(sys.executable).parent)}/"
    return [
        f"{folder}sargnn train {dataset}mode={config.mode.name} world={2 * config.world}  # less memory each, same losses",
        f"{folder}sargnn train {dataset}mode={other_mode} world={config.world}  # same losses, another mode",
        f"{folder}sargnn ui{uri}  # compare runs in the browser",
    ]


def _shown(path: Path) -> str:
    """Relative to the working folder where it lies in it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
