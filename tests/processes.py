"""Starting commands in tests so that nothing of them is left behind, whatever fails.

Each command runs in a session of its own with the default actions of signals: a test that sends an interrupt works also where
the tests themselves were started with interrupts ignored, as in a shell's background or under nohup, for that is inherited.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
MARK = "SARGNN_TEST_PROCESS"
"""An environment variable that everything carries which a command of a test has started, also in other sessions."""
_RESTORED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)
_PATIENCE_S = 10.0


def sargnn_command(*arguments: str) -> list[str]:
    """``sargnn`` with these words, by this interpreter."""
    return [sys.executable, "-m", "sargnn.cli.main", *arguments]


def search_path(first: Path) -> str:
    """The interpreter's search path: this tree, or a copy of it, before what the tests were started with."""
    others = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and Path(one) != ROOT]
    return os.pathsep.join([str(first), *others])


def run_command(
    command: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raises ``subprocess.TimeoutExpired``; what it started has ended then, too."""
    with started_command(command, folder, environment=environment) as process:
        stdout, stderr = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(list(command), process.returncode, stdout, stderr)


@contextmanager
def started_command(
    command: Sequence[str],
    folder: Path,
    *,
    environment: Mapping[str, str] | None = None,
    ignored: Sequence[signal.Signals] = (),
    limit: Callable[[], None] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[str]]:
    """A running command with its output in pipes; at the end of the block it and all that it has started are killed.

    Args:
        environment: its variables; the tests' own if not given.
        ignored: signals that it starts with ignored, as under nohup.
        limit: called in the new process before the command, such as to limit its memory.
        stdin: what it reads, as ``subprocess.Popen`` takes it.

    Raises:
        AssertionError: a process of it cannot be ended.
    """
    mark = f"{os.getpid()}.{time.monotonic_ns()}"

    def prepare() -> None:
        for number in _RESTORED:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if limit is not None:
            limit()

    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**(os.environ if environment is None else environment), MARK: mark},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=prepare,
    )
    try:
        yield process
    finally:
        end_family(mark)
        process.wait(_PATIENCE_S)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def family(mark: str = "") -> list[psutil.Process]:
    """The living processes that carry this mark; without one, those that a command of this test process has started."""
    wanted = f"{MARK}={mark or f'{os.getpid()}.'}".encode()
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            words = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if any(word == wanted if mark else word.startswith(wanted) for word in words):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def end_family(mark: str = "") -> list[psutil.Process]:
    """Kill those of ``family``, and who is born meanwhile; which they were. Raises ``AssertionError`` if one stays."""
    killed: dict[int, psutil.Process] = {}
    deadline = time.monotonic() + _PATIENCE_S
    while alive := family(mark):
        assert time.monotonic() < deadline, f"these processes cannot be ended: {alive}"
        for process in alive:
            killed[process.pid] = process
            with suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)  # not psutil's wait, which would take a child's exit code from who started it
    return list(killed.values())
