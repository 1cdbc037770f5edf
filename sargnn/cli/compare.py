"""Runs side by side: ``sargnn compare`` as a table and pictures, a page, JSON or CSV; in MLflow ``sargnn track`` and ``ui``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import IO

from rich.console import Console

from sargnn.cli.command_line import CommandLine
from sargnn.errors import ConfigError, SargnnError, writing
from sargnn.report.charts import make_pictures
from sargnn.report.groups import losses_equal, make_groups
from sargnn.report.runs import find_folders, no_run_left, read_runs
from sargnn.report.table import as_csv, as_json, groups_lines, runs_lines
from sargnn.tracking.find_runs import find_run, find_runs, run_names
from sargnn.tracking.progress import say

FOLDER = "compare"


def main(line: CommandLine) -> int:
    """Print the table, or JSON or CSV; write the pictures, or the page."""
    asked = line.settings
    out = Path(str(asked["out"] or FOLDER)).expanduser()
    is_page = not out.is_dir() and bool(out.suffix)
    if is_page and out.suffix != ".html":
        allowed = "out=FOLDER, out=REPORT.html"
        raise ConfigError("Pictures go into a folder, or into one page.", given=asked["out"], allowed=allowed)
    if asked["json"] and asked["csv"]:
        raise ConfigError("One form is printed at a time.", given="--json --csv", allowed="--json or --csv")
    folders, no_runs = find_folders(line.words)
    baseline = find_run(str(asked["baseline"])) if asked["baseline"] else None
    if baseline is not None and baseline.resolve() not in [folder.resolve() for folder in folders]:
        folders.append(baseline)
    runs, damaged = read_runs(folders)
    left_out = [*no_runs, *damaged]
    for skipped in left_out:
        say(f"left out: {skipped.folder} ({skipped.reason})")
    if not runs:
        raise no_run_left(left_out)
    groups = make_groups(runs)
    baseline_group = None
    if baseline is not None:
        place = baseline.resolve()
        baseline_group = next((group for group in groups if any(run.folder.resolve() == place for run in group.members)), None)
        if baseline_group is None:
            given = f"baseline={baseline}"
            raise ConfigError("The run to compare with has not finished.", given=given, hint="name another one")
    pictures = make_pictures(groups, baseline_group)
    if asked["seeds"] and (again := [group for group in groups if group.repeat > 1]):
        twins = [run for group in groups for run in group.members if run.telling == again[0].first.telling]
        same = ", ".join(str(run.folder) for run in twins if run.seed == again[0].first.seed)
        raise ConfigError("Two runs have the same settings and the same seed.", given=same, hint="name one of them")
    equal, said = losses_equal(runs) if asked["losses"] == "equal" else (True, [])
    if asked["json"]:
        print(as_json(runs, groups, pictures, left_out))
    elif asked["csv"]:
        print(as_csv(runs, groups), end="")
    else:
        width = max(80, Console(file=sys.stdout).width)
        lines = runs_lines(runs, width)
        if asked["seeds"]:
            lines += ["", *groups_lines(groups, width)]
        print("\n".join(lines))
    for text in said:
        say(text)
    if (asked["json"] or asked["csv"]) and not asked["out"]:
        return int(not equal)
    with writing("The report" if is_page else "The folder", out):
        if is_page:
            from sargnn.cli.resume import command_of
            from sargnn.report.page import write_page

            write_page(out, runs, groups, pictures, {run.name: command_of(run.settings) for run in runs}, left_out)
            say(f"report: {out}")
        else:
            from sargnn.report.draw import write_pngs

            out.mkdir(parents=True, exist_ok=True)
            say(f"plots: {', '.join(str(path) for path in write_pngs(pictures, out))}")
    return int(not equal)


def track(line: CommandLine) -> int:
    """Send runs."""
    uri_given = line.settings["tracking.uri"]
    if not line.words:
        raise ConfigError("A run must be named.", allowed=run_names(), hint="sargnn track NAME")
    folders = list(dict.fromkeys(run for word in line.words for run in find_runs(word)))
    from sargnn.tracking.mlflow.run import send_again

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


_START_S = 90


def ui(line: CommandLine) -> int:
    """Serve until Ctrl-C."""
    settings = line.settings
    port = int(settings["port"] or 0)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"The port cannot be used: {error.strerror}.", given=port, hint=f"try another: sargnn ui port={port + 1}"
            ) from error
    from sargnn.cli.sweep import as_interrupts
    from sargnn.tracking.mlflow.store import database_of, default_uri, find_runs_page

    uri = str(settings["tracking.uri"] or default_uri())
    database = database_of(uri)
    if database is not None and not database.exists():
        raise ConfigError("There is no MLflow store yet.", given=uri, hint="sargnn train makes one in the working folder")
    address = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", uri]
    log = tempfile.TemporaryFile()  # a pipe that nobody reads would stop the server when it is full
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
    as_interrupts()
    try:
        print("starting MLflow ...", flush=True)
        _wait(server, address, log)
        page = find_runs_page(uri)
        if page is None:
            print("no run is in this store yet: sargnn train makes one", flush=True)
        print(f"{address}{page or ''}  (Ctrl-C ends it)", flush=True)
        server.wait()
        raise SargnnError("MLflow's server ended.", given=_last_line(log))
    except KeyboardInterrupt:
        print()
    finally:
        # The server and the processes that it started.
        for number, patience_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            try:
                os.killpg(server.pid, number)
                server.wait(patience_s)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
            break
        log.close()
    return 0


def _last_line(log: IO[bytes]) -> str | None:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else None


def _wait(server: subprocess.Popen[bytes], address: str, log: IO[bytes]) -> None:
    """Until the server answers."""
    for _ in range(10 * _START_S):
        if server.poll() is not None:
            raise SargnnError("MLflow's server ended at once.", given=_last_line(log))
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise SargnnError(f"MLflow's server did not answer within {_START_S} s.", given=address)
