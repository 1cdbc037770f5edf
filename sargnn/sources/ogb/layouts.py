"""OGB's raw layouts: which files a folder must hold, which it may, and all that is missing, said at once.

Nothing heavy is imported and next to nothing is read, so that a missing file is told before anything is begun. Of the typed
layout three small tables are read:

    raw/triplet-type-list.csv.gz: h,r,t, a relation and its ends
    raw/num-node-dict.csv.gz: node types, then their counts
    raw/nodetype-has-label.csv.gz: types, then True or False

Files that only hold counts may be missing: they follow from the others. So may the last table: the labelled type is then that
which has a file of labels. Without the second one types are those of the relations, features and labels.
"""

from __future__ import annotations

import csv
import gzip
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sargnn.errors import DataError
from sargnn.graph.schema import SPLITS
from sargnn.sources.npz import ARCHIVE_ERRORS

MAX_NODES = 3_037_000_499
"""The square root of 2**63: edges are sorted by ``destination * N + source``."""
MAX_EDGES = 2**48


@dataclass(frozen=True)
class Layout:
    """One of the layouts.

    Attributes:
        marker: a file that only this layout has.
        signs: other files or folders of this layout alone, which tell it where the marker is missing.
        lines: (file, what it holds), as a person is told.
    """

    title: str
    marker: Path
    signs: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]


_SPLIT = ("split/NAME/{train,valid,test}.csv.gz", "a node number in each row")
CSV = Layout(
    "OGB's CSV layout",
    Path("raw/edge.csv.gz"),
    ("raw/node-feat.csv.gz", "raw/node-label.csv.gz", "raw/num-node-list.csv.gz", "raw/num-edge-list.csv.gz"),
    (
        ("raw/edge.csv.gz", "source,destination of each edge"),
        ("raw/edge-weight.csv.gz", "weight of each edge; optional"),
        ("raw/edge-feat.csv.gz", "features of each edge; optional"),
        ("raw/node-feat.csv.gz", "features of each node, or edge-feat"),
        ("raw/node-label.csv.gz", "label of each node, or nan"),
        _SPLIT,
        ("raw/num-node-list.csv.gz", "number of nodes; optional"),
        ("raw/num-edge-list.csv.gz", "number of edges; optional"),
    ),
)
BINARY = Layout(
    "OGB's binary layout",
    Path("raw/data.npz"),
    ("raw/node-label.npz",),
    (
        ("raw/data.npz", "edge_index [2, E], node_feat [N, F]"),
        ("", "num_nodes_list [1]; optional"),
        ("", "num_edges_list [1]; optional"),
        ("", "edge_weight [E]; optional"),
        ("", "edge_feat [E, D]; optional"),
        ("raw/node-label.npz", "node_label [N, 1], nan for none"),
        _SPLIT,
    ),
)
TYPED = Layout(
    "OGB's typed layout",
    Path("raw/triplet-type-list.csv.gz"),
    ("raw/relations", "raw/num-node-dict.csv.gz", "raw/nodetype-has-label.csv.gz", "raw/node-feat", "raw/node-label"),
    (
        ("raw/triplet-type-list.csv.gz", "H,R,T: relations, their ends"),
        ("raw/relations/H___R___T/edge.csv.gz", "head,tail of each edge"),
        ("raw/relations/H___R___T/edge-weight.csv.gz", "weights; optional"),
        ("raw/relations/H___R___T/edge-feat.csv.gz", "features; optional"),
        ("raw/node-feat/TYPE/node-feat.csv.gz", "features; optional"),
        ("raw/node-label/TYPE/node-label.csv.gz", "labels, of one type"),
        ("split/NAME/TYPE/{train,valid,test}.csv.gz", "a node number in each row"),
        ("raw/num-node-dict.csv.gz", "types, counts; optional"),
        ("raw/nodetype-has-label.csv.gz", "types, True/False; optional"),
        ("raw/relations/H___R___T/num-edge-list.csv.gz", "number of edges; optional"),
    ),
)
LINKS = Layout(
    "OGB's layout of links",
    CSV.marker,
    (),
    (
        ("raw/edge.csv.gz", "head,tail of each training link"),
        ("raw/edge_weight.csv.gz", "weight of each edge; optional"),
        ("raw/node-feat.csv.gz", "features of each node; optional"),
        ("raw/num-node-list.csv.gz", "number of nodes; or node-feat"),
        ("raw/num-edge-list.csv.gz", "number of edges; optional"),
        ("split/NAME/{train,valid,test}.pt", "pairs, negatives"),
    ),
)
_TRIPLES = ("split/NAME/{train,valid,test}.pt", "triples, candidates")
TRIPLES = Layout(
    "OGB's layout of triples",
    CSV.marker,
    (),
    (
        ("raw/edge.csv.gz", "head,tail of each training triple"),
        ("raw/edge_reltype.csv.gz", "relation of each"),
        ("raw/num-node-list.csv.gz", "number of nodes"),
        ("raw/num-edge-list.csv.gz", "number of edges; optional"),
        _TRIPLES,
    ),
)
TYPED_TRIPLES = Layout(
    "OGB's typed layout of triples",
    TYPED.marker,
    (),
    (
        *TYPED.lines[:2],
        ("raw/relations/H___R___T/edge_reltype.csv.gz", "the relation's number, of each"),
        ("raw/num-node-dict.csv.gz", "types, counts"),
        TYPED.lines[-1],
        _TRIPLES,
    ),
)
LAYOUTS = (TYPED, BINARY, CSV)
"""Those that a folder without a name is told by."""
NAMED = {"ogbn-products": CSV, "ogbn-arxiv": CSV, "ogbn-proteins": CSV, "ogbn-papers100M": BINARY, "ogbn-mag": TYPED}
NAMED |= dict.fromkeys(("ogbl-collab", "ogbl-ppa", "ogbl-citation2", "ogbl-ddi"), LINKS)
NAMED |= {"ogbl-wikikg2": TRIPLES, "ogbl-biokg": TYPED_TRIPLES}
ENTITY = "entity"
"""The type of nodes where there is one."""
_OTHER_FILES = "dataset=arrays reads .npy files"
_FEATURES, _LABELS = "raw/node-feat/{}/node-feat.csv.gz", "raw/node-label/{}/node-label.csv.gz"
Triplet = tuple[str, str, str]


@dataclass(frozen=True)
class FlatFiles:
    """A homogeneous folder's files. ``raw``: by what they hold; those that may be missing only where they are there."""

    raw: dict[str, Path]
    split: dict[str, Path]


class RawFiles:
    """Gathers the files of a folder that has a layout, and says at the end what is missing."""

    def __init__(self, root: Path, layout: Layout) -> None:
        self.root, self.layout = root, layout
        self.missing: list[str] = []
        self._wrong: DataError | None = None

    def need(self, name: str | Path) -> Path:
        path = self.root / name
        if not path.is_file():
            self.missing.append(str(name))
        return path

    def may(self, name: str | Path) -> Path | None:
        path = self.root / name
        return path if path.is_file() else None

    def split(self, below: str = "", suffix: str = ".csv.gz") -> dict[str, Path]:
        """The files of the one folder in ``split/``, by the names of ``SPLITS``; ``below``: in a folder of that one."""
        folders = sorted(p for p in (self.root / "split").glob("*") if p.is_dir())
        if len(folders) > 1:
            self._wrong = DataError(
                f"'{self.root / 'split'}' must hold exactly one folder with train, valid and test.",
                given=", ".join(p.name for p in folders),
            )
            return {}
        place = Path("split") / (folders[0].name if folders else "NAME") / below
        return {name: self.need(place / f"{name}{suffix}") for name in SPLITS}

    def check(self) -> None:
        """Raises ``DataError`` with everything that was needed and is missing, and the layout."""
        if self.missing:
            what = "1 part is missing" if len(self.missing) == 1 else f"{len(self.missing)} parts are missing"
            plain = [name for name in self.missing if name.endswith(".gz") and (self.root / name[:-3]).is_file()]
            hint = f"gzip {self.root / plain[0][:-3]}" if plain else f"add what is missing; or {_OTHER_FILES}"
            raise DataError(
                f"'{self.root}' is no whole dataset in {self.layout.title}: {what}.",
                given=below_each_other(f"no {name}" for name in self.missing),
                allowed=below_each_other(aligned(self.layout.lines)),
                hint=hint,
            )
        if self._wrong is not None:
            raise self._wrong


def aligned(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Files with what they hold, in two columns."""
    pairs = list(lines)
    width = max(len(file) for file, _ in pairs)
    return [f"{file:<{width}}  {text}" for file, text in pairs]


def below_each_other(lines: Iterable[str]) -> str:
    """Lines as a part of an error."""
    return "\n           ".join(lines)


def folder_at(given: str) -> Path:
    """The folder that ``dataset.root`` names. Raises ``DataError`` where there is none."""
    root = Path(os.path.expanduser(given)).resolve()
    if not root.is_dir():
        raise DataError(
            "The dataset folder does not exist.",
            given=str(root),
            hint=f"dataset.root=FOLDER names a folder that holds raw/ and split/ in OGB's layout; {_OTHER_FILES}",
        )
    return root


def named_folder(name: str, given: str) -> Path:
    """Where the raw files of a dataset of OGB's lie, or would: below the root, or the root itself where it looks like it."""
    base = Path(os.path.expanduser(given)).resolve()
    folder = base / name.replace("-", "_")
    if (folder / "raw").is_dir():
        return folder
    itself = (base / NAMED[name].marker).exists() or base.name.replace("_", "-") in NAMED
    return base if itself else folder


def layout_at(root: Path) -> Layout:
    """The layout that a folder has, or was meant to have. Raises ``DataError`` where nothing tells it, with all layouts."""
    for layout in LAYOUTS:
        if (root / layout.marker).exists():
            return layout
    for layout in LAYOUTS:
        if any((root / sign).exists() for sign in layout.signs):
            return layout
    told = []
    for layout in reversed(LAYOUTS):
        told += [f"{layout.title}:", *(f"  {line}" for line in aligned(layout.lines))]
    held = sorted(path.name for path in root.iterdir())
    raise DataError(
        f"'{root}' holds no dataset in one of OGB's layouts.",
        given=", ".join(held[:10]) + (f" and {len(held) - 10} more" if len(held) > 10 else "") if held else "an empty folder",
        allowed=below_each_other(told),
        hint=f"put the files there, or name another folder; {_OTHER_FILES}",
    )


def find_csv(root: Path) -> FlatFiles:
    """Raises ``DataError`` with all that are missing."""
    files = RawFiles(root, CSV)
    raw = {name: files.need(f"raw/{name}.csv.gz") for name in ("edge", "node-label")}
    for name in ("num-node-list", "num-edge-list", "edge-weight", "edge-feat", "node-feat"):
        if (path := files.may(f"raw/{name}.csv.gz")) is not None:
            raw[name] = path
    if "edge-feat" not in raw:  # from which features of nodes are made
        raw["node-feat"] = files.need("raw/node-feat.csv.gz")
    split = files.split()
    files.check()
    return FlatFiles(raw, split)


def find_links(root: Path) -> FlatFiles:
    """Raises ``DataError`` with all that are missing."""
    files = RawFiles(root, LINKS)
    raw = {"edge": files.need(LINKS.marker)}
    for name in ("num-node-list", "num-edge-list", "edge_weight", "node-feat"):
        if (path := files.may(f"raw/{name}.csv.gz")) is not None:
            raw[name] = path
    if "node-feat" not in raw:  # whose rows are counted
        raw["num-node-list"] = files.need("raw/num-node-list.csv.gz")
    split = files.split(suffix=".pt")
    files.check()
    return FlatFiles(raw, split)


@dataclass(frozen=True)
class TripleFiles:
    """What a folder of triples holds.

    Attributes:
        edges: of each relation, or of all, ends, relations' numbers, and a count where it is there.
        counts: of nodes by type, where there are types, in sorted order; else None.
        nodes: where the number, or numbers, of nodes stand.
        every: all files.
    """

    edges: dict[Triplet, tuple[Path, Path, Path | None]]
    counts: dict[str, int] | None
    nodes: Path
    split: dict[str, Path]
    every: list[Path]


def find_triples(root: Path, *, typed: bool) -> TripleFiles:
    """Raises ``DataError`` with all that are missing."""
    files = RawFiles(root, TYPED_TRIPLES if typed else TRIPLES)
    nodes = files.need(f"raw/num-node-{'dict' if typed else 'list'}.csv.gz")
    table = files.need(TYPED.marker) if typed else nodes
    counts = _counts(nodes) if typed and nodes.is_file() else None
    triplets = [(ENTITY, "", ENTITY)]
    if typed:
        triplets = _triplets(table, None if counts is None else list(counts)) if table.is_file() else []
    edges = {}
    for triplet in triplets:
        place = f"raw/relations/{'___'.join(triplet)}" if typed else "raw"
        needed = [files.need(f"{place}/{name}.csv.gz") for name in ("edge", "edge_reltype")]
        edges[triplet] = needed[0], needed[1], files.may(f"{place}/num-edge-list.csv.gz")
    split = files.split(suffix=".pt")
    files.check()
    every = [nodes, table, *(path for paths in edges.values() for path in paths if path is not None), *split.values()]
    return TripleFiles(edges, counts, nodes, split, every)


def find_binary(root: Path) -> FlatFiles:
    """Raises ``DataError`` with all files and arrays that are missing."""
    files = RawFiles(root, BINARY)
    raw = {"data": files.need(BINARY.marker), "label": files.need("raw/node-label.npz")}
    for key, names in (("data", ("edge_index", "node_feat")), ("label", ("node_label",))):
        try:
            with zipfile.ZipFile(raw[key]) as archive:
                held = [name.removesuffix(".npy") for name in archive.namelist()]
        except (*ARCHIVE_ERRORS, OSError, ValueError):  # missing or damaged, which reading it says
            continue
        missing = sorted(set(names).difference(held))
        files.missing += [f"array '{name}' in {raw[key].relative_to(root)}" for name in missing]
    split = files.split()
    files.check()
    return FlatFiles(raw, split)


@dataclass(frozen=True)
class TypedFiles:
    """What a typed folder holds. Types and relations in sorted order, as OGB's own reader takes them.

    Attributes:
        tables: the small tables that are there.
        counts: of nodes, where a table says them.
        triplets: relations.
        edges: a file for each relation.
        edge_counts, edge_weights, edge_features: for those that have such a file.
        features: for types that have them.
        labelled: the type that has labels.
    """

    tables: list[Path]
    node_types: list[str]
    counts: dict[str, int] | None
    triplets: list[Triplet]
    edges: dict[Triplet, Path]
    edge_counts: dict[Triplet, Path]
    edge_weights: dict[Triplet, Path]
    edge_features: dict[Triplet, Path]
    features: dict[str, Path]
    labelled: str
    labels: Path
    split: dict[str, Path]


def find_typed(root: Path) -> TypedFiles:
    """The files of a folder in the typed layout, and what its small tables say.

    Raises ``DataError`` with all files that are missing, or for a small table that cannot be.
    """
    files = RawFiles(root, TYPED)
    table = files.need(TYPED.marker)
    count_table, label_table = files.may("raw/num-node-dict.csv.gz"), files.may("raw/nodetype-has-label.csv.gz")
    counts = _counts(count_table) if count_table is not None else None
    triplets = _triplets(table, list(counts) if counts is not None else None) if table.is_file() else []
    if counts is not None:
        node_types = sorted(counts)
    else:
        ends = {end for head, _, tail in triplets for end in (head, tail)}
        named = {path.parent.name for pattern in (_FEATURES, _LABELS) for path in root.glob(pattern.format("*"))}
        node_types = sorted(ends | named)
    if label_table is not None:
        labelled = _labelled(label_table, node_types if table.is_file() or counts is not None else None)
    else:
        with_labels = [t for t in node_types if (root / _LABELS.format(t)).is_file()]
        if len(with_labels) > 1:
            raise DataError(
                f"'{root / 'raw' / 'node-label'}' holds labels of several node types: exactly one can be trained on.",
                given=", ".join(with_labels),
                hint="say which in raw/nodetype-has-label.csv.gz: a row of types, then a row of True and False",
            )
        labelled = next(iter(with_labels), "TYPE")
    features = {t: path for t in node_types if (path := files.may(_FEATURES.format(t))) is not None}
    edges: dict[Triplet, Path] = {}
    beside: dict[str, dict[Triplet, Path]] = {"num-edge-list": {}, "edge-weight": {}, "edge-feat": {}}
    for triplet in triplets:
        place = f"raw/relations/{'___'.join(triplet)}"
        edges[triplet] = files.need(f"{place}/edge.csv.gz")
        for name, paths in beside.items():
            if (path := files.may(f"{place}/{name}.csv.gz")) is not None:
                paths[triplet] = path
    labels = files.need(_LABELS.format(labelled))
    split = files.split(labelled)
    files.check()
    tables = [path for path in (count_table, table, label_table) if path is not None]
    counted, weights, edge_features = beside.values()
    edge_tables = edges, counted, weights, edge_features
    return TypedFiles(tables, node_types, counts, triplets, *edge_tables, features, labelled, labels, split)


def _counts(path: Path) -> dict[str, int]:
    rows = _words(path)
    counts = [text for text in rows[-1] if text.isdecimal() and len(text) < 20 and int(text) <= MAX_NODES]
    if len(rows) != 2 or not len(set(rows[0])) == len(rows[0]) == len(rows[1]) == len(counts):
        raise DataError(f"'{path}' must hold a row of distinct node types and a row of their counts.", given=rows)
    _check_names(path, rows[0])
    return dict(sorted(zip(rows[0], map(int, rows[1]), strict=True)))


def _triplets(path: Path, node_types: list[str] | None) -> list[Triplet]:
    """``node_types``: what the relations' ends may be; None: anything."""
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


def _labelled(path: Path, node_types: list[str] | None) -> str:
    """``node_types``: what the one type that has labels may be; None: anything."""
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


def _check_names(path: Path, names: tuple[str, ...] | list[str]) -> None:
    """Names of types and relations are names of folders, too."""
    wrong = [name for name in names if name in ("", ".", "..") or "/" in name or "\0" in name]
    if wrong:
        raise DataError(f"'{path}' holds a name that no folder can have.", given=repr(wrong[0])[:80])


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


def check_folder(root: Path, layout: Layout) -> None:
    """Raises ``DataError`` with all that a folder must hold and lacks."""
    finders: dict[str, Callable[[Path], object]] = {CSV.title: find_csv, BINARY.title: find_binary, TYPED.title: find_typed}
    finders[LINKS.title] = find_links
    finders |= {layout.title: partial(find_triples, typed=layout is TYPED_TRIPLES) for layout in (TRIPLES, TYPED_TRIPLES)}
    finders[layout.title](root)
