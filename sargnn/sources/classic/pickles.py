"""Pickles of arrays, read without running anything that they name.

A pickle is a program: it names functions and calls them. Here the few names that arrays, sparse matrices and mappings of lists
need lead to stand-ins, which keep what they are given and are looked at afterwards; every other name is refused. Nothing of
NumPy or SciPy is called with what the file says before shapes, dtypes and lengths fit each other.

Pickles of Python 2 are read too; their texts are bytes, taken as Latin-1.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from sargnn.errors import DataError
from sargnn.sources.own.given import csr_fits

_DAMAGES = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
    ImportError,
    OSError,
)
"""What ``pickle`` raises for content that is no pickle, or one that ends too early."""


class _NotAdmitted(Exception):
    """A name that arrays do not need."""


class _Dtype:
    """Numbers only."""

    def __init__(self, name: Any, align: Any = False, copy: Any = False) -> None:
        name = name.decode() if isinstance(name, bytes) else name
        if not isinstance(name, str) or not re.fullmatch(r"[<>=|]?[fiub]\d{1,2}", name):
            raise pickle.UnpicklingError(f"an array of {str(name)[:40]}")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 4 and not any(state[2:5]) else None
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("a dtype that is none of numbers")
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    array: np.ndarray

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        content = content.encode("latin1") if isinstance(content, str) else content
        sizes = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        if not (sizes and isinstance(dtype, _Dtype) and isinstance(content, bytes)):
            raise pickle.UnpicklingError("an array of something else than numbers")
        entries = 1
        for size in shape:
            entries *= size
        if entries * dtype.dtype.itemsize != len(content):
            raise pickle.UnpicklingError(f"an array of shape {list(shape)} with {len(content)} bytes")
        flat = np.frombuffer(content, dtype.dtype) if content else np.zeros(0, dtype.dtype)
        self.array = flat.reshape(shape, order="F" if fortran else "C")


class _Matrix:
    state: dict[str, Any]

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError("a sparse matrix without content")
        self.state = state


class _Lists(dict[Any, Any]):
    def __init__(self, default: Any = None) -> None:
        super().__init__()


class _Object:
    """The oldest protocols name ``object`` beside a class."""


def _empty_array(kind: Any, shape: Any, code: Any) -> _Array:
    if kind is not _Array:
        raise pickle.UnpicklingError("an array of a kind of its own")
    return _Array()


def _new(kind: Any, base: Any, state: Any) -> _Matrix:
    if kind is not _Matrix:
        raise pickle.UnpicklingError("an object that is no matrix")
    return _Matrix()


def _number(dtype: Any, content: Any) -> int | float:
    scalar = _Array()
    scalar.__setstate__((1, (), dtype, False, content))
    return scalar.array.item()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("bytes in another form")
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("collections", "defaultdict"): _Lists,
    ("_codecs", "encode"): _encode,
    **{(module, "_reconstruct"): _empty_array for module in ("numpy.core.multiarray", "numpy._core.multiarray")},
    **{(module, "scalar"): _number for module in ("numpy.core.multiarray", "numpy._core.multiarray")},
    **{(f"scipy.sparse.{module}", "csr_matrix"): _Matrix for module in ("csr", "_csr")},
    **{(module, "_reconstructor"): _new for module in ("copy_reg", "copyreg")},
    **{(module, "list"): list for module in ("__builtin__", "builtins")},
    **{(module, "object"): _Object for module in ("__builtin__", "builtins")},
}
"""(module, name) as a pickle has them -> what stands for it."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise _NotAdmitted(f"{module}.{name}") from None


def _load(path: Path) -> Any:
    """What a pickle holds, of stand-ins. Raises ``DataError`` where it names what is not admitted, or is damaged."""
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="latin1").load()
    except _NotAdmitted as error:
        raise DataError(
            f"'{path}' names what no array needs, and is not read: a pickle can run any program.",
            given=str(error)[:100],
            allowed="arrays of NumPy, CSR matrices of SciPy, mappings of lists",
            hint="take the file from another place",
        ) from error
    except _DAMAGES as error:
        what = "it ends too early" if isinstance(error, EOFError) else str(error)[:100] or type(error).__name__
        raise DataError(f"'{path}' cannot be read: {what}", hint="take the file anew") from error


def _is_not(path: Path, wanted: str, content: Any) -> DataError:
    names = {_Array: "array", _Matrix: "sparse matrix", _Lists: "mapping"}
    return DataError(f"'{path}' does not hold {wanted}.", given=names.get(type(content), type(content).__name__))


def load_array(path: Path) -> np.ndarray:
    """An array of numbers. Raises ``DataError`` for a file that is damaged, or holds something else."""
    content = _load(path)
    if not isinstance(content, _Array) or "array" not in vars(content):
        raise _is_not(path, "an array", content)
    return content.array


def load_matrix(path: Path) -> sparse.csr_array:
    """A CSR matrix of numbers. Raises ``DataError`` for a file that is damaged, or holds something else."""
    content = _load(path)
    if not isinstance(content, _Matrix) or "state" not in vars(content):
        raise _is_not(path, "a sparse matrix", content)
    arrays: list[Any] = [getattr(content.state.get(name), "array", None) for name in ("data", "indices", "indptr")]
    shape: Any = content.state.get("_shape", content.state.get("shape"))
    shaped = isinstance(shape, tuple) and len(shape) == 2 and all(type(size) is int and 0 <= size < 2**31 for size in shape)
    if not shaped or any(array is None for array in arrays):
        raise _is_not(path, "a sparse matrix in CSR format", content)
    data, indices, indptr = arrays
    if not csr_fits(data, indices, indptr, shape):
        raise DataError(f"'{path}' holds a sparse matrix that is damaged.", given=f"shape {list(shape)}, {len(data)} entries")
    native = (array.astype(array.dtype.newbyteorder("="), copy=False) for array in arrays)
    return sparse.csr_array(tuple(native), shape=shape)


def load_lists(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A mapping from node to the list of its neighbours, as int64 [E] each: nodes, neighbours, in the order of the file.

    Raises ``DataError`` for a file that is damaged, or an entry that is something else, which is named.
    """
    content = _load(path)
    if not isinstance(content, dict):
        raise _is_not(path, "a mapping from node to neighbours", content)
    nodes: list[int] = []
    neighbours: list[int] = []
    for node, those in content.items():
        if type(node) is not int or not isinstance(those, list) or not all(type(neighbour) is int for neighbour in those):
            raise DataError(f"'{path}' does not give node {str(node)[:40]} a list of node numbers.", given=str(those)[:60])
        nodes += [node] * len(those)
        neighbours += those
    try:
        return np.array(nodes, np.int64), np.array(neighbours, np.int64)
    except OverflowError as error:
        raise DataError(f"'{path}' names a node that cannot be.", allowed="numbers below 2**63") from error
