"""Locks between processes, as files."""

from __future__ import annotations

import inspect
from pathlib import Path

from filelock import BaseFileLock, FileLock


def file_lock(path: Path, timeout_s: float = -1) -> BaseFileLock:
    """A lock that ends with its process, whatever happens to that. ``acquire`` waits ``timeout_s``; -1: for ever.

    ``acquire`` raises ``filelock.Timeout`` if another process holds it, and ``OSError`` or ``NotImplementedError`` on a file
    system without locks: never does a file whose existence is the lock take its place, for that would outlive a killed process.
    """
    options = {"fallback_to_soft": False} if "fallback_to_soft" in inspect.signature(FileLock.__init__).parameters else {}
    lock: BaseFileLock = FileLock(path, timeout=timeout_s, thread_local=False, **options)  # type: ignore[arg-type]
    return lock
