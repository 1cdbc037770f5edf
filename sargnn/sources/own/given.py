"""Arrays as a user gives them, whole or piece by piece, each with the name that messages call it.

Letters: N nodes, E edges, F features.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from sargnn.errors import DataError
from sargnn.sources.npz import Member, blame_archive

_PIECE_BYTES = 1 << 24
_SPARSE_LAYOUTS = ("torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc")


class GivenArray(ABC):
    """An array that can be read from its beginning.

    Attributes:
        name: what messages call it.
        shape, dtype: of the whole.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @abstractmethod
    def pieces(self, rows: int) -> Iterator[np.ndarray]:
        """[at most ``rows``, ...], in order."""

    def whole(self) -> np.ndarray:
        """All of it."""
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

    Args:
        path: the archive.
        member: the array's name in it.
        skipped, entries: a part of a flat array: so many entries are passed over, and so many taken; all if not given.
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
    """An array of an ``.npz`` file. One in Fortran's order, which does not lie row by row, is read into memory.

    Raises:
        DataError: the file is damaged, or the array holds Python objects.
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

    Args:
        name: what messages call it.
        value: what was given.
        of: what each entry is of, for messages.

    Raises:
        DataError: it holds none, or is ragged.
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
    """A sparse matrix as SciPy's, with every entry that is stored, also of the same place; None for what is none.

    Raises:
        DataError: a tensor of PyTorch that is sparse in another way; ``name`` is what the message calls it.
    """
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
