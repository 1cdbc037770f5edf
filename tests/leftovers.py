"""Whatever the tests start ends with them: processes that are still alive at the end of the suite fail it, and are ended.

A process is the suite's if it descends from it, or if its environment carries the suite's mark, which also finds those whose
parents are gone. ``tests/conftest.py`` marks a session and looks at its end.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress

import psutil

MARK = "SARGNN_TEST_SESSION"
# Python's own, which end with the process that they serve.
_SERVANTS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def mark_session() -> str:
    """Mark this process's environment, which all that it starts inherits; the mark."""
    os.environ[MARK] = uuid.uuid4().hex
    return os.environ[MARK]


def find_leftovers(mark: str, grace_s: float = 10.0) -> list[psutil.Process]:
    """Processes of the suite, other than this one and its servants, that are still alive after ``grace_s`` seconds."""
    deadline = time.monotonic() + grace_s
    while (found := [one for one in psutil.process_iter() if _is_left(one, mark)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def end(processes: list[psutil.Process]) -> list[str]:
    """Kill processes; a line on each: its number and what it ran."""
    lines = []
    for process in processes:
        with suppress(psutil.Error):
            lines.append(f"process {process.pid}: {' '.join(process.cmdline())[:200] or process.name()}")
            process.kill()
    psutil.wait_procs(processes, timeout=5)
    return lines


def _is_left(process: psutil.Process, mark: str) -> bool:
    own = os.getpid()
    with suppress(psutil.Error):
        if process.pid == own or process.status() == psutil.STATUS_ZOMBIE:
            return False
        parents = [parent.pid for parent in process.parents()]
        served_here = process.ppid() == own and any(word in " ".join(process.cmdline()) for word in _SERVANTS)
        return not served_here and (own in parents or process.environ().get(MARK) == mark)
    return False
