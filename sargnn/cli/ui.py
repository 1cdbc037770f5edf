"""``sargnn ui``: MLflow's pages in the browser."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import IO

from sargnn.cli.command_line import CommandLine
from sargnn.cli.signals import as_interrupts
from sargnn.errors import ConfigError, SargnnError

_START_S = 90


def main(line: CommandLine) -> int:
    """Serve until Ctrl-C."""
    settings = line.settings
    port = int(settings["port"] or 0)
    _check_port(port)
    from sargnn.tracking.mlflow.pages import find_runs_page
    from sargnn.tracking.mlflow.store import database_of, default_uri

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
        _end(server)
        log.close()
    return 0


def _last_line(log: IO[bytes]) -> str | None:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else None


def _check_port(port: int) -> None:
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
