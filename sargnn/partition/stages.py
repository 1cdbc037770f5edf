"""From an assignment to the parts of a store: nodes are ordered inside parts, then parts are written.

Both are done part by part by a crew (``partition.crew``). What is finished is kept, so that who is interrupted goes on where it
was: in a hidden folder beside the store, under a name that follows from the store's, which only one process at a time has:

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

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.config.run import parts_of
from sargnn.errors import StoreError
from sargnn.graph.claim import LOCK, Claim, claim, holder_of, remove, remove_claimed
from sargnn.graph.dataset import group_by, open_dataset
from sargnn.graph.manifest import digest_of
from sargnn.graph.schema import Schema
from sargnn.graph.store import StoreWriter, folder_error, sha256_of, temporary_beside
from sargnn.partition.crew import Crew, Job, do_parts
from sargnn.partition.cut import Cutter
from sargnn.partition.ground import lay_ground, make_array, open_ground, places_of
from sargnn.partition.memory import available_bytes, ordering_bytes, part_edges, writing_bytes
from sargnn.partition.order import KaMinPar, Members, order_part
from sargnn.partition.quality import PartFigures, partition_stats
from sargnn.partition.sort_edges import EDGE_BYTES, Report
from sargnn.partition.store import FORMAT_VERSION, PartitionStats
from sargnn.partition.write import put_send_lists, write_part
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


_GROUPED = "grouped"


def order_parts(
    work: Unfinished, path: Path, world: int, how: str, threads: int | None, crew: Crew
) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of all parts in their order, as ``order.order_nodes`` gives them, memory-mapped.

    Args:
        work: keeps the assignment.
        path: the dataset's store.
        how: ``locality`` or ``original``.
        threads: of KaMinPar, which then finds the clusters; None: METIS does.
    """
    step("ordering nodes")
    dataset = open_dataset(path, verify=False)
    assignment = work.open_assignment()
    offsets, grouped = group_by(assignment, world)
    nodes = make_array(work.ground, "nodes", grouped.shape, np.int64)
    nodes[:] = grouped
    if how == "original":
        return offsets, nodes
    np.save(work.ground / f"{_GROUPED}.npy", grouped)
    np.save(work.ground / f"{_GROUPED}_offsets.npy", offsets)
    places_of(grouped, work.ground, f"{_GROUPED}_place")
    of, parts = _digest(assignment), range(world)
    records = work.find_whole("orders", parts, of, crew.most)
    edges = part_edges(dataset, offsets, grouped)
    del grouped
    left = [p for p in parts if p not in records]
    part_bytes = ordering_bytes(dataset, int(edges.max()), int(np.diff(offsets).max()), threads is not None)
    processes = crew.size(len(left), int(edges[left].sum()), part_bytes, available_bytes())
    settings = {
        "dataset": str(path),
        "folder": str(work.folder),
        "of": of,
        "threads": None if threads is None else max(1, threads // processes),
    }
    sizes, before = {p: 1 + int(edges[p]) for p in left}, sum(1 + int(edges[p]) for p in records)
    do_parts("order", settings, "ordering nodes", sizes, before, processes, crew)
    for p in parts:
        own = nodes[offsets[p] : offsets[p + 1]]
        own[:] = own[np.load(work.folder / "orders" / f"{name_of(p)}.npy")]
    for name in (_GROUPED, f"{_GROUPED}_offsets", f"{_GROUPED}_place"):
        (work.ground / f"{name}.npy").unlink()
    return offsets, nodes


def join_parts(schema: Schema, offsets: np.ndarray, nodes: np.ndarray, processes: int) -> tuple[np.ndarray, np.ndarray]:
    """The parts of each process as one, in their order, of a typed graph type by type. Changes ``nodes``."""
    world = len(offsets) - 1
    joined = offsets[[0, *(parts_of(process, processes, world).stop for process in range(processes))]]
    if schema.typed:
        for first, last in pairwise(joined):
            own = nodes[first:last]
            own[:] = own[np.argsort(schema.types_of(own), kind="stable")]
    return joined, nodes


def open_order(settings: dict[str, Any]) -> Job:
    folder, threads = Path(settings["folder"]), settings["threads"]
    dataset = open_dataset(Path(settings["dataset"]), verify=False)
    names = (f"{_GROUPED}_offsets", _GROUPED, f"{_GROUPED}_place")
    members = Members(*(np.asarray(np.load(folder / "ground" / f"{name}.npy", mmap_mode="c")) for name in names))
    kaminpar = None if threads is None else KaMinPar(folder, threads)

    def order(p: int, report: Report) -> None:
        places = order_part(dataset, members, p, kaminpar)
        places = np.arange(len(members.own(p))) if places is None else places
        keep_array(folder / "orders", name_of(p), places.astype(np.int32), settings["of"])

    return order


def cut_parts(
    work: Unfinished, writer: StoreWriter, path: Path, offsets: np.ndarray, nodes: np.ndarray, crew: Crew
) -> PartitionStats:
    """Write all parts, as ``order_parts`` gives them, of the dataset's store at ``path`` into the unfinished store."""
    dataset = open_dataset(path, verify=False)
    step("counting edges")
    ground, world = lay_ground(dataset, offsets, nodes, work.ground), len(offsets) - 1
    of, parts = _digest(offsets, nodes), range(world)
    records = work.find_whole("parts", parts, of, crew.most)
    edges = part_edges(dataset, offsets, nodes)
    sizes = {}  # in bytes, as ``sort_edges``, ``put_features`` and ``StoreWriter.seal`` report them
    for p in parts:
        bounds = dataset.schema.bounds(nodes[offsets[p] : offsets[p + 1]])
        rows = zip(bounds, bounds[1:], dataset.feature_widths, strict=False)
        features = sum((last - first) * 4 * width for first, last, width in rows)
        sizes[p] = int(edges[p]) * (EDGE_BYTES + 8) + 2 * features
    left = [p for p in parts if p not in records]
    part_bytes = writing_bytes(dataset, int(edges.max()), world)
    processes = crew.size(len(left), int(edges[left].sum()), part_bytes, available_bytes())
    settings = {"dataset": str(path), "folder": str(work.folder), "store": str(writer.path), "of": of}
    before = sum(sizes[p] for p in records)
    do_parts("write", settings, "cutting parts", {p: sizes[p] for p in left}, before, processes, crew)
    records |= work.read_all("parts", left, of)
    for p in parts:
        writer.adopt(records[p]["files"])
    put_send_lists(writer, Cutter(dataset, ground), 0)
    return partition_stats([PartFigures(**records[p]["figures"]) for p in parts])


def open_write(settings: dict[str, Any]) -> Job:
    folder, store = Path(settings["folder"]), Path(settings["store"])
    cutter = Cutter(open_dataset(Path(settings["dataset"]), verify=False), open_ground(folder / "ground"))

    def write(p: int, report: Report) -> None:
        writer = StoreWriter(store, "partition", FORMAT_VERSION, into=folder / "store")
        figures = write_part(writer, cutter, p, report)
        entries = writer.seal(report)
        write_record(folder / "parts", name_of(p), settings["of"], entries, figures=asdict(figures))

    return write


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
