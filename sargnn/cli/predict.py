"""``sargnn predict``: what a trained run says about every node."""

from __future__ import annotations

import os
from pathlib import Path

from sargnn.cli.command_line import CommandLine
from sargnn.errors import ConfigError
from sargnn.tracking.find_runs import find_run, run_names


def main(line: CommandLine) -> int:
    """Write predictions."""
    from sargnn.cli.resume import read_resumed

    settings = line.settings
    run = run_folder(settings["run"])
    resumed = read_resumed([f"resume={run}", *line.overrides], line.folders, trains=False)
    assert resumed is not None
    config, run_dir = resumed
    from sargnn.launch.predict import FOLDER
    from sargnn.launch.predict import predict as write
    from sargnn.tracking.progress import say

    folder = Path(os.path.expanduser(str(settings["out"] or run_dir / FOLDER)))
    which, embeddings = str(settings["checkpoint"]), bool(settings["embeddings"])
    manifest = write(config, run_dir, folder.resolve(), which=which, embeddings=embeddings)
    say(f"{manifest['nodes']} nodes of type '{manifest['node_type']}' in {manifest['time_s']:.1f} s")
    for name in manifest["files"]:
        print(folder / name)
    return 0


def run_folder(given: object) -> Path:
    """The run that is named. Raises ``ConfigError`` where there is none."""
    if not given:
        names = run_names()
        hint = "its name or its folder: run=NAME" if names else "sargnn train makes one in runs/"
        raise ConfigError("A run must be named.", allowed=names, hint=hint)
    return find_run(str(given))
