"""README's plan and its tour, word for word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tour() -> list[str]:
    text = (ROOT / "README.md").read_text()
    sections = [text[text.index(title) :].split("\n## ")[0] for title in ("## Will it fit?", "## A ten-minute tour")]
    commands = re.findall(r"^    (sargnn .*?)(?:\s+#.*)?$", "\n".join(sections), flags=re.M)
    assert len(commands) >= 7 and commands[0].startswith("sargnn plan ")
    return commands


def test_every_command_of_the_tour(tmp_path: Path) -> None:
    environment = {**os.environ, "COLUMNS": "80", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in tour():
        done = subprocess.run(
            command, shell=True, executable="/bin/bash", cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert max((len(line) for line in done.stdout.splitlines()), default=0) <= 80, command
    assert (tmp_path / "report.html").read_text().count("<img ") >= 5
