"""The first page's commands: each on a small graph, and word for word where a machine has time for it; README's module."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sargnn.comm.group import Group
from sargnn.config.models import CustomSettings
from tests.graphs import nasty_graph
from tests.in_process import points_here, sargnn_here
from tests.parity import cases
from tests.pool import pool
from tests.processes import ROOT

SMALL = ["dataset.num_nodes=600", "epochs=2"]


def tour(folder: Path) -> list[str]:
    """The first page's commands; its module is written into the folder."""
    text = (ROOT / "docs" / "start.md").read_text()
    (module,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
    (folder / "net.py").write_text(module)
    blocks = re.findall(r"^```bash\n(.*?)^```", text, flags=re.M | re.S)
    commands = re.findall(r"^(sargnn .*?)(?:\s+#.*)?$", "\n".join(blocks), flags=re.M)
    assert len(commands) >= 7 and commands[0] == "sargnn info"
    return commands


def test_the_module_of_the_readme(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    assert "model=custom model.target=net.py:Net world=4" in text
    (module,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
    (tmp_path / "net.py").write_text(module)
    model = CustomSettings("custom", target=f"{tmp_path / 'net.py'}:Net")
    configs = [cases.run_config(model, mode="sar", world=world, partitioner="metis", epochs=2) for world in (1, 4)]
    alone = cases.curve(Group.single(), configs[0], nasty_graph())
    (together, *_) = pool(4)(cases.curve, configs[1], nasty_graph())
    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-8) and alone["losses"][0] != alone["losses"][1]


def test_the_tour_on_a_small_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points_here(monkeypatch, tmp_path)
    for command in tour(tmp_path):
        _, *words = shlex.split(command)
        done = sargnn_here(tmp_path, *words, *(SMALL if words[0] == "train" else ()))
        check(command, done)
    assert (tmp_path / "report.html").read_text().count("<img ") >= 5


@pytest.mark.machine
def test_every_command_word_for_word(tmp_path: Path) -> None:
    environment = {**os.environ, "COLUMNS": "80", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in tour(tmp_path):
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


def test_the_workstation_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of a cluster and of one machine is what its command prints, whatever this machine takes for libraries."""
    from sargnn.memory import plan_run, runtime
    from sargnn.memory.plan_worker import Runtime

    text = " ".join((ROOT / "README.md").read_text().split())
    (command,) = re.findall(r"sargnn (plan dataset=ogbn-papers100M .*?) ```", text)
    said = re.search(
        r"(\d+) GB for each of 64 workers.* (\d+) GB must be in memory, (\d+) GB lie on its \[disk\].*? moves ([\d.]+) TB", text
    )
    assert said is not None
    monkeypatch.setattr(runtime, "measured_runtime", lambda *_, **__: Runtime(200_000_000, 0))
    monkeypatch.setattr(plan_run, "disk_rate", lambda _: 1e9)
    points_here(monkeypatch, tmp_path)
    done = sargnn_here(tmp_path, *shlex.split(command))
    printed = re.search(
        r"sar +~64 +([\d.]+) GB.*at least ([\d.]+) GB must be in memory.*?([\d.]+) GB on disk, ([\d.]+) TB",
        done.stdout + done.stderr,
        re.S,
    )
    assert printed is not None, done.stdout + done.stderr
    assert [float(number) for number in said.groups()] == pytest.approx(
        [float(number) for number in printed.groups()], rel=0.06
    )
