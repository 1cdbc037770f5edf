"""The partition store: everything a worker opens at start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sargnn.data.schema import Schema
from sargnn.data.store import Store, StoreWriter
from sargnn.partition.cut import PART_ARRAYS, Part
from sargnn.partition.stats import PartitionStats

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


def write_part(writer: StoreWriter, rank: int, part: Part) -> None:
    """One worker's part into a partition store."""
    for array in PART_ARRAYS:
        writer.put(_name(rank, array), getattr(part, array))
    for node_type, rows in enumerate(part.features):
        writer.put(_name(rank, f"features_{node_type:02d}"), rows)


def open_part(path: Path, rank: int) -> Part:
    """One worker's part, checksums verified, arrays memory-mapped."""
    store = _open(path)
    schema = Schema.from_json(store.meta["schema"])
    names = {array: _name(rank, array) for array in PART_ARRAYS}
    features = [_name(rank, f"features_{node_type:02d}") for node_type in range(len(schema.node_types))]
    store.verify([*names.values(), *features])
    arrays = {array: store.array(name) for array, name in names.items()}
    return Part(schema=schema, features=tuple(store.array(name) for name in features), **arrays)


def _name(rank: int, array: str) -> str:
    return f"part_{rank:03d}/{array}"


def _open(path: Path) -> Store:
    return Store(path, "partition", FORMAT_VERSION)
