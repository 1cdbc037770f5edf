"""What ends a command from outside ends it as Ctrl-C does."""

from __future__ import annotations

import signal


def as_interrupts() -> None:
    """From now on SIGTERM and SIGHUP raise ``KeyboardInterrupt``, so that what was started is ended too.

    A signal that this process was started to ignore, as SIGHUP under nohup, stays ignored.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
