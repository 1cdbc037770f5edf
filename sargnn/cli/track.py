"""``sargnn track``: figures to MLflow, late, elsewhere, or while others train."""

from __future__ import annotations

import signal
import sys
import threading

from sargnn.cli.command_line import CommandLine
from sargnn.errors import ConfigError, SargnnError
from sargnn.tracking.find_runs import find_run, find_runs, run_names


def main(line: CommandLine) -> int:
    """Send runs."""
    uri_given = line.settings["tracking.uri"]
    if not line.words:
        raise ConfigError("A run must be named.", allowed=run_names(), hint="sargnn track NAME")
    folders = list(dict.fromkeys(run for word in line.words for run in find_runs(word)))
    from sargnn.tracking.mlflow.late import send_again

    failed = False
    for folder in folders:
        try:
            uri, run_id = send_again(folder, None if uri_given is None else str(uri_given))
        except SargnnError as error:
            if len(folders) == 1:
                raise
            failed = True
            print(f"sargnn: {folder}: {error}", file=sys.stderr)
        else:
            print(f"{folder} is run {run_id} in {uri}")
    return int(failed)


def follow(line: CommandLine) -> int:
    """Send one run's figures while it trains."""
    folders = line.words
    if len(folders) != 1:  # a path as it is, which may hold a '='
        raise ConfigError("--follow takes one run folder, whose run names its store.", given=" ".join(folders) or "nothing")
    from sargnn.tracking.follow import follow as send_while_it_trains

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    summary = send_while_it_trains(find_run(folders[0]).resolve(), ended)
    return int(summary is None or summary.status != "finished")
