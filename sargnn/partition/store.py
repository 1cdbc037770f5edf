"""The partition store: everything a worker opens at start."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from sargnn.graph.check import Range, all_finite, in_range, range_from_json
from sargnn.graph.edge_columns import NAMES, WEIGHT, file_of, names_from_json, open_columns
from sargnn.graph.manifest import blame_manifest, damage_error
from sargnn.graph.schema import LABEL_DTYPES, Schema, label_form
from sargnn.graph.store import Store
from sargnn.partition.part import PART_ARRAYS, CopyLists, Part, WeightedDegrees

FORMAT_VERSION = 2
_WEIGHTS, _PRELOAD = "edge_weights", "preload"
_OF_ITS_OWN = ("stats", "made_by", "schema", "feature_widths", "pairs", _WEIGHTS, NAMES)
"""What the manifest says that is not a field of ``PartitionInfo`` as it stands there."""
WEIGHT_ARRAYS = ("in_weights", "out_weights")
"""The files of ``WeightedDegrees``, in the order of its attributes."""
ASSIGNMENT = "assignment"
"""The file of each node's part, int32 [N], of a store whose parts are several joined."""
_COPY_ARRAYS = ("copy_rows", "copy_offsets", "copied_rows", "copied_offsets")
"""The files of ``CopyLists``, likewise (``partition.preload`` writes them)."""


@dataclass(frozen=True)
class PartitionStats:
    """Quality of a partition into P parts.

    Attributes:
        edge_cut: edges whose ends lie in different parts / all edges; ``cut_edges``: their number, directed.
        halo_rows: per part, the remote rows it needs; ``volume_rows``: their sum, which travels in one exchange.
        nodes, edges: per part, own nodes and in-edges.
        node_balance, edge_balance: largest part / mean; ``type_balance``: the same for the nodes of each type.
    """

    edge_cut: float
    cut_edges: int
    halo_rows: list[int]
    nodes: list[int]
    edges: list[int]
    node_balance: float
    edge_balance: float
    type_balance: list[float]
    volume_rows: int


@dataclass(frozen=True)
class PartitionInfo:
    """What all workers share about a partition store.

    Attributes:
        num_nodes, num_edges, num_classes: of the whole graph.
        feature_widths: F of each type.
        dataset_name, dataset_hash, partition_hash: provenance.
        partition_time_s: seconds that making the store took.
        partitioner: the name of who cut it.
        task: of the labels; a store without the entry has classes.
        weights: the smallest and the largest edge weight; None: there are none.
        pairs: how many links are in each split; None: there are no pairs.
        preload: of parts that hold copies of other servers' nodes: ``hops``; ``bounds`` of what is preloaded; and per server
            ``nodes`` and ``edges`` by hop (``partition.preload``). None: each node is in one part.
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
    partitioner: str = ""
    task: str = "classes"
    weights: Range | None = None
    preload: dict[str, Any] | None = None
    pairs: dict[str, int] | None = None


def partition_info(path: Path, rank: int | None = None) -> PartitionInfo:
    """What a partition store's manifest says. Raises ``StoreError`` for a store that is damaged or says something else.

    ``rank``: whose part must be here; None: all must be.
    """
    store = _open(path, rank)
    with blame_manifest(path, "of the partition"):
        meta: dict[str, Any] = {k: v for k, v in store.meta.items() if k not in _OF_ITS_OWN}
        info = PartitionInfo(
            path=path,
            partition_hash=store.content_hash,
            stats=PartitionStats(**store.meta["stats"]),
            schema=Schema.from_json(store.meta["schema"]),
            feature_widths=tuple(store.meta["feature_widths"]),
            pairs=store.meta["pairs"]["counts"] if "pairs" in store.meta else None,
            weights=range_from_json(store.meta[_WEIGHTS]) if _WEIGHTS in store.meta else None,
            partitioner=str(store.meta.get("made_by", {}).get("partitioner", {}).get("name", "")),
            **meta,
        )
        _check_types(info)
        _check_types(info.stats)
        if info.num_nodes != info.schema.num_nodes or len(info.feature_widths) != len(info.schema.node_types):
            raise ValueError("the schema is another graph's")
        if info.task not in LABEL_DTYPES:
            raise ValueError("there is no such task")
    return info


def _check_types(record: PartitionInfo | PartitionStats) -> None:
    """Words, whole numbers and fractions are where the fields want them. Raises ``TypeError``."""
    for name, kind in get_type_hints(type(record)).items():
        if name in ("weights", "preload", "pairs"):  # looked at where they are read
            continue
        value = getattr(record, name)
        inner = next(iter(get_args(kind)), None)
        values = value if inner else [value]
        for entry in values:
            wanted: Any = inner or kind
            if not isinstance(entry, (int, float) if wanted is float else wanted) or isinstance(entry, bool):
                raise TypeError(name)


def array_of(path: Path, rank: int, name: str) -> np.ndarray:
    """One array of a part, memory-mapped, its content not verified. Raises ``StoreError`` where there is none."""
    return _open(path, rank).array(array_name(rank, name))


def open_part(path: Path, rank: int, *, with_features: bool = True, verify: bool = True) -> Part:
    """One worker's part, arrays memory-mapped; no other part need be here. Raises ``StoreError`` naming a file that is damaged.

    Checksums are verified and every array's form; local row numbers lie in their ranges, so that no kernel reads beside them.
    Without features theirs are not verified. Without ``verify`` nothing is: for what only counts.
    """
    store = _open(path, rank)
    with blame_manifest(path, "of the partition"):
        schema, num_classes = Schema.from_json(store.meta["schema"]), int(store.meta["num_classes"])
        weighted, preloaded = _WEIGHTS in store.meta, _PRELOAD in store.meta
        columns = names_from_json(store.meta, weighted=weighted)
    optional = (*(WEIGHT_ARRAYS if weighted else ()), *(_COPY_ARRAYS if preloaded else ()))
    names = {array: array_name(rank, array) for array in (*PART_ARRAYS, *optional)}
    features = [
        array_name(rank, features_name(node_type)) for node_type in range(len(schema.node_types) if with_features else 0)
    ]
    if verify:
        store.verify([*names.values(), *(array_name(rank, file_of(column)) for column in columns), *features])
    label_dtype, outputs = label_form(store.dtype(names["labels"]), num_classes)
    forms = _FORMS | {"labels": (label_dtype, (None, *outputs))}
    arrays = {array: store.array(name, *forms[array]) for array, name in names.items()}
    pairs = None
    if "pairs" in store.meta:
        from sargnn.partition.pairs import open_pairs

        pairs = open_pairs(store, rank, len(arrays["node_ids"]))
    part = Part(
        schema=schema,
        features=tuple(store.array(name, np.float32, (None, None)) for name in features),
        columns=open_columns(
            store, columns, len(arrays["edge_src"]), array_name(rank, ""), 0 if schema.typed else len(arrays["node_ids"])
        ),
        weights=WeightedDegrees(*(arrays[array] for array in WEIGHT_ARRAYS)) if weighted else None,
        copies=CopyLists(*(arrays[array] for array in _COPY_ARRAYS)) if preloaded else None,
        pairs=pairs,
        **{array: arrays[array] for array in PART_ARRAYS},
    )
    if verify and (problem := _find_problem(part, arrays, rank % (len(part.halo_offsets) - 1) if preloaded else rank)):
        raise damage_error(
            path, path / f"{array_name(rank, problem)}.npy", "its numbers do not fit the other arrays of the part"
        )
    return part


_FORMS: dict[str, tuple[type | np.dtype, tuple[int | None, ...]]] = {
    "split": (np.uint8, (None,)),
    **{name: (np.int32, (None,)) for name in ("edge_src", "edge_dst", "send_rows", "copy_rows", "copied_rows")},
    **{name: (np.int64, (None,)) for name in ("node_ids", "in_degrees", "out_degrees", "halo_ids")},
    **{name: (np.int64, (None,)) for name in ("edge_offsets", "halo_offsets", "send_offsets")},
    **{name: (np.int64, (None,)) for name in ("copy_offsets", "copied_offsets")},
    **{name: (np.float64, (None,)) for name in ("in_weights", "out_weights")},
}
"""Of the arrays of a part but labels and features, which are all flat: dtype and shape."""


def _find_problem(part: Part, arrays: Mapping[str, np.ndarray], rank: int) -> str | None:
    """The first array of a part whose length or numbers cannot be, if there is one. ``arrays``: the part's, by file."""
    n, world, relations = len(part.node_ids), len(part.halo_offsets) - 1, len(part.schema.relations)
    sums = WEIGHT_ARRAYS if part.weighted else ()
    for name in ("labels", "split", "in_degrees", "out_degrees", *sums):
        if len(arrays[name]) != n:
            return name
    ends = {
        "edge_offsets": (world * relations, len(part.edge_src)),
        "halo_offsets": (world, len(part.halo_ids)),
        "send_offsets": (world, len(part.send_rows)),
    }
    if part.copies is not None:
        ranks = max(0, len(part.copies.offsets) - 1)
        ends |= {"copy_offsets": (ranks, len(part.copies.rows)), "copied_offsets": (ranks, len(part.copies.copied_rows))}
        for name in ("copy_rows", "copied_rows"):
            if not in_range(arrays[name], 0, n):
                return name
    for name, (count, last) in ends.items():
        offsets = np.asarray(arrays[name])
        if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != last or (np.diff(offsets) < 0).any():
            return name
    if not rank < world or len(part.edge_dst) != len(part.edge_src):
        return "edge_dst"
    for name, high in (("node_ids", part.schema.num_nodes), ("halo_ids", part.schema.num_nodes), ("send_rows", n)):
        if not in_range(arrays[name], 0, high):
            return name
    if not in_range(part.edge_dst, 0, n):
        return "edge_dst"
    for peer in range(world):
        block = slice(part.edge_offsets[peer * relations], part.edge_offsets[(peer + 1) * relations])
        rows = n if peer == rank else int(part.halo_offsets[peer + 1] - part.halo_offsets[peer])
        if not in_range(part.edge_src[block], 0, rows):
            return "edge_src"
    if part.columns.weight is not None and not all_finite(part.columns.weight):
        return file_of(WEIGHT)
    for name in sums:
        if not all_finite(arrays[name]):
            return name
    bounds = part.row_bounds
    for node_type, table in enumerate(part.features):
        if len(table) != bounds[node_type + 1] - bounds[node_type]:
            return features_name(node_type)
    return None


def release(part: Part) -> None:
    """Give the pages of a mapped part's edges and lists back, once plans were made from them; they are read again if needed."""
    part.columns.release()
    if part.pairs is not None:
        part.pairs.release()
    for name in ("edge_src", "edge_dst", "halo_ids", "send_rows"):
        mapped = getattr(getattr(part, name), "_mmap", None)
        if mapped is not None:
            mapped.madvise(mmap.MADV_DONTNEED)


def features_name(node_type: int) -> str:
    return f"features_{node_type:02d}"


def part_folder(path: Path, rank: int) -> Path:
    return (path / array_name(rank, "any")).parent


def array_name(rank: int, array: str) -> str:
    return f"part_{rank:03d}/{array}"


def _open(path: Path, rank: int | None) -> Store:
    return Store(path, "partition", FORMAT_VERSION, only="" if rank is None else array_name(rank, ""))
