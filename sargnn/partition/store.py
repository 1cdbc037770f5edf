"""The partition store: everything a worker opens at start."""

from __future__ import annotations

import mmap
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.data.dataset import Dataset
from sargnn.data.schema import Schema
from sargnn.data.store import Store, StoreWriter
from sargnn.partition.cut import PART_ARRAYS, Cutter, Part
from sargnn.partition.stats import PartitionStats, StatsCollector
from sargnn.steps import step

FORMAT_VERSION = 2


@dataclass(frozen=True)
class PartitionInfo:
    """What all workers share about a partition store.

    Attributes:
        path: the store's folder.
        world: number of parts.
        num_nodes, num_edges, num_classes: of the whole graph.
        schema: its node types and relations. feature_widths: F of each type.
        dataset_name, dataset_hash, partition_hash: provenance.
        partition_time_s: seconds that making the store took.
        stats: quality of the partition.
    """

    path: Path
    world: int
    num_nodes: int
    num_edges: int
    num_classes: int
    schema: Schema
    feature_widths: tuple[int, ...]
    dataset_name: str
    dataset_hash: str
    partition_hash: str
    partition_time_s: float
    stats: PartitionStats


def partition_info(path: Path) -> PartitionInfo:
    """Open a partition store's manifest."""
    store = _open(path)
    meta: dict[str, Any] = {k: v for k, v in store.meta.items() if k not in ("stats", "made_by", "schema", "feature_widths")}
    return PartitionInfo(
        path=path,
        partition_hash=store.content_hash,
        stats=PartitionStats(**store.meta["stats"]),
        schema=Schema.from_json(store.meta["schema"]),
        feature_widths=tuple(store.meta["feature_widths"]),
        **meta,
    )


def write_parts(writer: StoreWriter, dataset: Dataset, offsets: np.ndarray, nodes: np.ndarray) -> PartitionStats:
    """Cut a dataset straight into a partition store; the arguments of ``Cutter``. No more than one part's edges are held.

    Halo lists go through the disk: what a part sends is what its peers read, known only when all have been cut.
    """
    cutter, collector = Cutter(dataset, offsets, nodes), StatsCollector()
    with tempfile.TemporaryDirectory(dir=writer.folder) as scratch:

        def list_of(reader: int, owner: int) -> Path:
            return Path(scratch) / f"{reader}-{owner}.npy"

        for p in range(cutter.world):
            step("cutting parts", p, cutter.world)
            edges = cutter.edges(p)
            for q, rows in enumerate(edges.halos):
                np.save(list_of(p, q), rows)
            part = cutter.part(p, edges, [np.zeros(0, np.int32)])
            collector.add(p, part)
            for array in PART_ARRAYS:
                if not array.startswith("send"):
                    writer.put(_name(p, array), getattr(part, array))
            for node_type, rows in enumerate(dataset.features):
                with writer.append(_name(p, features_name(node_type)), np.float32, (rows.shape[1],)) as target:
                    for piece in cutter.features(p, node_type):
                        target.write(piece)
        for p in range(cutter.world):
            send = [np.load(list_of(q, p)) for q in range(cutter.world)]
            writer.put(_name(p, "send_rows"), np.concatenate(send))
            writer.put(_name(p, "send_offsets"), np.concatenate([[0], np.cumsum([len(rows) for rows in send])]))
    return collector.finish()


def open_part(path: Path, rank: int) -> Part:
    """One worker's part, checksums verified, arrays memory-mapped."""
    store = _open(path)
    schema = Schema.from_json(store.meta["schema"])
    names = {array: _name(rank, array) for array in PART_ARRAYS}
    features = [_name(rank, features_name(node_type)) for node_type in range(len(schema.node_types))]
    store.verify([*names.values(), *features])
    arrays = {array: store.array(name) for array, name in names.items()}
    return Part(schema=schema, features=tuple(store.array(name) for name in features), **arrays)


def release(part: Part) -> None:
    """Give the pages of a mapped part's edges and lists back, once plans were made from them; they are read again if needed."""
    for name in ("edge_src", "edge_dst", "halo_ids", "send_rows"):
        mapped = getattr(getattr(part, name), "_mmap", None)
        if mapped is not None:
            mapped.madvise(mmap.MADV_DONTNEED)


def features_name(node_type: int) -> str:
    """The name of a type's features in a part."""
    return f"features_{node_type:02d}"


def _name(rank: int, array: str) -> str:
    return f"part_{rank:03d}/{array}"


def _open(path: Path) -> Store:
    return Store(path, "partition", FORMAT_VERSION)
