"""The command line called in this process: what starts no worker need not pay for an interpreter's start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sargnn.cli.main import main


class Answer(NamedTuple):
    """What a command said; its attributes are those of ``subprocess.CompletedProcess``."""

    returncode: int
    stdout: str
    stderr: str


Sargnn = Callable[..., Answer]


@pytest.fixture
def sargnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sargnn:
    """``sargnn(*arguments, folder=...)``: the command in that folder, or in ``tmp_path``."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str, folder: Path = tmp_path) -> Answer:
        monkeypatch.chdir(folder)
        capsys.readouterr()
        code = main(arguments)
        return Answer(code, *capsys.readouterr())

    return call
