"""Ending a process that was started in a session of its own and has processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress


def end_process(process: subprocess.Popen[str], steps: Sequence[tuple[signal.Signals, float]]) -> None:
    """Send one signal after the other, each with seconds to wait, until it has ended; SIGKILL goes to its whole group."""
    for number, wait_s in steps:
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=wait_s)
            return
