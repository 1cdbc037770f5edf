"""``dataset=arrays``: a folder of arrays as ``LAYOUT`` says, or one ``.npz`` file with arrays of the same names.

Of a typed graph each of them is a folder: ``edge_index/author___writes___paper.npy``, ``x/paper.npy``, ``y/paper.npy``; in an
``.npz`` file the arrays are named likewise, ``x/paper``.

Benchmark sets are read from the files in which they are published. The heterophilous one (Platonov et al.,
ICLR 2023: roman-empire, amazon-ratings, minesweeper, tolokers, questions):

    edges [E, 2]             of an undirected graph, each in one direction
    node_features [N, F]     node_labels [N]
    train_masks, val_masks, test_masks [k, N]   k splits, one a row

Amazon, Coauthor and CitationFull (Shchur et al., 2018; Bojchevski and Günnemann, 2018), without a split:

    adj_indptr, adj_indices, adj_shape          edges, a CSR matrix [N, N]; loops are dropped, as PyTorch Geometric does
    attr_data, attr_indices, attr_indptr, attr_shape   features, a CSR matrix [N, F]; a value above 0 is 1, as there
    labels [N]

WikiCS (Mernyei and Cangea, 2020), ``data.json``:

    features [N][F]   labels [N]   links [N][]: the neighbours of each node
    train_masks, val_masks, stopping_masks [20][N], test_mask [N]: 20 splits, of one set of test nodes

Its two validation sets are one here, since one validation set selects and stops. Edges go both ways, each once.

Letters: N nodes, E edges, F features, k splits.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from sargnn.errors import DataError
from sargnn.graph.dataset import Reader
from sargnn.sources.npz import blame_archive
from sargnn.sources.own.edges import EdgeArrays, EdgeList, EdgeTable
from sargnn.sources.own.given import (
    ALIASES,
    COUNT,
    EDGE_LABELS,
    EDGE_MASKS,
    EDGES,
    FEATURES,
    LABELS,
    MASKS,
    NAMES,
    NUMBERS,
    OF_EDGES,
    PAIRS,
    WEIGHTS,
    GivenArray,
    PlainArray,
    SparseRows,
    csr_fits,
    known_names,
    member_of,
    unit_of,
)
from sargnn.sources.own.graph import Unread, build_graph
from sargnn.sources.own.pairs import pair_leaf
from sargnn.sources.own.reader import own_reader
from sargnn.sources.scan import identity_of

if TYPE_CHECKING:
    from sargnn.sources.settings import ArraysConfig

LAYOUT = """\
    edge_index.npy   whole numbers [2, edges]: sources, destinations; or edges.csv, edges.parquet
    edge_weight.npy  a number for each edge; optional
    edge_attr.npy    features of edges, numbers [edges, features]; optional
    x.npy            features, numbers [nodes, features]
    y.npy            classes, whole numbers [nodes], -1 for a node without one
    train_mask.npy, val_mask.npy, test_mask.npy
                     true or false [nodes]; or train_idx.npy, ...: node numbers; or dataset.split=[0.6,0.2,0.2]
    for links        train_pairs.npy, valid_pairs.npy, test_pairs.npy: node numbers [2, pairs]; or
                     dataset.link_split=[0.85,0.05,0.1]; then only edge_index.npy is needed
    for edges        edge_y.npy: a class for each edge, -1 for one without; edge_train_mask.npy, ..., or
                     dataset.link_split; then too"""
_NAMES = {"edges": EDGES, "node_features": FEATURES, "node_labels": LABELS} | {
    f"{split}_masks": f"{split}_mask" for split in ("train", "val", "test")
}
"""Name in a file of the heterophilous benchmark -> the one that is used here."""
_ADJACENCY = ("adj_indices", "adj_indptr", "adj_shape")
_ATTRIBUTES = ("attr_data", "attr_indices", "attr_indptr", "attr_shape")
_UNREAD = ("adj_data", "node_names", "attr_names", "class_names", "metadata")
"""What such files hold beside them: weights that are all 1, and texts."""
WIKICS = "wikics"
_WIKICS_NAMES = {"features": FEATURES, "labels": LABELS, "links": None} | {
    "train_masks": "train_mask",
    "val_masks": "val_mask",
    "stopping_masks": None,
    "test_mask": "test_mask",
}
"""Name in WikiCS's file -> the one that is used here; None: it becomes a part of another."""
_JOINER = "___"
_KINDS = (".npy", ".csv", ".csv.gz", ".parquet")
_TABLES = {
    alias for name in (EDGES, *PAIRS) if name == EDGES or PAIRS[name][1] in ("pairs", "negatives") for alias in ALIASES[name]
}
"""Names of what may be a table of ends."""


def arrays_reader(config: ArraysConfig) -> Reader:
    """The reader of the folder or file ``config.root``; the errors of ``find_arrays``, and of arrays that disagree."""
    unread = Unread()
    root, leaves, tree = find_arrays(config, unread)
    name = WIKICS if root.suffix == ".json" else root.stem if root.is_file() else root.name
    graph = build_graph(name, f"'{root}'", tree, unread)
    read = [leaf for name, leaf in leaves.items() if isinstance(leaf, Path) and name.partition("/")[0] in NAMES]
    return own_reader(graph, config, identity_of(sorted(read) or [root]))


def find_arrays(config: ArraysConfig, unread: Unread) -> tuple[Path, Mapping[str, Path | str], dict[str, Any]]:
    """The folder or file, what lies in it by name, and the tree of its arrays, of which only headers are read.

    ``unread`` gets the names that mean nothing. Raises ``DataError`` with all that is missing and the whole layout, or where an
    array has another form.
    """
    root, published = Path(os.path.expanduser(config.root)).resolve(), None
    if root.suffix == ".npz" and root.is_file():
        with blame_archive(root), zipfile.ZipFile(root) as archive:
            members = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        leaves: Mapping[str, Path | str] = {name: name for name in members}
        published = published_tree(root, members, unread)
    elif root.suffix == ".json" and root.is_file():
        published = wikics_tree(root)
        leaves = {name: name for name in published}
    elif root.is_dir():
        leaves = _files(root)
    else:
        if root.is_file():
            hint = f"name the folder: dataset.root={root.parent}"
            raise DataError("This is neither a folder of arrays nor an .npz file.", given=str(root), hint=hint)
        hint = f"dataset.root=FOLDER names one that holds\n{LAYOUT}"
        raise DataError("The dataset folder does not exist.", given=str(root), hint=hint)
    if published is not None and config.add_inverse_edges:
        raise DataError(f"The edges of '{root}' are read in both directions.", hint="dataset.add_inverse_edges=false")
    tree = _tree(root, leaves, unread) if published is None else published
    missing = [f"{name}.npy" for name in (EDGES, FEATURES, LABELS) if name not in tree]
    for_links = config.link_split is not None or not {EDGE_LABELS, *EDGE_MASKS, *PAIRS}.isdisjoint(tree)
    needs_labels = not for_links and config.predicted_type is None
    if not needs_labels:
        missing = [name for name in missing if name != f"{LABELS}.npy"]
    if (for_links or isinstance(tree.get(EDGES), Mapping)) and f"{FEATURES}.npy" in missing:
        missing.remove(f"{FEATURES}.npy")  # rows may be learned
    if needs_labels and config.split is None and not any({**MASKS, **NUMBERS}.get(key) == "train" for key in tree):
        missing.append("train_mask.npy")
    if missing:
        held = ", ".join(sorted(leaves)) or "none of these"
        raise DataError(f"'{root}' lacks {', '.join(missing)}.", given=held, allowed=f"a folder or .npz with\n{LAYOUT}")
    return root, leaves, tree


def _files(root: Path) -> dict[str, Path]:
    """Name of an array, with its type behind a slash, -> its file."""
    files: dict[str, Path] = {}
    for path in sorted([*root.glob("*"), *root.glob("*/*")]):
        suffix = next((ending for ending in _KINDS if path.name.endswith(ending)), None)
        if suffix is None or not path.is_file():
            continue
        name = path.relative_to(root).as_posix().removesuffix(suffix)
        if suffix != ".npy" and name.partition("/")[0] not in _TABLES:
            continue
        if name in files:
            raise DataError(f"'{files[name]}' and '{path}' mean the same.", hint="leave one out")
        files[name] = path
    return files


def _tree(root: Path, leaves: Mapping[str, Path | str], unread: Unread) -> dict[str, Any]:
    """The arrays by the names that ``own.given`` has; unknown ones are left out."""
    firsts = {name.partition("/")[0]: f"'{name.partition('/')[0]}'" for name in leaves}
    known = known_names(firsts, f"'{root}'", unread.of_graph)
    tree: dict[str, Any] = {}
    for used, first in known.items():
        if first in leaves:
            if any(name.startswith(f"{first}/") for name in leaves):
                raise DataError(f"'{root}' has '{first}' both as one array and by type.", hint="leave one out")
            tree[used] = _leaf(root, used, leaves[first])
            continue
        of_types = {
            name.partition("/")[2]: _leaf(root, used, leaf) for name, leaf in leaves.items() if name.startswith(f"{first}/")
        }
        tree[used] = {_triplet(root, key): leaf for key, leaf in of_types.items()} if used in OF_EDGES else of_types
    _take_beside(root, tree)
    return tree


def _take_beside(root: Path, tree: dict[str, Any]) -> None:
    """Labels and masks that stand in the edges' own table come into the tree."""
    edges = tree.get(EDGES)
    for triplet, leaf in edges.items() if isinstance(edges, Mapping) else [(None, edges)]:
        for used, array in leaf.beside().items() if isinstance(leaf, EdgeTable) else ():
            there = tree.setdefault(used, {}) if triplet is not None else tree
            if (key := used if triplet is None else triplet) in there:
                raise DataError(f"'{root}' has {there[key].name} and {array.name} that mean the same.", hint="leave one out")
            there[key] = array


def _triplet(root: Path, key: str) -> tuple[str, ...]:
    parts = tuple(key.split(_JOINER))
    if len(parts) != 3 or not all(parts):
        raise DataError(
            f"'{root}' has edges, or what some carry, whose name does not say which types they join.",
            given=key,
            allowed=f"SOURCE{_JOINER}RELATION{_JOINER}DESTINATION, such as author{_JOINER}writes{_JOINER}paper",
        )
    return parts


def _leaf(root: Path, used: str, leaf: Path | str) -> GivenArray | EdgeList | int:
    if isinstance(leaf, Path) and leaf.suffix != ".npy":
        return EdgeTable(leaf, of_pairs=used in PAIRS)
    array: GivenArray = member_of(root, leaf) if isinstance(leaf, str) else PlainArray(f"'{leaf}'", _mapped(leaf))
    if array.dtype.kind not in "fiub":
        number = "weights.astype(np.float32)" if used == WEIGHTS else "np.unique(texts, return_inverse=True)[1]"
        hint = f"number texts first: {number}" if array.dtype.kind in "USO" else None
        raise DataError(f"{array.name} holds no numbers.", given=array.dtype.name, hint=hint)
    if used == EDGES:
        return EdgeArrays.of_index(array)
    if used != COUNT and not array.shape:
        raise DataError(f"{array.name} is a single number.", allowed=f"an array with an entry for each {unit_of(used)}")
    if used == COUNT:
        count = array.whole().reshape(-1)
        if count.size != 1 or count.dtype.kind not in "iu":
            raise DataError(f"{array.name} must be one whole number.", given=f"{array.dtype.name} {list(array.shape)}")
        return int(count[0])
    return pair_leaf(used, array) if used in PAIRS else array


def _mapped(path: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            what = "it holds Python objects, which are not read: save numbers of one length"
        else:
            what = "it is empty" if isinstance(error, ValueError | EOFError) and not path.stat().st_size else str(error)
        raise DataError(f"'{path}' cannot be read: {what}") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"'{path}' cannot be read: it is no .npy file, but an archive.", hint="dataset.root=FILE.npz reads one")
    return array


class _BothWays(EdgeArrays):
    """Edges and their inverses, each pair of nodes once in each direction. ``ends``: integers [E, 2]; ``loops``: these stay."""

    def __init__(self, name: str, ends: np.ndarray, *, loops: bool = True) -> None:
        numbers = np.arange(len(ends)) if loops else np.flatnonzero(ends[:, 0] != ends[:, 1])
        ends = np.concatenate([ends[numbers], ends[numbers][:, ::-1]])
        ends, rows = np.unique(ends, axis=0, return_index=True)
        self._rows = numbers[rows % max(len(numbers), 1)]
        super().__init__(name, *(PlainArray(name, ends[:, side]) for side in (0, 1)))

    def place(self, position: int) -> str:
        return super().place(int(self._rows[position]))


def published_tree(path: Path, members: Collection[str], unread: Unread) -> dict[str, Any] | None:
    """The arrays of an ``.npz`` file by the names that ``own.given`` has, masks [N, k]; None: it has none of these forms.

    ``members`` are the names of its arrays; ``unread`` gets those that mean nothing. Raises ``DataError``: an array is damaged,
    or edges have another form.
    """
    if {"edges", "train_masks"} <= {*members}:
        return _heterophilous(path, members, unread)
    if {*_ADJACENCY, *_ATTRIBUTES, "labels"} <= {*members}:
        return _sparse(path, members, unread)
    return None


def _heterophilous(path: Path, members: Collection[str], unread: Unread) -> dict[str, Any]:
    unread.of_graph.extend(f"'{name}'" for name in members if name not in _NAMES)
    tree: dict[str, Any] = {_NAMES[name]: member_of(path, name) for name in members if name in _NAMES}
    nodes = tree[FEATURES].shape[:1] if FEATURES in tree else ()
    for name, array in tree.items():
        if name.endswith("_mask") and array.shape[1:] == nodes:
            tree[name] = PlainArray(array.name, array.whole().T)
    edges: GivenArray = tree[EDGES]
    if len(edges.shape) != 2 or edges.shape[1] != 2:
        raise DataError(
            f"{edges.name} must have two columns, an edge's two nodes.",
            given=f"shape {list(edges.shape)}",
            allowed="[number of edges, 2], each edge in one direction",
        )
    return tree | {EDGES: _BothWays(edges.name, edges.whole())}


def _sparse(path: Path, members: Collection[str], unread: Unread) -> dict[str, Any]:
    columns, starts, shape = (member_of(path, name).whole() for name in _ADJACENCY)
    adjacency = _matrix(path, "adj", np.ones(len(columns), bool), columns, starts, shape)
    values, columns, starts, shape = (member_of(path, name).whole() for name in _ATTRIBUTES)
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
        raise DataError(f"'{path}': 'attr_data' holds a value that is no finite number.", given=str(values.dtype))
    attributes = _matrix(path, "attr", values.astype(np.float32), columns, starts, shape)
    attributes.sum_duplicates()
    attributes.data[attributes.data > 0] = 1
    if adjacency.shape != (attributes.shape[0],) * 2:
        raise DataError(
            f"'{path}': 'adj_shape' is not that of the edges between the nodes of 'attr_shape'.",
            given=list(adjacency.shape),
            allowed=str([attributes.shape[0]] * 2),
        )
    masks = {name: member_of(path, name) for name in members if name in (*MASKS, *NUMBERS)}
    known = {*_ADJACENCY, *_ATTRIBUTES, *_UNREAD, *masks, "labels"}
    unread.of_graph.extend(f"'{name}'" for name in members if name not in known)
    ends = np.stack(adjacency.tocoo().coords, 1)
    return masks | {
        EDGES: _BothWays(f"'{path}': 'adj_indices'", ends, loops=False),
        FEATURES: SparseRows(f"'{path}': 'attr_data'", attributes),
        LABELS: member_of(path, "labels"),
    }


def _matrix(path: Path, name: str, *arrays: np.ndarray) -> sparse.csr_array:
    values, columns, starts, shape = arrays
    rows = tuple(shape.tolist()) if shape.dtype.kind in "iu" else ()
    if len(rows) != 2 or not csr_fits(values, columns, starts, rows):
        raise DataError(
            f"'{path}' holds a sparse matrix that is damaged: '{name}_indptr', '{name}_indices', '{name}_shape'.",
            given=f"shape {list(rows)}, {len(columns)} entries",
        )
    return sparse.csr_array((values, columns, starts), shape=rows)


def wikics_tree(path: Path) -> dict[str, Any]:
    """As ``published_tree``, of WikiCS's ``data.json``. Raises ``DataError`` for a file that holds something else."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"'{path}' cannot be read: {str(error)[:100]}", hint="take the file anew") from error
    missing = [name for name in _WIKICS_NAMES if name not in content] if isinstance(content, Mapping) else ["a mapping"]
    if missing:
        raise DataError(f"'{path}' is no data.json of WikiCS: it lacks {', '.join(missing)}.", allowed=_WIKICS_NAMES)
    arrays = {name: _numbers(path, name, content[name]) for name in _WIKICS_NAMES if name != "links"}
    masks = [arrays[name].T for name in ("train_masks", "val_masks", "stopping_masks")]
    if masks[1].shape != masks[2].shape:
        raise DataError(f"'{path}': 'val_masks' and 'stopping_masks' are of different shapes.", given=masks[2].T.shape)
    lists: list[Any] = content["links"] if isinstance(content["links"], list) else [None]
    lengths = [len(those) if isinstance(those, list) else -1 for those in lists]
    if min(lengths, default=0) < 0:
        raise DataError(f"'{path}': 'links' does not give node {lengths.index(-1)} a list of nodes.")
    neighbours = _numbers(path, "links", [neighbour for those in lists for neighbour in those])
    if not neighbours.size:
        neighbours = neighbours.astype(np.int64)
    ends = np.stack([np.repeat(np.arange(len(lists)), lengths), neighbours], 1)
    arrays["train_masks"], arrays["val_masks"] = masks[0], masks[1] | masks[2]
    tree: dict[str, Any] = {
        used: PlainArray(f"'{path}': '{name}'", arrays[name]) for name, used in _WIKICS_NAMES.items() if used is not None
    }
    return tree | {EDGES: _BothWays(f"'{path}': 'links'", ends)}


def _numbers(path: Path, name: str, value: Any) -> np.ndarray:
    try:
        array = np.array(value)
    except ValueError:  # rows of different lengths
        array = np.array("")
    masks = name.endswith(("_mask", "_masks"))
    if not array.shape or array.size and array.dtype.kind not in ("b" if masks else "fiu"):
        raise DataError(
            f"'{path}': '{name}' does not hold {'true and false' if masks else 'numbers'} in rows of one length.",
            given=str(value)[:60],
        )
    return array
