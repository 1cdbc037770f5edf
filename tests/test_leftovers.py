"""The check at the end of the suite, and the suite where interrupts are ignored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import leftovers

ROOT = Path(__file__).parent.parent
# Two generations, so that the sleeper's parent is gone when the tests end.
LEAVES = """
import os, subprocess, sys

def test_leaves_a_process_behind():
    code = "import os, subprocess; print(subprocess.Popen(['sleep', '600'], stdout=-3, stderr=-3).pid)"  # -3: DEVNULL
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True)
    with open("pid", "w") as file:
        file.write(done.stdout)
"""
INTERRUPTS = """
import signal, subprocess

def test_is_interrupted():
    child = subprocess.Popen(["sleep", "600"])
    child.send_signal(signal.SIGINT)
    try:
        assert child.wait(timeout=20) == -signal.SIGINT
    finally:
        child.kill()
"""


def _run(folder: Path, text: str, *shell: str) -> subprocess.CompletedProcess[str]:
    (folder / "tests").symlink_to(ROOT / "tests")  # the conftest is a plugin here
    (folder / "test_it.py").write_text(text)
    command = [*shell, sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "test_it.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop(leftovers.MARK, None)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.long
def test_a_process_left_behind_fails_the_suite_and_is_ended(tmp_path: Path) -> None:
    done = _run(tmp_path, LEAVES)
    pid = int((tmp_path / "pid").read_text())
    assert "1 passed" in done.stdout and done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert f"process {pid}: sleep 600" in done.stdout
    assert not psutil.pid_exists(pid)


def test_what_ends_is_not_left() -> None:
    mark = "of-a-session-of-its-own"
    child = subprocess.Popen(["sleep", "60"], env=os.environ | {leftovers.MARK: mark}, start_new_session=True)
    try:
        assert child.pid in [one.pid for one in leftovers.find_leftovers(mark, grace_s=0)]
    finally:
        child.kill()
        child.wait()
    assert child.pid not in [one.pid for one in leftovers.find_leftovers(mark, grace_s=0)]


def test_interrupts_reach_what_the_tests_start_where_the_suite_ignores_them(tmp_path: Path) -> None:
    """As under nohup and in a shell's background."""
    ignoring = ["sh", "-c", 'trap "" INT HUP QUIT; exec "$@"', "sh"]
    done = _run(tmp_path, INTERRUPTS, *ignoring)
    assert done.returncode == 0, done.stdout
