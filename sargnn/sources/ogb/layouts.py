"""OGB's raw layouts: which files a folder must hold, which it may, and all that is missing, said at once.

Nothing heavy is imported and next to nothing is read, so that a missing file is told before anything is begun.

Files that only hold counts may be missing: they follow from the others.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        title: what it is called. marker: a file that only this layout has.
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
        ("raw/node-feat.csv.gz", "features of each node"),
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
        ("raw/node-feat/TYPE/node-feat.csv.gz", "features; optional"),
        ("raw/node-label/TYPE/node-label.csv.gz", "labels, of one type"),
        ("split/NAME/TYPE/{train,valid,test}.csv.gz", "a node number in each row"),
        ("raw/num-node-dict.csv.gz", "types, counts; optional"),
        ("raw/nodetype-has-label.csv.gz", "types, True/False; optional"),
        ("raw/relations/H___R___T/num-edge-list.csv.gz", "number of edges; optional"),
    ),
)
LAYOUTS = (TYPED, BINARY, CSV)
NAMED = {"ogbn-products": CSV, "ogbn-arxiv": CSV, "ogbn-papers100M": BINARY, "ogbn-mag": TYPED}
_OTHER_FILES = "dataset=arrays reads .npy files"
_ARRAYS = ("edge_index", "node_feat")


@dataclass(frozen=True)
class FlatFiles:
    """A homogeneous folder's files. ``raw``: by what they hold; those that may be missing only where they are there."""

    raw: dict[str, Path]
    split: dict[str, Path]


class RawFiles:
    """Gathers a folder's files, and says at the end what is missing.

    Args:
        root: the folder. layout: that it has.
    """

    def __init__(self, root: Path, layout: Layout) -> None:
        self.root, self.layout = root, layout
        self._missing: list[str] = []
        self._wrong: DataError | None = None

    def need(self, name: str | Path) -> Path:
        """A file that must be there."""
        path = self.root / name
        if not path.is_file():
            self.miss(str(name))
        return path

    def may(self, name: str | Path) -> Path | None:
        """A file that may be missing."""
        path = self.root / name
        return path if path.is_file() else None

    def miss(self, what: str) -> None:
        """Something that must be there is not."""
        self._missing.append(what)

    def split(self, below: str = "") -> dict[str, Path]:
        """The files of the one folder in ``split/``, by the names of ``SPLITS``; ``below``: in a folder of that one."""
        folders = sorted(p for p in (self.root / "split").glob("*") if p.is_dir())
        if len(folders) > 1:
            self._wrong = DataError(
                f"'{self.root / 'split'}' must hold exactly one folder with train, valid and test.",
                given=", ".join(p.name for p in folders),
            )
            return {}
        place = Path("split") / (folders[0].name if folders else "NAME") / below
        return {name: self.need(place / f"{name}.csv.gz") for name in SPLITS}

    def check(self) -> None:
        """All was asked for. Raises ``DataError`` with everything that is missing, and the layout."""
        if self._missing:
            what = "1 part is missing" if len(self._missing) == 1 else f"{len(self._missing)} parts are missing"
            plain = [name for name in self._missing if name.endswith(".gz") and (self.root / name[:-3]).is_file()]
            hint = f"gzip {self.root / plain[0][:-3]}" if plain else f"add what is missing; or {_OTHER_FILES}"
            raise DataError(
                f"'{self.root}' is no whole dataset in {self.layout.title}: {what}.",
                given=_column([f"no {name}" for name in self._missing]),
                allowed=_column(_told(self.layout)),
                hint=hint,
            )
        if self._wrong is not None:
            raise self._wrong


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
    told = [
        line
        for layout in reversed(LAYOUTS)
        for line in (f"{layout.title}:", *(f"  {file_line}" for file_line in _told(layout)))
    ]
    held = sorted(path.name for path in root.iterdir())
    raise DataError(
        f"'{root}' holds no dataset in one of OGB's layouts.",
        given=", ".join(held[:10]) + (f" and {len(held) - 10} more" if len(held) > 10 else "") if held else "an empty folder",
        allowed=_column(told),
        hint=f"put the files there, or name another folder; {_OTHER_FILES}",
    )


def find_csv(root: Path) -> FlatFiles:
    """The files of a folder in the CSV layout. Raises ``DataError`` with all that are missing."""
    files = RawFiles(root, CSV)
    raw = {name: files.need(f"raw/{name}.csv.gz") for name in ("edge", "node-feat", "node-label")}
    for name in ("num-node-list", "num-edge-list", "edge-weight"):
        if (path := files.may(f"raw/{name}.csv.gz")) is not None:
            raw[name] = path
    split = files.split()
    files.check()
    return FlatFiles(raw, split)


def find_binary(root: Path) -> FlatFiles:
    """The files of a folder in the binary layout. Raises ``DataError`` with all files and arrays that are missing."""
    files = RawFiles(root, BINARY)
    raw = {"data": files.need(BINARY.marker), "label": files.need("raw/node-label.npz")}
    for key, names in (("data", _ARRAYS), ("label", ("node_label",))):
        held = _arrays_in(raw[key])
        for name in () if held is None else sorted(set(names).difference(held)):
            files.miss(f"array '{name}' in {raw[key].relative_to(root)}")
    split = files.split()
    files.check()
    return FlatFiles(raw, split)


def check_folder(root: Path, layout: Layout) -> None:
    """Everything that a folder must hold is there. Raises ``DataError`` with all that is missing."""
    from sargnn.sources.ogb.typed_files import find_typed

    finders: dict[str, Callable[[Path], object]] = {CSV.title: find_csv, BINARY.title: find_binary, TYPED.title: find_typed}
    finders[layout.title](root)


def _arrays_in(path: Path) -> list[str] | None:
    """The arrays of an archive, from its table of contents; None where it is missing or damaged, which reading it says."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (*ARCHIVE_ERRORS, OSError, ValueError):
        return None


def _told(layout: Layout) -> list[str]:
    width = max(len(file) for file, _ in layout.lines)
    return [f"{file:<{width}}  {text}" for file, text in layout.lines]


def _column(lines: Sequence[str]) -> str:
    """Lines below each other, as a part of an error."""
    return "\n           ".join(lines)
