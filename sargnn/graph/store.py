"""Stores: folders of ``.npy`` files with a ``manifest.json`` that says what they are and how to know they are whole.

A store is written under a temporary name beside its final one, checked and flushed, then renamed: a half-written
store never has a final name, and of two processes that make the same store one wins and the other uses the winner's.

What the manifest says: ``graph.manifest``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import DTypeLike

from sargnn.errors import StoreError
from sargnn.graph.claim import LOCK, Claim, claim
from sargnn.graph.manifest import (
    MANIFEST,
    FileEntry,
    damage_error,
    digest_of,
    file_name,
    read_header,
    read_manifest,
    shape_fits,
    size_inside,
)

_CHUNK_BYTES = 1 << 22


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _file_of(name: str) -> str:
    """Where a store has an array, without ``.npy``: all behind the first slash is one file's name."""
    folder, slash, rest = name.partition("/")
    return f"{folder}/{file_name(rest)}" if slash else file_name(name)


class AppendedArray:
    """A growing ``.npy`` file, flat or of rows; made by ``StoreWriter.append``."""

    def __init__(self, file: BinaryIO, dtype: np.dtype, row: tuple[int, ...]) -> None:
        self._file, self.dtype, self._row, self._length = file, dtype, row, 0
        self._write_header()

    def write(self, piece: np.ndarray) -> None:
        assert piece.dtype == self.dtype and piece.shape[1:] == self._row
        piece.tofile(self._file)
        self._length += len(piece)

    def finish(self) -> None:
        """Write the length that came out."""
        self._file.flush()
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        # NumPy leaves room for a growing shape, so the header has the same size whatever the length.
        shape = (self._length, *self._row)
        content = {"descr": npy_format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        npy_format.write_array_header_1_0(self._file, content)
        self._file.flush()


def map_new(file: Path, shape: tuple[int, ...], dtype: np.dtype | type) -> np.memmap:
    """A new ``.npy`` file, memory-mapped. A disk that is full says so here, not by a signal at the first write to a page."""
    array = npy_format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
    with file.open("r+b") as opened:
        os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
    return array


def temporary_beside(path: Path) -> Path:
    """A folder of this process's own, for what is to be at ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")


def folder_error(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"The folder '{folder}' cannot be written: {error.strerror}.", hint="choose another place with store_dir=FOLDER"
    )


class StoreWriter:
    """Writes a store; use as a context manager. Leaving it normally publishes the store, by an exception discards it.

    Args:
        path: final folder of the store.
        kind: ``dataset`` or ``partition``.
        version: format version, checked by readers.
        into: a folder on the same disk that is written in place of one of this writer's own. It may hold some of the store's
            files, which ``adopt`` takes; an exception leaves it as it is.

    Attributes:
        folder: the one that is written, on the disk that the store will be on.
    """

    def __init__(self, path: Path, kind: str, version: int, into: Path | None = None) -> None:
        self.path, self.kind, self.version = path, kind, version
        self.meta: dict[str, Any] = {}
        self._names: list[str] = []
        self._entries: dict[str, dict[str, Any]] = {}
        self._keeps = into is not None
        self._claim: Claim | None = None
        self.folder = into or temporary_beside(path)

    def __enter__(self) -> StoreWriter:
        try:
            self.folder.mkdir(parents=True, exist_ok=self._keeps)
        except OSError as error:
            raise folder_error(self.path.parent, error) from error
        if not self._keeps:
            with suppress(OSError):  # it only tells others that this folder is in use
                self._claim = claim(self.folder)
        return self

    def put(self, name: str, array: np.ndarray) -> None:
        """Write one array under ``name``: any text, behind the name of a folder and a slash where there is one."""
        target = self._target(name)
        np.save(target, np.asarray(array, order="C"))

    def create(self, name: str, shape: tuple[int, ...], dtype: np.dtype | type) -> np.memmap:
        """A memory-mapped array to fill piece by piece, so that nothing of its size is ever held."""
        if 0 in shape:
            raise ValueError(f"cannot map an empty array: {name} {shape}")
        return map_new(self._target(name), shape, dtype)

    @contextmanager
    def append(self, name: str, dtype: np.dtype | type, row: tuple[int, ...] = ()) -> Iterator[AppendedArray]:
        """An array of entries of a shape, whose length is known only at the end: a context manager to ``write`` pieces to.

        Unlike one that is mapped, it never counts in the process's memory.
        """
        with self._target(name).open("wb") as file:
            array = AppendedArray(file, np.dtype(dtype), row)
            yield array
            array.finish()

    def _target(self, name: str) -> Path:
        target = self.folder / f"{_file_of(name)}.npy"
        target.parent.mkdir(exist_ok=True)
        self._names.append(name)
        return target

    def seal(self, report: Callable[[int], None] = lambda _: None) -> dict[str, dict[str, Any]]:
        """Bring to the disk what was written since the last call, reporting bytes; its entries in the manifest."""
        sealed = {}
        for name in self._names:
            path_inside = _file_of(name)
            path = self.folder / f"{path_inside}.npy"
            with path.open("rb") as file:
                shape, dtype = read_header(file)
                os.fsync(file.fileno())
            size = path.stat().st_size
            sealed[name] = {"shape": list(shape), "dtype": dtype.str, "bytes": size, "sha256": sha256_of(path)}
            if path_inside != name:
                sealed[name]["file"] = path_inside
            report(size)
        self._names.clear()
        self._entries |= sealed
        return sealed

    def adopt(self, entries: Mapping[str, dict[str, Any]]) -> None:
        """Take files that another writer has sealed in the same folder."""
        self._entries |= entries

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._publish()
        except OSError as failed:
            self._discard()
            raise self._write_error(failed) from failed
        else:
            if kind is not None:
                self._discard()
            if isinstance(error, OSError):
                raise self._write_error(error) from error
        finally:
            if self._claim is not None:
                self._claim.release()

    def _discard(self) -> None:
        if not self._keeps:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _write_error(self, error: OSError) -> StoreError:
        # NumPy's own word for a write that was cut short has no number.
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or (error.errno is None and "written" in str(error))
        folder = self.path.parent
        what = f"free some space where {folder} lies" if full else f"see whether {folder} can be written"
        and_then = ": the same command goes on where it was" if self._keeps else ""
        return StoreError(
            f"{'The disk is full: the' if full else 'The'} {self.kind} store '{self.path}' was not written.",
            given=str(error),
            hint=f"{what}{and_then}, or choose another place",
        )

    def _publish(self) -> None:
        self.seal()
        manifest: dict[str, Any] = {"kind": self.kind, "version": self.version, "meta": self.meta, "files": self._entries}
        manifest["sha256"] = digest_of(json.loads(json.dumps(manifest)))
        with (self.folder / MANIFEST).open("w") as out:
            json.dump(manifest, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        (self.folder / LOCK).unlink(missing_ok=True)
        try:
            self.folder.rename(self.path)
        except OSError:
            if not (self.path / MANIFEST).exists():
                raise
            self._discard()  # another process was faster
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Store:
    """A store that is open for reading. Opening checks the manifest and every file's size; ``verify`` also checks contents.

    Args:
        kind, version: what the caller can read.
        only: how the names of the files begin that the caller needs; others need not be here.

    Raises ``StoreError``: no manifest, another kind or version, a malformed entry, a missing or truncated file, or one that
    lies outside the store; the file is named.
    """

    def __init__(self, path: Path, kind: str, version: int, only: str = "") -> None:
        self.path = path
        self.meta, self.files = read_manifest(path, kind, version)
        for name, entry in self.files.items():
            if not name.startswith(only):
                continue
            size = size_inside(path, self._file(name))
            if size != entry.num_bytes:
                raise damage_error(path, self._file(name), f"it has {size} bytes instead of {entry.num_bytes}")

    def _file(self, name: str) -> Path:
        return self.path / f"{self._entry(name).file}.npy"

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Compare the checksums of the named files (all, if not given). Raises ``StoreError`` naming the first bad one."""
        for name in self.files if names is None else names:
            wanted = self._entry(name).sha256
            if sha256_of(self._file(name)) != wanted:
                raise damage_error(self.path, self._file(name), "its content does not match its checksum")

    def dtype(self, name: str) -> np.dtype:
        """As the manifest says. Raises ``StoreError`` where there is no such array."""
        return self._entry(name).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def array(self, name: str, dtype: DTypeLike | None = None, shape: Sequence[int | None] | None = None) -> np.ndarray:
        """One array, memory-mapped; what is written to it stays in memory (copy on write).

        ``dtype``, ``shape``: what it must have, None for any; a length of the shape may be None, too. Raises ``StoreError``
        where there is no such array, it is another one than the manifest says, or not what it must be.
        """
        entry, file = self._entry(name), self._file(name)
        try:
            with file.open("rb") as content:
                header = read_header(content)
            if header != (entry.shape, entry.dtype):
                raise ValueError("shape or dtype")
            array = np.zeros(*header) if 0 in entry.shape else npy_format.open_memmap(file, mode="c")
        except (OSError, ValueError, OverflowError) as error:
            raise damage_error(self.path, file, "it does not hold the array that the manifest describes") from error
        if (shape is not None and not shape_fits(array.shape, shape)) or (dtype is not None and array.dtype != dtype):
            wanted = [np.dtype(dtype).name if dtype is not None else "", *([str(list(shape))] if shape is not None else [])]
            raise damage_error(
                self.path, file, f"it holds {array.dtype.name} {list(array.shape)} instead of {' '.join(wanted).strip()}"
            )
        return array

    def _entry(self, name: str) -> FileEntry:
        if name not in self.files:
            raise damage_error(self.path, self.path / MANIFEST, f"it does not name the file '{name}'")
        return self.files[name]

    @property
    def content_hash(self) -> str:
        """16 hex digits over the files' checksums: the same content gives the same hash wherever it lies."""
        digest = hashlib.sha256()
        for name in sorted(self.files):
            digest.update(f"{name}:{self.files[name].sha256};".encode())
        return digest.hexdigest()[:16]
