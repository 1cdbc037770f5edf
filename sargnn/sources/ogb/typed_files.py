"""The files of a folder in OGB's raw typed layout: which there are, which are missing, and what the small tables say.

    raw/triplet-type-list.csv.gz: h,r,t, a relation and its ends
    raw/num-node-dict.csv.gz: node types, then their counts
    raw/nodetype-has-label.csv.gz: types, then True or False

The last two may be missing. Types are then those of the relations, features and labels; the labelled one is that which has a
file of labels.
Nothing heavy is imported, and no other file is opened.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

from sargnn.errors import DataError
from sargnn.sources.ogb.layouts import MAX_NODES, TYPED, RawFiles

Triplet = tuple[str, str, str]
_FEATURES, _LABELS = "raw/node-feat/{}/node-feat.csv.gz", "raw/node-label/{}/node-label.csv.gz"


@dataclass(frozen=True)
class TypedFiles:
    """What a typed folder holds. Types and relations in sorted order, as OGB's own reader takes them.

    Attributes:
        tables: the small tables that are there.
        node_types: names. counts: of their nodes, where a table says them.
        triplets: relations. edges: a file each. edge_counts, edge_weights: for those that have such a file.
        features: for types that have them. labelled: the type that has labels.
    """

    tables: list[Path]
    node_types: list[str]
    counts: dict[str, int] | None
    triplets: list[Triplet]
    edges: dict[Triplet, Path]
    edge_counts: dict[Triplet, Path]
    edge_weights: dict[Triplet, Path]
    features: dict[str, Path]
    labelled: str
    labels: Path
    split: dict[str, Path]


def find_typed(root: Path) -> TypedFiles:
    """Look a folder over.

    Raises:
        DataError: files are missing, all of which are named; or a small table that cannot be.
    """
    files = RawFiles(root, TYPED)
    table = files.need(TYPED.marker)
    count_table, label_table = files.may("raw/num-node-dict.csv.gz"), files.may("raw/nodetype-has-label.csv.gz")
    counts = _counts(count_table) if count_table is not None else None
    triplets = _triplets(table, list(counts) if counts is not None else None) if table.is_file() else []
    node_types = sorted(counts if counts is not None else _types_of(root, triplets))
    if label_table is not None:
        labelled = _labelled(label_table, node_types if table.is_file() or counts is not None else None)
    else:
        labelled = _type_with_labels(root, node_types)
    features = {t: path for t in node_types if (path := files.may(_FEATURES.format(t))) is not None}
    edges, edge_counts, edge_weights = {}, {}, {}
    for triplet in triplets:
        place = f"raw/relations/{'___'.join(triplet)}"
        edges[triplet] = files.need(f"{place}/edge.csv.gz")
        if (path := files.may(f"{place}/num-edge-list.csv.gz")) is not None:
            edge_counts[triplet] = path
        if (path := files.may(f"{place}/edge-weight.csv.gz")) is not None:
            edge_weights[triplet] = path
    labels = files.need(_LABELS.format(labelled))
    split = files.split(labelled)
    files.check()
    tables = [path for path in (count_table, table, label_table) if path is not None]
    return TypedFiles(tables, node_types, counts, triplets, edges, edge_counts, edge_weights, features, labelled, labels, split)


def _counts(path: Path) -> dict[str, int]:
    """How many nodes each type has."""
    rows = _words(path)
    if len(rows) != 2 or len(rows[0]) != len(rows[1]) or not all(map(_is_count, rows[1])) or len(set(rows[0])) != len(rows[0]):
        raise DataError(f"'{path}' must hold a row of distinct node types and a row of their counts.", given=rows)
    _check_names(path, rows[0])
    return dict(sorted(zip(rows[0], map(int, rows[1]), strict=True)))


def _triplets(path: Path, node_types: list[str] | None) -> list[Triplet]:
    """The relations; ``node_types``: what their ends may be, None: anything."""
    rows = sorted(tuple(row) for row in _words(path))
    if len(set(rows)) != len(rows):
        raise DataError(f"'{path}' names a relation twice.")
    triplets = []
    for row in rows:
        if len(row) != 3 or (node_types is not None and not {row[0], row[2]} <= set(node_types)):
            ends = f" with ends among {', '.join(node_types)}" if node_types is not None else " in each row"
            raise DataError(
                f"'{path}' names a relation whose ends are no node types.",
                given=",".join(row),
                allowed=f"HEAD,RELATION,TAIL{ends}",
            )
        _check_names(path, row)
        triplets.append((row[0], row[1], row[2]))
    return triplets


def _types_of(root: Path, triplets: list[Triplet]) -> set[str]:
    """Node types where no table counts them: ends of relations, and what has features or labels."""
    types = {end for head, _, tail in triplets for end in (head, tail)}
    for pattern in (_FEATURES, _LABELS):
        types |= {path.parent.name for path in root.glob(pattern.format("*"))}
    return types


def _labelled(path: Path, node_types: list[str] | None) -> str:
    """The one type that has labels; ``node_types``: what it may be, None: anything."""
    rows = _words(path)
    flags = dict(zip(*rows, strict=True)) if len(rows) == 2 and len(rows[0]) == len(rows[1]) else {}
    labelled = [t for t, flag in flags.items() if flag == "True"]
    if len(labelled) != 1 or (node_types is not None and labelled[0] not in node_types):
        raise DataError(
            f"'{path}' must say which node type has labels: exactly one can be trained on.",
            given=", ".join(labelled) or "none",
            allowed=", ".join(node_types if node_types is not None else flags) or "one of the node types",
        )
    _check_names(path, labelled)
    return labelled[0]


def _type_with_labels(root: Path, node_types: list[str]) -> str:
    """The one type of which there is a file of labels; ``TYPE`` where there is none."""
    labelled = [t for t in node_types if (root / _LABELS.format(t)).is_file()]
    if len(labelled) > 1:
        raise DataError(
            f"'{root / 'raw' / 'node-label'}' holds labels of several node types: exactly one can be trained on.",
            given=", ".join(labelled),
            hint="say which in raw/nodetype-has-label.csv.gz: a row of types, then a row of True and False",
        )
    return labelled[0] if labelled else "TYPE"


def _check_names(path: Path, names: tuple[str, ...] | list[str]) -> None:
    """Names of types and relations are names of folders, too."""
    wrong = [name for name in names if name in ("", ".", "..") or "/" in name or "\0" in name]
    if wrong:
        raise DataError(f"'{path}' holds a name that no folder can have.", given=repr(wrong[0])[:80])


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) < 20 and int(text) <= MAX_NODES


def _words(path: Path) -> list[list[str]]:
    """A small CSV's rows, as texts; at least one."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, EOFError, ValueError, zlib.error, csv.Error) as error:
        raise DataError(f"'{path}' cannot be read: {error}") from error
    if not rows:
        raise DataError(f"'{path}' cannot be read: it is empty")
    return rows
