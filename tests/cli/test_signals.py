"""Signals that a command was started to ignore, as under nohup, stay ignored."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from sargnn.cli.sweep import _end_point, as_interrupts
from tests.in_process import kept_handlers

_POINT = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", file=sys.stderr, flush=True)
for _ in range(600):  # a signal between a check for signals and the beginning of a sleep waits until the sleep is over
    time.sleep(0.1)
"""


@kept_handlers()
def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    as_interrupts()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


@kept_handlers()
def test_a_point_that_ignores_interrupts_is_asked_by_another_signal_first() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited, as what a shell starts in the background does
    with subprocess.Popen(
        [sys.executable, "-c", _POINT], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as point:  # fmt: skip
        assert point.stderr is not None and point.stderr.readline() == "ready\n"
        _end_point(point, patience_s=10)
    assert point.returncode == 7
