"""A partition store that is being made, so that who is interrupted goes on where it was.

A hidden folder beside the store, under a name that follows from the store's, which only one process at a time has:

    lock                        held by who makes the store, and by its processes (``graph.claim``)
    assignment.npy, .json       each node's part
    orders/003.npy, .json       part 3's nodes in their order, as places among its nodes by original id
    parts/003.json              that part 3 is written, and its figures
    store/                      becomes the store
    ground/                     what all parts are cut on, made anew each time (``partition.ground``)

A ``.json`` is a record: it is written once its files are on the disk, and holds their sizes and checksums, what they followed
from, and its own checksum. Files without a whole record, or that do not fit it, are made again.

Letters: N nodes, P parts.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.errors import StoreError
from sargnn.graph.claim import LOCK, Claim, claim, holder_of, remove_claimed
from sargnn.graph.manifest import digest_of
from sargnn.graph.store import folder_error, sha256_of, temporary_beside
from sargnn.steps import step

_ENDING = ".unfinished.tmp"
_LOOK_S = 0.3
Entries = dict[str, dict[str, Any]]


def unfinished_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}{_ENDING}")


@contextmanager
def claim_unfinished(path: Path) -> Iterator[Unfinished | None]:
    """The folder of the store at ``path``, for this process alone; None: the store is there, made by another process meanwhile.

    Waits for a process that makes the same store. On a file system without locks the folder is one of this process's own, and
    nothing is gone on with. The folder goes once the store is there, or nothing was found that is worth keeping. Raises
    ``StoreError`` where it cannot be written.
    """
    folder = unfinished_beside(path)
    held: Claim | None = None
    while held is None and not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise folder_error(path.parent, error) from error
        try:
            held = claim(folder)
        except OSError:
            with suppress(OSError):
                folder.rmdir()
            folder = temporary_beside(path)
            folder.mkdir(parents=True)
            break
        if held is None:
            step(f"waiting for {holder_of(folder)}, which makes this store")
            time.sleep(_LOOK_S)
    try:
        yield None if path.exists() else Unfinished(folder, held)
    finally:
        if held is not None:
            if path.exists() or not record_file(folder, "assignment").exists():
                remove_claimed(folder)
            held.release()
        elif folder != unfinished_beside(path):
            shutil.rmtree(folder, ignore_errors=True)


def has_assignment(path: Path) -> bool:
    """Whether what an interrupted command left for a store has each node's part."""
    return record_file(unfinished_beside(path), "assignment").exists()


class Unfinished:
    """What there is of an unfinished store, in ``folder``, that of the ``store``, and ``descriptors`` that hold the claim."""

    def __init__(self, folder: Path, held: Claim | None) -> None:
        self.folder, self.store = folder, folder / "store"
        self.descriptors = [] if held is None else [held.descriptor]
        known = {LOCK, "assignment.npy", "assignment.json", "orders", "parts", "store"}
        for stale in folder.iterdir():
            if stale.name not in known:
                remove(stale)

    @property
    def ground(self) -> Path:
        """A folder for arrays that need not outlive this process."""
        folder = self.folder / "ground"
        folder.mkdir(exist_ok=True)
        return folder

    def keep_assignment(self, assignment: np.ndarray) -> None:
        """int32 [N]; what followed from another is forgotten."""
        for stale in (*(self.folder / name for name in ("orders", "parts", "store")), self.folder / "assignment.json"):
            remove(stale)
        self.store.mkdir()
        keep_array(self.folder, "assignment", assignment, of="")

    def open_assignment(self) -> np.ndarray:
        return np.asarray(np.load(self.folder / "assignment.npy", mmap_mode="c"))

    def find_assignment(self, num_nodes: int, world: int) -> np.ndarray | None:
        """What was kept, int32 [N], memory-mapped; None where nothing was that is whole."""
        if read_record(self.folder, "assignment", of="") is None:
            return None
        assignment = self.open_assignment()
        fits = assignment.shape == (num_nodes,) and assignment.dtype == np.int32
        return assignment if fits and 0 <= assignment.min() and assignment.max() < world else None

    def find_whole(self, kind: str, parts: Sequence[int], of: str, threads: int) -> dict[int, dict[str, Any]]:
        """The records of the parts whose files are whole, of ``orders`` or ``parts``."""
        folder = self.folder / kind
        files = self.store if kind == "parts" else folder

        def look(p: int) -> dict[str, Any] | None:
            return read_record(folder, name_of(p), of, files)

        there = [p for p in parts if record_file(folder, name_of(p)).exists()]
        records: dict[int, dict[str, Any]] = {}
        with ThreadPoolExecutor(threads) as pool:
            try:
                for p, record in zip(there, pool.map(look, there), strict=True):
                    step("checking what was done before", len(records), len(there))
                    if record is not None:
                        records[p] = record
            finally:
                pool.shutdown(cancel_futures=True)
        return records

    def read_all(self, kind: str, parts: Sequence[int], of: str) -> dict[int, dict[str, Any]]:
        """The records of parts that were finished just now, whose files need not be looked at again. Raises ``StoreError``
        where one is not there.
        """
        records = {p: read_record(self.folder / kind, name_of(p), of, look=False) for p in parts}
        missing = [p for p, record in records.items() if record is None]
        if missing:
            raise StoreError(f"What was written of part {missing[0]} is not there any more.", given=str(self.folder))
        return {p: record for p, record in records.items() if record is not None}


def name_of(p: int) -> str:
    return f"{p:03d}"


def record_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def keep_array(folder: Path, name: str, array: np.ndarray, of: str) -> None:
    """Write an array and its record. ``of``: what the array followed from."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.npy"
    with file.open("wb") as out:
        np.save(out, array)
        out.flush()
        os.fsync(out.fileno())
    write_record(folder, name, of, {name: {"bytes": file.stat().st_size, "sha256": sha256_of(file)}})


def write_record(folder: Path, name: str, of: str, entries: Entries, **more: Any) -> None:
    """Say that files are whole and on the disk."""
    folder.mkdir(exist_ok=True)
    content = json.loads(json.dumps({"of": of, "files": entries, **more}))
    file = record_file(folder, name)
    temporary = file.with_suffix(".new")
    with temporary.open("w") as out:
        json.dump(content | {"digest": digest_of(content)}, out)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def read_record(folder: Path, name: str, of: str, files: Path | None = None, *, look: bool = True) -> dict[str, Any] | None:
    """A record whose files are as it says; None where there is no such.

    Args:
        files: the folder that they are in, where it is another.
        look: at the files, too.
    """
    try:
        content = json.loads(record_file(folder, name).read_text())
        digest = content.pop("digest")
        if digest != digest_of(content) or content["of"] != of:
            return None
        for stem, entry in content["files"].items() if look else ():
            file = (files or folder) / f"{stem}.npy"
            if file.stat().st_size != entry["bytes"] or sha256_of(file) != entry["sha256"]:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return content


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
