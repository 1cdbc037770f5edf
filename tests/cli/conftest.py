"""The command line called in this process, which costs no interpreter's start, and as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.in_process import sargnn_here

Sargnn = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def sargnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sargnn:
    """``sargnn(*arguments, folder=...)``: the command in that folder, or in ``tmp_path``, in this process."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, folder: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        return sargnn_here(folder, *arguments)

    return call


def run(folder: Path, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """``sargnn`` in a process of its own, to its end."""
    with started(folder, *arguments) as process:
        stdout, stderr = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``sargnn`` in a process and a session of its own, which end with the block.

    It hears interrupts also where these tests do not, as in a shell's background.
    """

    def hear() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, "-m", "sargnn.cli.main", *arguments], cwd=folder, text=True, start_new_session=True, preexec_fn=hear,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
