"""Who is writing a folder: a lock on a file in it, which ends with the process that holds it, whatever happens to that.

On a file system without locks nobody can know; then ``claim`` raises, and what cannot be claimed must not be shared.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = "lock"
_HELD = (errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN)


class Claim:
    """A folder that is this process's to write, until ``release``.

    ``descriptor``: of the locked file. A process that inherits it holds the claim too, so that it ends with the last of them.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def release(self) -> None:
        os.close(self.descriptor)


def claim(folder: Path) -> Claim | None:
    """The claim on a folder; None: another has it, or the folder was removed meanwhile.

    Raises ``OSError`` where the file system has no locks, or the folder cannot be written.
    """
    file = folder / LOCK
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_there(file, descriptor):
            with suppress(OSError):  # a full disk: nobody is told who has it
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return Claim(descriptor)
    except OSError as error:
        if error.errno not in _HELD:
            os.close(descriptor)
            file.unlink(missing_ok=True)
            raise
    os.close(descriptor)
    return None


def _is_there(file: Path, descriptor: int) -> bool:
    """Whether the open file is the one in the folder: who had the claim before may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except OSError:
        return False


def is_claimed(folder: Path) -> bool:
    """Whether a process is writing the folder; False also where nobody can know."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _HELD
    finally:
        os.close(descriptor)
    return False


def holder_of(folder: Path) -> str:
    with suppress(OSError):
        return (folder / LOCK).read_text() or "another process"
    return "another process"


def remove(path: Path) -> None:
    """A file, a link or a folder; none is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_claimed(folder: Path) -> None:
    """Remove a folder that this process has the claim on: the lock last, for from then on others may claim what is there.

    Raises ``OSError`` where something in it cannot be removed.
    """
    for path in folder.iterdir():
        if path.name != LOCK:
            remove(path)
    (folder / LOCK).unlink(missing_ok=True)
    with suppress(OSError):  # another has claimed it
        folder.rmdir()


@contextmanager
def scratch_folder(folder: Path, prefix: str) -> Iterator[Path]:
    """A folder for files that are gone afterwards; if this process is killed, ``sargnn clean`` finds it, and not before."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=prefix, suffix=".tmp") as made:
        held: Claim | None = None
        with suppress(OSError):
            held = claim(Path(made))
        try:
            yield Path(made)
        finally:
            if held is not None:
                held.release()
