"""Processes that work for one other: they end with it, and what ended them can be said."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have Linux end this process when process ``parent``, which started it, ends, however that does; at once if it is gone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)


def reason_of_end(code: int, said: str) -> str:
    """Why a process ended, from its exit code and the last line that it wrote."""
    last = said.strip().splitlines()[-1:]
    ended = (
        f"ended by signal {-code}" + (", as where memory is short" if code == -9 else "") if code < 0 else f"exit code {code}"
    )
    return " ".join([ended, *last])
