"""One array of an ``.npz`` file, read from its beginning in as little memory as one likes; nothing is unpickled.

An archive's damage is named with the file, whatever ``zipfile`` raises for it.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.manifest import read_header

ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What ``zipfile`` raises for a damaged archive: ``RuntimeError`` where a flipped bit says that it is encrypted."""
_SKIPPED_BYTES = 1 << 24


class Member:
    """One array of an ``.npz`` file, read from its beginning. A context manager.

    Raises ``DataError``: no such file or array, or one that holds Python objects or is in Fortran's order.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        with ExitStack() as stack, blame_archive(self.path):
            archive = stack.enter_context(zipfile.ZipFile(path))
            try:
                self._file: IO[bytes] = stack.enter_context(archive.open(f"{name}.npy"))
            except KeyError as error:
                held = ", ".join(member.removesuffix(".npy") for member in archive.namelist())
                raise DataError(f"'{path}' holds no array '{name}'.", given=held) from error
            try:
                self.shape, self.dtype = read_header(self._file)
            except ValueError as error:
                raise DataError(f"'{path}' holds '{name}' in a form that is not read: {error}.") from error
            self._open = stack.pop_all()

    def skip(self, entries: int) -> None:
        left = entries * self.dtype.itemsize
        while left:
            left -= len(self._bytes(min(left, _SKIPPED_BYTES)))

    def read(self, entries: int) -> np.ndarray:
        """The next entries, flat."""
        return np.frombuffer(self._bytes(entries * self.dtype.itemsize), self.dtype)

    def finish(self) -> None:
        """All was read: its checksum is compared."""
        with blame_archive(self.path):
            self._file.read(1)

    def _bytes(self, count: int) -> bytes:
        with blame_archive(self.path):
            content = self._file.read(count)
        if len(content) < count:
            raise DataError(f"'{self.path}' is cut off: '{self.name}' ends too early.", given=f"shape {self.shape}")
        return content

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


@contextmanager
def blame_archive(path: Path) -> Iterator[None]:
    """What is wrong with an archive becomes a ``DataError`` that names it."""
    try:
        yield
    except (*ARCHIVE_ERRORS, OSError, ValueError, OverflowError) as error:  # RecursionError is a RuntimeError
        raise DataError(f"'{path}' cannot be read: {str(error) or type(error).__name__}") from error
