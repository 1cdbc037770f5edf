"""From an assignment to the parts of a store: nodes are ordered inside parts, then parts are written.

Both are done part by part by a crew (``partition.crew``), and what is finished is kept (``partition.unfinished``).

Letters: N nodes, P parts.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.config.verbs import parts_of
from sargnn.graph.dataset import group_by, open_dataset
from sargnn.graph.schema import Schema
from sargnn.graph.store import StoreWriter
from sargnn.partition.crew import Crew, Job, do_parts
from sargnn.partition.cut import Cutter
from sargnn.partition.ground import lay_ground, make_array, open_ground, places_of
from sargnn.partition.memory import available_bytes, ordering_bytes, part_edges, writing_bytes
from sargnn.partition.order import KaMinPar, Members, order_part
from sargnn.partition.quality import PartFigures, PartitionStats, partition_stats
from sargnn.partition.sort_edges import EDGE_BYTES, Report
from sargnn.partition.store import FORMAT_VERSION, put_send_lists, write_part
from sargnn.partition.unfinished import Unfinished, keep_array, name_of, write_record
from sargnn.steps import step

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
    """Hex digits of what is in arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
