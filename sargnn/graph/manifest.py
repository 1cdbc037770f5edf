"""A store's ``manifest.json``, read with care: somebody else may have written it.

    kind, version: what the store holds, and in which form      meta: free, JSON
    files: name -> shape, dtype, bytes, sha256                  sha256: of all the rest
           and file, where that is not NAME.npy: names that no file can have (``file_name``)

Whatever a manifest says, no file outside the store's folder is opened.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from sargnn.errors import StoreError

MANIFEST = "manifest.json"
_LARGEST_BYTES = 1 << 26
_NAME = re.compile(r"[^/\0]+(/[^/\0]+)*")
_SPECIAL = re.compile("[%/\x00-\x1f\x7f\ud800-\udfff]")
LONGEST = 200
"""Bytes of a file's name, without its suffix and what a temporary name adds: 255 are a file system's limit."""
_HASH_DIGITS = 16


@dataclass(frozen=True)
class FileEntry:
    """An array's shape and dtype, and its ``.npy`` file: size, SHA-256 in hex, and path in the store without ``.npy``."""

    shape: tuple[int, ...]
    dtype: np.dtype
    num_bytes: int
    sha256: str
    file: str


def digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def damage_error(store: Path, file: Path, state: str) -> StoreError:
    return StoreError(
        f"The store file '{file}' is damaged: {state}.",
        hint=f"remove the store to have it made again, or copy it anew: rm -r {store}",
    )


def size_inside(store: Path, file: Path) -> int:
    """Bytes of a file of the store.

    Raises ``StoreError`` where it is missing, is no plain file, or lies outside the store: links may not lead out of it.
    """
    try:
        inside = file.resolve(strict=True).is_relative_to(store.resolve(strict=True))
        status = file.stat()
    except FileNotFoundError as error:
        raise damage_error(store, file, "it is missing") from error
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name that no file can have
        raise damage_error(store, file, "it cannot be read") from error
    if not inside:
        raise damage_error(store, file, "it is a link to something outside the store")
    if not stat.S_ISREG(status.st_mode):
        raise damage_error(store, file, "it is no plain file")
    return status.st_size


def read_manifest(store: Path, kind: str, version: int) -> tuple[dict[str, Any], dict[str, FileEntry]]:
    """What a store's manifest says beside its form: ``meta``, and the files by name.

    Raises ``StoreError`` where it is missing or malformed, has a wrong checksum, or is of another kind or version.
    """
    path = store / MANIFEST
    if size_inside(store, path) > _LARGEST_BYTES:
        raise damage_error(store, path, "it is too large for a manifest")
    try:
        content = json.loads(path.read_text())
        actual = (content["kind"], content["version"])
        meta, files = content["meta"], content["files"]
        digest = content.pop("sha256", None)
        right = digest == digest_of(content)
    except RecursionError as error:
        raise damage_error(store, path, "it is nested too deeply") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damage_error(store, path, "it is unreadable or lacks an entry") from error
    if actual != (kind, version):
        raise StoreError(
            f"'{store}' is not a store that this version can read.",
            given=f"kind {actual[0]}, format version {actual[1]}",
            allowed=f"kind {kind}, format version {version}",
            hint=f"remove the folder to have it made again: rm -r {store}",
        )
    if not right:
        raise damage_error(store, path, "its content does not match its checksum")
    if not isinstance(meta, dict) or not isinstance(files, dict):
        raise damage_error(store, path, "its entries 'meta' and 'files' must be mappings")
    return meta, {name: _entry(store, name, entry) for name, entry in files.items()}


def _entry(store: Path, name: str, content: Any) -> FileEntry:
    path = store / MANIFEST
    file = content.get("file", name) if isinstance(content, dict) else name
    if not isinstance(file, str) or not _NAME.fullmatch(file) or {".", ".."} & set(file.split("/")):
        raise damage_error(store, path, f"it names a file that cannot be in the store, {str(file)[:80]!r}")
    with blame_manifest(store, f"of the file '{name[:80]}'"):
        shape, dtype = content["shape"], np.dtype(_a(str, content["dtype"]))
        if dtype.hasobject or dtype.str != content["dtype"] or any(_a(int, length) < 0 for length in _a(list, shape)):
            raise ValueError
        return FileEntry(tuple(shape), dtype, _a(int, content["bytes"]), _a(str, content["sha256"]), file)


def _a(kind: type, value: Any) -> Any:
    """The value, which must be of this very type. Raises ``TypeError``."""
    if type(value) is not kind:
        raise TypeError
    return value


@contextmanager
def blame_manifest(store: Path, what: str) -> Iterator[None]:
    """Errors of code that takes a manifest's content apart become one ``StoreError`` that names the manifest."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, SyntaxError, RecursionError) as error:
        raise damage_error(store, store / MANIFEST, f"what it says {what} cannot be used") from error


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the array in a ``.npy`` file, which may be anything: in C order, without Python objects.

    Raises ``ValueError`` for no header, or that of another array.
    """
    try:
        version = npy_format.read_magic(file)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (tokenize.TokenError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise ValueError("its header is damaged") from error
    if dtype.hasobject or (fortran and len(shape) > 1):
        raise ValueError(f"an array of {dtype} {list(shape)}, Fortran order: {fortran}, is in a form that is not read")
    if any(length < 0 for length in shape):
        raise ValueError(f"its shape is {list(shape)}")
    return shape, dtype


def shape_fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    """Whether an array has as many dimensions as wanted, and their lengths; None: any."""
    return len(shape) == len(wanted) and all(want in (None, have) for want, have in zip(wanted, shape, strict=True))


def file_name(text: str, longest: int = LONGEST) -> str:
    """A name of one file, other for every other text: what a user calls a node type, a relation or a part of a module may hold
    slashes, be empty, or be longer than the ``longest`` bytes in UTF-8. Texts that can be names stay as they are.

    Slashes, control characters and ``%`` become ``%`` and two hex digits a byte; so do the dots of ``.`` and ``..``; a text
    without any character becomes ``%``. What is too long is cut, and ends with ``%~`` and the beginning of its SHA-256.
    """
    escaped = _SPECIAL.sub(lambda match: _escaped(match[0]), text)
    if set(text) == {"."} and len(text) <= 2:
        escaped = _escaped(".") * len(text)
    encoded = escaped.encode()
    if len(encoded) <= longest:
        return escaped or "%"
    end = f"%~{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:_HASH_DIGITS]}"
    return encoded[: longest - len(end)].decode(errors="ignore") + end


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
