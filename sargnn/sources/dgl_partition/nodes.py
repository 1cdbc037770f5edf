"""The nodes of a DGL partition: their original ids, who owns them, labels, split, and where their features are.

Letters: N nodes, n own nodes of a part of one type, P parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.schema import SPLITS, UNLABELLED
from sargnn.interop.dgl import PartGraph, load_mapping, load_part, load_tensors
from sargnn.sources.dgl_partition.parts import DglParts, in_bounds
from sargnn.sources.ogb.tables import labels_from
from sargnn.steps import step

ORIGINAL_IDS = "orig_nids.dgl"
"""Beside a part's graph, where DGL's distributed partitioning was told to save original ids."""


@dataclass(frozen=True)
class Names:
    """What node data is called: ``NAME``, or ``TYPE/NAME``. Empty: there is none (not of labels and the training mask).

    ``original`` holds original ids; where there is none, the ids that DGL gave are kept.
    """

    features: str = "feat"
    labels: str = "label"
    train: str = "train_mask"
    valid: str = "val_mask"
    test: str = "test_mask"
    original: str = "orig_id"


@dataclass(frozen=True)
class DglNodes:
    """The nodes in their original numbering, type by type.

    Attributes:
        ours: int64 [N], DGL's id -> ours.
        assignment: int32 [N], the part of each node, by our id.
        known_from: type -> where original ids come from; empty: there are none, DGL's numbers are kept.
        labelled: the type with labels.
        labels, split: int64 and uint8, of its nodes.
        features: type -> name of its features, where it has any.
        widths: their columns.
    """

    ours: np.ndarray
    assignment: np.ndarray
    known_from: dict[str, str]
    labelled: str
    labels: np.ndarray
    split: np.ndarray
    features: dict[str, str]
    widths: dict[str, int]


def read_nodes(parts: DglParts, names: Names, mapping: Path | None = None) -> DglNodes:
    """Read all parts, one after the other.

    ``mapping`` is what ``partition_graph(return_mapping=True)`` gave, as a file: DGL's number -> original id, perhaps by type.

    Raises ``DataError`` with the file's name: it cannot be read, or disagrees with the others; a name is not there; labels are
    no classes; a node is in two splits.
    """
    given = _read_mapping(parts, mapping)
    ours, assignment = np.full(parts.num_nodes, -1, np.int64), np.empty(parts.num_nodes, np.int32)
    known_from: dict[str, set[str]] = {name: set() for name in parts.nodes}
    chosen: _Chosen | None = None
    for p in range(parts.num_parts):
        step("reading nodes", p, parts.num_parts)
        graph, data = load_part(parts.graphs[p]), load_tensors(parts.node_data[p])
        own_ids = parts.own_nodes(p, graph)
        chosen = chosen or _Chosen(parts, names, data)
        beside = parts.graphs[p].with_name(ORIGINAL_IDS)
        saved = load_tensors(beside) if beside.is_file() else {}
        for name, ids in own_ids.items():
            if not len(ids):
                continue
            original, source = None, str(mapping)
            if name in given:
                original = given[name][parts.numbers_in_type(name, ids)]
            else:
                original, source = _original_ids(parts, p, name, graph, data, saved, names.original)
            if original is None:
                original, source = parts.numbers_in_type(name, ids), ""
            known_from[name].add(source)
            if original.shape != ids.shape or original.dtype.kind not in "iu" or not in_bounds(original, parts.counts[name]):
                raise _no_numbering(parts, name, source, f"{original.dtype} {list(original.shape)}, or a number out of range")
            if len(np.unique(original)) != len(original):
                raise _no_numbering(parts, name, source, "the same number twice")
            ours[ids] = original.astype(np.int64) + parts.offsets[name]
            assignment[ours[ids]] = p
        chosen.read(p, data, ours[own_ids[chosen.labelled]] - parts.offsets[chosen.labelled])
        del graph, data, saved  # before the next part is loaded
    assert chosen is not None
    counts = np.bincount(ours, minlength=parts.num_nodes)
    for name, origins in known_from.items():
        own = counts[parts.offsets[name] : parts.offsets[name] + parts.counts[name]]
        if len(origins) > 1:
            raise _no_numbering(
                parts, name, " and ".join(sorted(origin or "none" for origin in origins)), "not the same in all parts"
            )
        if (own != 1).any():
            wrong = int((own != 1).argmax())
            raise _no_numbering(parts, name, next(iter(origins)), f"number {wrong} {own[wrong]} times")
    sources = {name: next(iter(origins), "") for name, origins in known_from.items()}
    return DglNodes(ours, assignment, sources, chosen.labelled, chosen.labels, chosen.split, chosen.features, chosen.widths)


def rows_of(parts: DglParts, p: int, data: Mapping[str, np.ndarray], key: str) -> np.ndarray:
    """Node data of part p, [n, ...]. Raises ``DataError`` where it is missing, or has another number of rows than the part."""
    first, last = parts.nodes[key.rpartition("/")[0]][p]
    if key not in data:
        raise _no_such_data(parts.node_data[p], key, data)
    if data[key].ndim < 1 or len(data[key]) != last - first:
        raise DataError(
            f"'{parts.node_data[p]}' holds '{key}' of another shape than the part has nodes.",
            given=list(data[key].shape),
            allowed=f"{last - first} rows",
        )
    return data[key]


class _Chosen:
    """Which node data is read, found in the first part; and labels and split, filled part by part."""

    def __init__(self, parts: DglParts, names: Names, data: Mapping[str, np.ndarray]) -> None:
        self.parts, self.place = parts, parts.node_data[0]
        labels = self._find(names.labels, data)
        if len(labels) > 1:
            raise DataError(
                f"Several node types of '{parts.path}' have '{names.labels}': one type can be trained on.",
                given=", ".join(labels.values()),
                hint=f"label={next(iter(labels.values()))}",
            )
        self.labelled, self.label = next(iter(labels.items()))
        masks = {"train": names.train, "valid": names.valid, "test": names.test}
        self.masks: dict[str, str] = {}
        for split, name in masks.items():
            if not name and split != "train":
                continue
            keys = self._find(name, data)
            if self.labelled not in keys:
                raise _no_such_data(self.place, f"{self.labelled}/{name.rpartition('/')[2]}", data)
            self.masks[split] = keys[self.labelled]
        self.features = self._find(names.features, data) if names.features else {}
        self.widths: dict[str, int] = {}
        for name, key in self.features.items():
            table = data[key]
            if not 1 <= table.ndim <= 2 or table.dtype.kind not in "fiub":
                given, what = f"{table.dtype} {list(table.shape)}", f"features '{key}' that are no table of numbers"
                raise DataError(f"'{self.place}' holds {what}.", given=given, allowed="[nodes, columns]")
            self.widths[name] = 1 if table.ndim == 1 else int(table.shape[1])
        n = parts.counts[self.labelled]
        self.labels, self.split = np.full(n, UNLABELLED, np.int64), np.zeros(n, np.uint8)

    def _find(self, name: str, data: Mapping[str, np.ndarray]) -> dict[str, str]:
        """Type -> key of the node data of this name, at least one."""
        keys = {key.rpartition("/")[0]: key for key in sorted(data) if key == name or key.rpartition("/")[2] == name}
        keys = {kind: key for kind, key in keys.items() if kind in self.parts.nodes}
        if not keys:
            raise _no_such_data(self.place, name, data)
        return keys

    def read(self, p: int, data: Mapping[str, np.ndarray], rows: np.ndarray) -> None:
        """Labels and masks. ``rows``: int64 [n], the original numbers of part p's own nodes of the labelled type."""
        place, kind, raw = self.parts.node_data[p], self.labelled, rows_of(self.parts, p, data, self.label)
        if raw.ndim > 2 or (raw.ndim == 2 and raw.shape[1] != 1):
            raise DataError(
                f"'{place}' holds labels of several columns.",
                given=f"{self.label} {list(raw.shape)}",
                allowed=f"one class for each node: [{len(raw)}] or [{len(raw)}, 1]",
            )
        if len(raw):
            self.labels[rows] = labels_from(place, raw.reshape(-1, 1).astype(np.float64), len(raw))
        for split, key in self.masks.items():
            mask = rows_of(self.parts, p, data, key)
            if mask.size != len(mask):
                raise DataError(f"'{place}' holds several masks in '{key}'.", given=list(mask.shape), allowed=f"[{len(mask)}]")
            chosen = rows[mask.reshape(-1) != 0]
            if self.split[chosen].any():
                node = int(chosen[self.split[chosen] > 0][0])
                raise DataError(f"'{place}' has node {node} of type '{kind}' in two of {', '.join(self.masks.values())}.")
            self.split[chosen] = SPLITS[split]


def _no_such_data(place: Path, name: str, data: Mapping[str, np.ndarray]) -> DataError:
    there = ", ".join(sorted(data))
    return DataError(
        f"'{place}' holds no node data '{name}'.",
        allowed=there[:400] or "there is none",
        hint="feat=NAME label=NAME train=NAME ...",
    )


def _read_mapping(parts: DglParts, path: Path | None) -> dict[str, np.ndarray]:
    """By type the original number of each of DGL's; nothing without such a file."""
    if path is None:
        return {}
    content = load_mapping(path)
    arrays = content if isinstance(content, dict) else {next(iter(parts.nodes)): content}
    wanted = {name: [count] for name, count in parts.counts.items()}
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    if wanted != shapes or any(array.dtype.kind not in "iu" for array in arrays.values()):
        raise DataError(
            f"'{path}' does not map the nodes of '{parts.path}'.",
            given=f"arrays {shapes}",
            allowed=f"whole numbers {wanted}, as partition_graph(return_mapping=True) gives them",
        )
    return arrays


def _original_ids(
    parts: DglParts,
    p: int,
    name: str,
    graph: PartGraph,
    data: Mapping[str, np.ndarray],
    saved: Mapping[str, np.ndarray],
    key: str,
) -> tuple[np.ndarray | None, str]:
    """The original numbers of part p's own nodes of a type, and where they were found."""
    if key and f"{name}/{key}" in data:
        return rows_of(parts, p, data, f"{name}/{key}").reshape(-1), f"node data {name}/{key}"
    if key and name in saved:
        return saved[name], ORIGINAL_IDS
    if not key or graph.original_ids is None:
        return None, ""
    ids = graph.node_ids
    first, last = parts.nodes[name][p]
    own = graph.own_nodes & (ids >= first) & (ids < last)
    before = sum(parts.counts[node_type] for node_type in parts.type_order[: parts.type_order.index(name)])
    return graph.original_ids[own] - before, "orig_id of the graphs"


def _no_numbering(parts: DglParts, name: str, source: str, given: str) -> DataError:
    return DataError(
        f"The original ids of the nodes of type '{name}' in '{parts.path}' cannot be used.",
        given=f"{source or 'none'}: {given}",
        allowed=f"each number from 0 to {parts.counts[name] - 1} once",
        hint="orig= (nothing) keeps the ids that DGL gave",
    )
