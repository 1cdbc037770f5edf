"""``sargnn track`` and ``sargnn ui``: figures to MLflow, and MLflow's pages in the browser."""

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
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from sargnn.cli.help import Help, help_text, wanted
from sargnn.cli.signals import as_interrupts
from sargnn.errors import ConfigError, SargnnError

TRACK = Help(
    usage="track RUN_DIR [RUN_DIR ...] [tracking.uri=URI] | --follow RUN_DIR",
    text="Send the figures of runs that are over to MLflow: those that could not be sent while they ran, or to another store. "
    "A run is sent to a store once. --follow sends one run's figures while workers that sargnn train has not started, such as "
    "those of a SLURM job, train it, and ends with it.",
    examples=(
        ("track runs/sage-sar-w4-s0", ""),
        ("track runs/* tracking.uri=sqlite:///other.db", ""),
        ("track --follow runs/sage-sar-w4-s0", "what the script of sargnn slurm calls"),
    ),
)
UI = Help(
    usage="ui [port=5000] [tracking.uri=URI]",
    text="MLflow's pages on 127.0.0.1, for this machine only, on the store of the working folder. Ctrl-C ends it.",
    examples=(("ui", ""), ("ui port=8080 tracking.uri=sqlite:///other.db", "")),
)
_START_S = 90


def track(arguments: Sequence[str]) -> int:
    """Send runs."""
    if wanted(arguments):
        print(help_text(TRACK))
        return 0
    from sargnn.cli.settings import read_settings

    if "--follow" in arguments:
        return _follow([word for word in arguments if word != "--follow"])
    folders, settings = read_settings(arguments, {"tracking.uri": None})
    if not folders:
        raise ConfigError("A run folder must be named.", hint="sargnn track runs/NAME")
    from sargnn.tracking.mlflow import send_again

    failed = False
    for folder in folders:
        try:
            uri, run_id = send_again(Path(folder), None if settings["tracking.uri"] is None else str(settings["tracking.uri"]))
        except SargnnError as error:
            if len(folders) == 1:
                raise
            failed = True
            print(f"sargnn: {folder}: {error}", file=sys.stderr)
        else:
            print(f"{folder} is run {run_id} in {uri}")
    return int(failed)


def _follow(folders: Sequence[str]) -> int:
    if len(folders) != 1:  # a path as it is, which may hold a '='
        raise ConfigError("--follow takes one run folder, whose run names its store.", given=" ".join(folders) or "nothing")
    from sargnn.tracking.follow import follow

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    summary = follow(Path(folders[0]).resolve(), ended)
    return int(summary is None or summary.status != "finished")


def ui(arguments: Sequence[str]) -> int:
    """Serve until Ctrl-C."""
    if wanted(arguments):
        print(help_text(UI))
        return 0
    from sargnn.cli.settings import read_settings

    plain, settings = read_settings(arguments, {"port": 5000, "tracking.uri": None})
    if plain:
        raise ConfigError("This verb takes no such word.", given=plain[0], allowed="port=..., tracking.uri=...")
    port = int(settings["port"] or 0)
    _check_port(port)
    from sargnn.tracking.mlflow import database_of, default_uri

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
        print(f"{address}  (Ctrl-C ends it)", flush=True)
        server.wait()
        raise SargnnError("MLflow's server ended.", given=_last_line(log))
    except KeyboardInterrupt:
        print()
    finally:
        _end(server)
        log.close()
    return 0


def _last_line(log: IO[bytes]) -> str | None:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else None


def _check_port(port: int) -> None:
    if not 1 <= port <= 65535:
        raise ConfigError("'port' is out of range.", given=port, allowed="1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"The port cannot be used: {error.strerror}.", given=port, hint=f"try another: sargnn ui port={port + 1}"
            ) from error


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


def _end(server: subprocess.Popen[bytes]) -> None:
    """The server and the processes that it started."""
    for number, patience_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(server.pid, number)
            server.wait(patience_s)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
        return
