"""README's plan and its tour: every command on a small graph, and word for word where a machine has time for it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.in_process import points_here, sargnn_here
from tests.processes import ROOT

SMALL = ["dataset.num_nodes=600", "model.hidden=16", "epochs=2"]


def tour() -> list[str]:
    text = (ROOT / "README.md").read_text()
    sections = [text[text.index(title) :].split("\n## ")[0] for title in ("## Will it fit?", "## A ten-minute tour")]
    commands = re.findall(r"^    (sargnn .*?)(?:\s+#.*)?$", "\n".join(sections), flags=re.M)
    assert len(commands) >= 7 and commands[0].startswith("sargnn plan ")
    return commands


def test_the_tour_on_a_small_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points_here(monkeypatch, tmp_path)
    for command in tour():
        _, *words = shlex.split(command)
        done = sargnn_here(tmp_path, *words, *(SMALL if words[0] == "train" else ()))
        check(command, done)
    assert (tmp_path / "report.html").read_text().count("<img ") >= 5


@pytest.mark.machine
def test_every_command_word_for_word(tmp_path: Path) -> None:
    environment = {**os.environ, "COLUMNS": "80", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in tour():
        done = subprocess.run(
            command,
            shell=True,
            executable="/bin/bash",
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )
        check(command, done)
    assert (tmp_path / "report.html").read_text().count("<img ") >= 5


def check(command: str, done: subprocess.CompletedProcess[str]) -> None:
    """It succeeded, within 80 columns."""
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert max((len(line) for line in done.stdout.splitlines()), default=0) <= 80, command
