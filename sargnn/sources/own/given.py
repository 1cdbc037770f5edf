"""Arrays of an own graph: what they are called, and how they are read, whole or piece by piece.

| name | | also called |
|---|---|---|
| ``edge_index`` | integers [2, E]: sources, destinations | ``edges`` |
| ``edge_weight`` | numbers [E], in the order of the edges | ``edge_weights``, ``weight``, ``w`` |
| ``edge_attr`` | numbers [E, D] or [E], features of edges | ``edge_attributes``, and those of ``x`` behind ``edge_`` |
| ``x`` | numbers [N, F], features | ``feat``, ``feats``, ``feature``, ``features``, also behind ``node_`` |
| ``y`` | [N] or [N, C], what is to be predicted | ``label``, ``labels``, also behind ``node_`` |
| ``train_mask``, ``val_mask``, ``test_mask`` | bool [N], or [N, k]: k splits | ``valid_mask`` |
| ``train_idx``, ``val_idx``, ``test_idx`` | node numbers | ``..._index``, ``..._nodes``, ``valid_...`` |
| ``num_nodes`` | N, where nothing else says it | |
| ``train_pairs``, ``valid_pairs``, ``test_pairs`` | node numbers [2, P] or [P, 2]: heads, tails of links | ``val_pairs`` |
| ``train_pair_weights`` | numbers [P], of the training loss | |
| ``valid_negatives``, ``test_negatives`` | node numbers [2, Q] or [Q, 2]: pairs that are no links | ``val_negatives`` |
| ``valid_candidates``, ``test_candidates`` | node numbers [P, K]: other tails of each pair | ``val_candidates`` |
| ``edge_y`` | [E] or [E, C], what is to be predicted of edges | ``edge_label``, ``edge_labels`` |
| ``edge_train_mask``, ``edge_val_mask``, ``edge_test_mask`` | bool [E] | ``edge_valid_mask`` |

Letters: N nodes, E edges, F features, D features of edges, C columns of labels, P pairs, Q, K negatives.
"""

from __future__ import annotations

import difflib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from sargnn.config.choices import Task
from sargnn.errors import DataError
from sargnn.graph.schema import LABEL_DTYPES, UNLABELLED
from sargnn.sources.npz import Member, blame_archive

EDGES, WEIGHTS, EDGE_FEATURES, FEATURES, LABELS, COUNT = "edge_index", "edge_weight", "edge_attr", "x", "y", "num_nodes"
EDGE_LABELS = "edge_y"
_SPLIT_WORDS = {"train": ("train",), "valid": ("val", "valid"), "test": ("test",)}
MASKS = {f"{word}_mask": name for name, words in _SPLIT_WORDS.items() for word in words}
"""Name of a mask -> name of the split."""
EDGE_MASKS = {f"edge_{mask}": name for mask, name in MASKS.items()}
"""Name of a mask of edges -> name of the split."""
NUMBERS = {
    f"{word}_{kind}": name for name, words in _SPLIT_WORDS.items() for word in words for kind in ("idx", "index", "nodes")
}
"""Name of an array of node numbers -> name of the split."""
PAIRS = {"train_pairs": ("train", "pairs"), "train_pair_weights": ("train", "weights")} | {
    f"{split}_{what}": (split, what) for split in ("valid", "test") for what in ("pairs", "negatives", "candidates")
}
"""Name of what says something of pairs -> name of the split, and what it says."""
_OF_NODES = {FEATURES: ("feat", "feats", "feature", "features"), LABELS: ("label", "labels")}
ALIASES = {
    EDGES: (EDGES, "edges"),
    WEIGHTS: (WEIGHTS, "edge_weights", "weight", "w"),
    EDGE_FEATURES: (EDGE_FEATURES, "edge_attributes", "edge_attr_dict", *(f"edge_{name}" for name in _OF_NODES[FEATURES])),
    **{used: (used, *names, *(f"node_{name}" for name in names)) for used, names in _OF_NODES.items()},
    EDGE_LABELS: (EDGE_LABELS, *(f"edge_{name}" for name in _OF_NODES[LABELS])),
    COUNT: (COUNT,),
} | {name: (name,) for name in (*MASKS, *EDGE_MASKS, *NUMBERS)}
ALIASES |= {name: (name, *([f"val_{what}"] if split == "valid" else [])) for name, (split, what) in PAIRS.items()}
NAMES = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
"""Every name that is known -> the one that is used here."""
OF_EDGES = (EDGES, WEIGHTS, EDGE_FEATURES, EDGE_LABELS, *EDGE_MASKS, *PAIRS)
"""What a typed graph has by relation; the rest by node type."""
ON_EDGES = {
    WEIGHTS: ALIASES[WEIGHTS],
    EDGE_FEATURES: (*ALIASES[EDGE_FEATURES], *_OF_NODES[FEATURES], "attr"),
    EDGE_LABELS: ALIASES[EDGE_LABELS],
}
"""What edges carry -> what it is called among data of edges."""
ALIKE = 0.8
"""From here on ``difflib`` finds two names alike."""
_PIECE_BYTES = 1 << 24
_SPARSE_LAYOUTS = ("torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc")
_PIECE_NUMBERS = 1 << 20
_LARGEST_CLASS = 2**31 - 1
_SETTING = {"node": "task", "edge": "dataset.task"}
"""What says of which kind labels of nodes, or of edges, are."""


def unit_of(used: str) -> str:
    """What an entry of the array of this name is of: a node, an edge or a pair."""
    return "pair" if used in PAIRS else "edge" if used in OF_EDGES else "node"


def known_names(
    names: Mapping[str, str] | list[str], whole: str, unread: list[str], without: Container[str] = ()
) -> dict[str, str]:
    """Used name -> given name, for those that are known.

    Args:
        names: as given; a mapping says for each what messages call it.
        unread: gets what messages call the others.
        without: given names that mean nothing here.

    Raises ``DataError``: one that is nearly known, or two that mean the same.
    """
    called = names if isinstance(names, Mapping) else {name: f"'{name}'" for name in names}
    given_names: dict[str, str] = {}
    for name in called:
        known = None if name in without else NAMES.get(name)
        if known is not None and known in given_names:
            raise DataError(
                f"{whole} has {called[given_names[known]]} and {called[name]}, which mean the same.", hint="leave one out"
            )
        if known is not None:
            given_names[known] = name
    others = [name for name in called if name not in NAMES or name in without]
    for name in others:
        alike = difflib.get_close_matches(
            name, [candidate for candidate in NAMES if candidate[:1] == name[:1]], n=1, cutoff=ALIKE
        )
        if alike and name not in without and NAMES[alike[0]] not in given_names:
            raise DataError(f"{whole} has {called[name]}, which is not known.", allowed=alike, hint=f"name it {alike[0]}")
    unread += [called[name] for name in others]
    return given_names


class GivenArray(ABC):
    """An array that can be read from its beginning. Messages call it ``name``; ``shape`` and ``dtype`` are of the whole."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @abstractmethod
    def pieces(self, rows: int) -> Iterator[np.ndarray]:
        """[at most ``rows``, ...], in order."""

    def whole(self) -> np.ndarray:
        pieces = list(self.pieces(max(1, self.shape[0])))
        return pieces[0] if pieces else np.zeros(self.shape, self.dtype)

    def row(self, number: int) -> GivenArray:
        """One row of a table [rows, entries], as an array of its own."""
        return PlainArray(self.name, self.whole()[number])

    def place(self, row: int, unit: str) -> str:
        """Where a row is, for messages. unit: what has the rows."""
        return f"{unit} {row} (counted from 0)"

    def digest(self) -> str:
        """SHA-256 over dtype, shape and content, in hex."""
        hasher = hashlib.sha256(f"{self.dtype.str} {self.shape}".encode())
        row_bytes = max(1, self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64)))
        for piece in self.pieces(max(1, _PIECE_BYTES // row_bytes)):
            hasher.update(np.ascontiguousarray(piece).data)
        return hasher.hexdigest()


class PlainArray(GivenArray):
    """An array in memory, or one that is mapped from a file."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self.name, self.array, self.shape, self.dtype = name, array, array.shape, array.dtype

    def pieces(self, rows: int) -> Iterator[np.ndarray]:
        for start in range(0, len(self.array), rows):
            yield np.asarray(self.array[start : start + rows])

    def whole(self) -> np.ndarray:
        return np.asarray(self.array)

    def row(self, number: int) -> GivenArray:
        return PlainArray(self.name, self.array[number])


class SparseRows(GivenArray):
    """A SciPy sparse matrix [N, F] that is read as a dense one."""

    def __init__(self, name: str, matrix: Any) -> None:
        self.name, self.matrix = name, sparse.csr_array(matrix)
        self.shape, self.dtype = self.matrix.shape, self.matrix.dtype

    def pieces(self, rows: int) -> Iterator[np.ndarray]:
        for start in range(0, self.shape[0], rows):
            yield self.matrix[start : start + rows].toarray()


def csr_fits(data: np.ndarray, columns: np.ndarray, starts: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether these arrays are a CSR matrix of that shape, [rows, columns]."""
    flat = all(array.ndim == 1 for array in (data, columns, starts))
    return (
        flat
        and columns.dtype.kind in "iu"
        and starts.dtype.kind in "iu"
        and len(starts) == shape[0] + 1
        and starts[0] == 0
        and starts[-1] == len(columns) == len(data)
        and bool((starts[1:] >= starts[:-1]).all())
        and (not len(columns) or bool(columns.min() >= 0 and columns.max() < shape[1]))
    )


class MemberArray(GivenArray):
    """An array of an ``.npz`` file, of which only what is read at the moment is in memory.

    Of a flat one a part: ``skipped`` entries are passed over, and ``entries`` taken; all if not given.
    """

    def __init__(self, path: Path, member: str, skipped: int = 0, entries: int | None = None) -> None:
        self.path, self.member, self._skipped = path, member, skipped
        self.name = f"'{path}': '{member}'"
        with Member(path, member) as reader:
            self.shape, self.dtype = (reader.shape if entries is None else (entries,)), reader.dtype

    def pieces(self, rows: int) -> Iterator[np.ndarray]:
        row_shape = self.shape[1:]
        width = int(np.prod(row_shape, dtype=np.int64))
        with Member(self.path, self.member) as reader:
            reader.skip(self._skipped)
            for start in range(0, self.shape[0], rows):
                count = min(rows, self.shape[0] - start)
                yield reader.read(count * width).reshape(count, *row_shape)
            if (self._skipped + self.shape[0]) * width == int(np.prod(reader.shape, dtype=np.int64)):
                reader.finish()

    def whole(self) -> np.ndarray:
        if self.shape == ():  # a number alone
            with Member(self.path, self.member) as reader:
                return reader.read(1).reshape(())
        return super().whole()

    def row(self, number: int) -> MemberArray:
        return MemberArray(self.path, self.member, number * self.shape[1], self.shape[1])


def member_of(path: Path, member: str) -> GivenArray:
    """An array of an ``.npz`` file; one in Fortran's order, which does not lie row by row, is read into memory.

    Raises ``DataError``: the file is damaged, or the array holds Python objects.
    """
    try:
        return MemberArray(path, member)
    except DataError as error:
        if "array of object" in str(error):
            what = f"'{path}': '{member}' holds Python objects, which are not read"
            raise DataError(f"{what}.", hint="save numbers, in rows of one length") from error
        if "Fortran order: True" not in str(error):
            raise
    with np.load(path, allow_pickle=False) as archive:
        with blame_archive(path):
            return PlainArray(f"'{path}': '{member}'", archive[member])


def given(name: str, value: Any, of: str = "node") -> GivenArray:
    """Whatever holds numbers: a NumPy array, a tensor, a list, a table of pandas, a sparse matrix of SciPy or PyTorch.

    Messages call it ``name``, and each entry's owner ``of``. Raises ``DataError``: it holds none, or is ragged.
    """
    if isinstance(value, GivenArray):
        return value
    matrix = as_matrix(name, value)
    if matrix is not None:
        return SparseRows(name, matrix)
    array = as_array(value)
    if array is None or array.dtype.kind not in "fiub":
        kind = type(value).__name__ if array is None else f"{type(value).__name__} of {array.dtype}"
        hint = "rows of one length" if isinstance(value, list) else None
        if array is not None and array.dtype.kind in "USO":
            hint = "number texts first: np.unique(texts, return_inverse=True)[1]; give every row the same length"
            hint = "texts that are numbers: np.asarray(texts, np.float32); others: np.unique" if of == "edge" else hint
        raise DataError(f"{name} holds no numbers.", given=kind, allowed="an array, a tensor or a list of numbers", hint=hint)
    if not array.shape:
        raise DataError(f"{name} is a single number.", given=array, allowed=f"an array with an entry for each {of}")
    return PlainArray(name, array)


def is_sparse_tensor(value: Any) -> bool:
    """Whether it is a tensor of PyTorch that stores some of its entries only."""
    return hasattr(value, "detach") and str(getattr(value, "layout", "torch.strided")) != "torch.strided"


def as_matrix(name: str, value: Any) -> Any | None:
    """A sparse matrix as SciPy's, with every entry that is stored, also of the same place; None for what is none. Raises
    ``DataError``: PyTorch's is sparse in another way."""
    if sparse.issparse(value):
        return value
    if not is_sparse_tensor(value):
        return None
    tensor, layout = value.detach().cpu(), str(value.layout)
    if layout not in _SPARSE_LAYOUTS or tensor.ndim != 2 or tensor.dense_dim():
        raise DataError(
            f"{name} is a sparse tensor of a form that is not read.",
            given=f"{layout} {list(tensor.shape)}",
            allowed=[f"{form}, two-dimensional" for form in _SPARSE_LAYOUTS],
            hint="tensor.to_dense().to_sparse()",
        )
    if layout == "torch.sparse_coo":
        # Not coalesced, which would add up entries of the same place: these are parallel edges.
        rows, columns = tensor._indices().numpy()
        values = tensor._values()
    else:
        by_row = layout == "torch.sparse_csr"
        starts, inner = (
            (tensor.crow_indices(), tensor.col_indices()) if by_row else (tensor.ccol_indices(), tensor.row_indices())
        )
        outer = np.repeat(np.arange(len(starts) - 1), np.diff(starts.numpy()))
        rows, columns = (outer, inner.numpy()) if by_row else (inner.numpy(), outer)
        values = tensor.values()
    numbers = as_array(values)
    assert numbers is not None
    if numbers.dtype == np.float16:  # which SciPy's matrices do not hold
        numbers = numbers.astype(np.float32)
    return sparse.coo_array((numbers, (rows, columns)), shape=tuple(tensor.shape))


def as_array(value: Any) -> np.ndarray | None:
    """A NumPy array of the same numbers, without a copy where that can be; None for what is none."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach") and hasattr(value, "numpy"):  # a tensor of PyTorch
        tensor = value.detach().cpu()
        if is_sparse_tensor(tensor):
            return None
        if not hasattr(np, str(tensor.dtype).removeprefix("torch.").replace("bool", "bool_")):  # bfloat16 and the like
            tensor = tensor.float()
        return np.asarray(tensor.numpy())
    if hasattr(value, "to_numpy"):
        return np.asarray(value.to_numpy())
    if isinstance(value, list | tuple | range | int | float | np.generic):
        try:
            return np.array(
                [as_array(entry) if hasattr(entry, "detach") else entry for entry in value]
                if isinstance(value, list)
                else value
            )
        except ValueError:
            return None
    return None


def read_labels(given: GivenArray, task: Task | None, unit: str = "node") -> np.ndarray:
    """Labels as ``sargnn.graph.schema`` has them, read piece by piece.

    Args:
        given: numbers [N] or [N, C].
        task: what they are; None: classes, which is refused where they do not look like it.
        unit: what has them.

    Raises ``DataError``: they are none of the task; the array and the node are named.
    """
    if len(given.shape) not in (1, 2) or 0 in given.shape[1:]:
        raise DataError(
            f"{given.name} must have a row for each {unit}.", given=f"shape {list(given.shape)}", allowed="[N] or [N, C]"
        )
    columns, setting = given.shape[1] if len(given.shape) == 2 else 1, _SETTING[unit]
    if task in (None, "classes") and columns > 1:
        raise DataError(
            f"{given.name} holds several numbers for each {unit}, and nothing says what they are.",
            given=f"shape {list(given.shape)}",
            hint=f"{setting}=multilabel for labels 0 and 1, {setting}=regression for values; y.argmax(1) of one-hot rows",
        )
    labels = np.empty((given.shape[0], columns), LABEL_DTYPES[task or "classes"])
    first = 0
    for piece in given.pieces(max(1, _PIECE_NUMBERS // columns)):
        labels[first : first + len(piece)] = _convert(task, given, piece.reshape(len(piece), -1), first, unit)
        first += len(piece)
    return labels if task in ("multilabel", "regression") else labels[:, 0]


def _convert(task: Task | None, given: GivenArray, table: np.ndarray, first: int, unit: str) -> np.ndarray:
    """Some labels [n, C] in the dtype of their task. ``first``: the number of the first. Raises ``DataError``."""
    fractions, hint = table.dtype.kind == "f", None
    missing = np.isnan(table) if fractions else np.zeros(table.shape, bool)
    known = np.where(missing, UNLABELLED, table)
    if task == "regression":
        known, wrong = table, np.isinf(table).any(1) if fractions else np.zeros(len(table), bool)
        what, allowed = "a value that is not finite", "numbers; nan where one is not known"
    elif task == "multilabel":
        wrong = ~np.isin(known, (UNLABELLED, 0, 1)).all(1)
        what, allowed = "a label that is neither 0 nor 1", f"0, 1; {UNLABELLED} or nan where one is not known"
    else:
        whole = known == np.floor(known) if fractions else np.ones(table.shape, bool)
        wrong = (~whole | (known < UNLABELLED) | (known > _LARGEST_CLASS))[:, 0]
        hint = f"{_SETTING[unit]}=regression, if these are values" if task is None and not whole.all() else None
        what, article = "a label that is not a class", "an" if unit == "edge" else "a"
        allowed = f"whole numbers from 0 to {_LARGEST_CLASS}; {UNLABELLED} or nan for {article} {unit} without a label"
    if wrong.any():
        row = int(wrong.argmax())
        shown = ", ".join(str(label) for label in table[row][:5]) + (", ..." if table.shape[1] > 5 else "")
        raise DataError(
            f"{given.name} holds {what}, at {given.place(first + row, unit)}.", given=shown, allowed=allowed, hint=hint
        )
    return known.astype(LABEL_DTYPES[task or "classes"])
