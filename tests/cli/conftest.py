"""The command line called in this process, which costs no interpreter's start, and as a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.in_process import sargnn_here
from tests.processes import ROOT, run_command, sargnn_command, started_command

Sargnn = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def sargnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sargnn:
    """``sargnn(*arguments, folder=...)``: the command in that folder, or in ``tmp_path``, in this process."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, folder: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        return sargnn_here(folder, *arguments)

    return call


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``sargnn`` in a process of its own, to its end."""
    return run_command(sargnn_command(*arguments), folder, environment=_environment())


def started(folder: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """``sargnn`` in a process and a session of its own, which end with the block."""
    return started_command(sargnn_command(*arguments), folder, environment=_environment())


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
