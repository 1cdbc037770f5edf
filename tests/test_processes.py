"""What ``tests.processes`` starts ends, whatever it does; and hears signals, whatever the tests were started with."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from tests.processes import family, run_command, started_command

# A grandchild in a session of its own, which ignores what can be ignored, as a daemon would.
DAEMON = """
import signal, subprocess, sys, time
child = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; print('up', flush=True); time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, start_new_session=True)
process.stdout.readline()
print("started", flush=True)
time.sleep({seconds})
"""


def test_nothing_is_left_when_a_test_fails_in_the_block(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), started_command([sys.executable, "-c", DAEMON.format(seconds=600)], tmp_path) as one:
        assert one.stdout is not None and one.stdout.readline() == "started\n"
        assert len(family()) == 2
        raise ZeroDivisionError
    assert family() == [] and one.returncode == -signal.SIGKILL


def test_nothing_is_left_of_a_command_that_ended(tmp_path: Path) -> None:
    with started_command([sys.executable, "-c", DAEMON.format(seconds=0)], tmp_path) as one:
        one.wait(60)
        assert len(family()) == 1
    assert family() == []


def test_signals_have_their_default_actions(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
        assert run_command([sys.executable, "-c", code], tmp_path).stdout == "True\n"
        with started_command([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path, ignored=[signal.SIGINT]) as one:
            time.sleep(0.5)
            one.send_signal(signal.SIGINT)
            time.sleep(0.5)
            assert one.poll() is None
    finally:
        signal.signal(signal.SIGINT, before)
