"""The package's compiled code, C++ in ``src``, called with addresses and sizes.

It knows nothing of Python and PyTorch: one library serves every version of both. ``Entry`` is one of its functions. It checks
the types, strides and lengths of its arguments against what it was declared with, for the code checks nothing.

    _take = Entry("take_rows", "source x S F", "rows i R", "out x R F")
    _take(source, rows, out)

An argument is declared by its name, its type and its sizes:

    x           rows: fp32, fp64 or bf16, all of a call alike; y, z likewise, apart from x
    w           what sums of such rows are held in: fp32 for bf16
    f d         fp32; fp64
    h i l       int16; int32; int64
    b u         uint8 or bool; uint64
    *           any type
    xs          a list of tables of rows, numbered one after another (S: of all of them), or a single one; ys likewise
    int float   a number; True and False are 1 and 0
    edges       what ``Edges`` holds; draw: what ``draw_words`` gives

Sizes: letters, alike wherever they stand in a call; A+1; a number; none for a flat table of any length. A question mark behind
the type: the argument may be None. Tensors of a CPU and NumPy's arrays are taken alike.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from sargnn.errors import SargnnError
from sargnn.native.build import ISA, LIBRARIES, digest_of_sources, library_path, usable

_CODES = {"float32": 0, "float64": 1, "bfloat16": 2, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "bool": 6}
_CODES |= {"uint16": 7, "uint32": 8, "uint64": 9}
_NAMES = {code: name for name, code in reversed(_CODES.items())}
_FP32, _FP64, _BF16 = range(3)
_FIXED = {"f": 0, "d": 1, "h": 3, "i": 4, "l": 5, "b": 6, "u": 9, "k": 8}
_NOTHING = (0, 0, 0, 0, -1)
_of_dtype: dict[Any, tuple[int, int]] = {}
"""Code and bytes of each dtype, PyTorch's and NumPy's."""


@functools.cache
def library() -> ctypes.CDLL:
    """The library for this processor, or for the one that ``SARGNN_ISA`` names.

    Raises:
        SargnnError: there is none, or it is older than its sources.
    """
    name = chosen()
    path = library_path(name)
    if not path.exists():
        raise SargnnError("The package's compiled code is missing.", given=str(path), hint="python -m sargnn.native.build")
    loaded = ctypes.CDLL(str(path))
    loaded.sargnn_sources.restype = ctypes.c_char_p
    if loaded.sargnn_sources().decode() != digest_of_sources():
        raise SargnnError("The package's compiled code is older than its sources.", hint="python -m sargnn.native.build")
    return loaded


@functools.cache
def chosen() -> str:
    """The name of the library that is used: the widest that this processor can run."""
    if wanted := os.environ.get(ISA):
        if wanted not in LIBRARIES:
            raise SargnnError(f"{ISA} names no library.", given=wanted, allowed=", ".join(LIBRARIES))
        return wanted
    return usable()[-1]


def set_threads(count: int) -> None:
    """How many threads the library's functions use. Results do not depend on it."""
    library().sargnn_set_threads(ctypes.c_int64(count))


def num_threads() -> int:
    return int(library().sargnn_threads())


def bits_of(x: float) -> int:
    """A number as the library's words hold it."""
    return int(struct.unpack("q", struct.pack("d", x))[0])


def words_of(x: Any) -> tuple[int, int, int, int, int]:
    """A table, tensor or array, as the library takes it: address, rows, width, stride, type. A vector has width 1.

    Raises:
        ValueError: a row's numbers do not lie side by side, or the table has three dimensions or more that are not joined.
    """
    if isinstance(x, np.ndarray):
        address, item, strides = x.__array_interface__["data"][0], x.itemsize, x.strides
        stride_of = [stride // item for stride in strides]
    else:
        address, stride_of = x.data_ptr(), x.stride()
    known = _of_dtype.get(x.dtype)
    if known is None:
        _of_dtype[x.dtype] = known = _CODES[str(x.dtype).removeprefix("torch.")], x.itemsize
    shape = x.shape
    if len(shape) == 2:
        rows, width = shape
        stride = stride_of[0]
        if width > 1 and stride_of[1] != 1 and rows:
            raise ValueError(f"a row's numbers do not lie side by side: strides {tuple(stride_of)}")
        return address, rows, width, stride if rows > 1 else width, known[0]
    if len(shape) == 1:
        if shape[0] > 1 and stride_of[0] != 1:
            raise ValueError(f"a vector's numbers do not lie side by side: strides {tuple(stride_of)}")
        return address, shape[0], 1, 1, known[0]
    raise ValueError(f"neither a table nor a vector: shape {tuple(shape)}")


def flat_words(x: Any) -> tuple[int, int, int, int, int]:
    """A table of any shape as one vector."""
    return words_of(x.reshape(-1))


class Edges:
    """A block's edges in one direction, as the library walks them.

    Attributes:
        words: of the four arrays.
        arrays: they, which must stay where they are: boundaries, int64, of chunks of listed rows; the listed rows, int32, or
            None if all are; where each one's edges begin, int32; the rows at their other ends, int32.
    """

    __slots__ = ("arrays", "words")

    def __init__(self, *arrays: Any) -> None:
        self.arrays = arrays
        self.words = [word for x in arrays for word in (_NOTHING if x is None else words_of(x))]


class Entry:
    """A function of the library: see the module's text.

    Args:
        name: its name, without the library's prefix.
        arguments: what it takes, in the order of the C++ struct.
    """

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self._specs = [_spec(text) for text in arguments]
        self._call: Any = None

    def __call__(self, *arguments: Any) -> int:
        """What the function returns.

        Raises:
            ValueError: an argument is not what was declared.
        """
        words: list[int] = []
        bound: dict[str, int] = {}
        keep: list[Any] = []
        if len(arguments) != len(self._specs):
            raise ValueError(f"{self.name}: {len(arguments)} arguments, not {len(self._specs)}")
        for spec, given in zip(self._specs, arguments, strict=True):
            _, kind, optional, sizes = spec
            if kind == "int":
                words.append(int(given))
            elif kind == "float":
                words.append(bits_of(given))
            elif kind == "edges":
                words += given.words
            elif kind == "draw":
                words += given
            elif given is None:
                if not optional:
                    raise ValueError(f"{self.name}: {spec[0]} is missing")
                words += _NOTHING if len(kind) == 1 else (0, 0)
            elif len(kind) == 1:
                table = words_of(given) if sizes or given.ndim < 3 else flat_words(given)
                self._check(spec, table, bound)
                words += table
            else:
                tables = [words_of(one) for one in (given if isinstance(given, (list, tuple)) else (given,))]
                self._check_tables(spec, tables, bound)
                held = array("q", [word for table in tables for word in table])
                keep.append(held)
                words += held.buffer_info()[0], len(tables)
        if self._call is None:
            self._call = getattr(library(), f"sargnn_{self.name}")
            self._call.argtypes, self._call.restype = (ctypes.c_void_p, ctypes.c_int64), ctypes.c_int64
        packed = array("q", words)
        result: int = self._call(packed.buffer_info()[0], len(packed))
        if result < 0:
            problem = {-1: f"takes other words than these {len(words)}", -2: "is not there for rows of this type"}
            raise ValueError(f"{self.name} {problem.get(result, f'failed with {result}')}")
        return result

    def _check(self, spec: _Spec, table: Sequence[int], bound: dict[str, int]) -> None:
        name, kind, _, sizes = spec
        code = table[4]
        if kind in _FIXED:
            right = code == _FIXED[kind]
        elif kind == "w":
            x = bound.get("x")
            right = code == (_FP32 if x == _BF16 else x) if x is not None else code in (_FP32, _FP64)
        elif kind == "*":
            right = True
        else:
            right = bound.setdefault(kind, code) == code and code <= _BF16
        if not right:
            raise ValueError(f"{self.name}: {name} is {_NAMES[code]}, not '{kind}'{_where(bound)}")
        for place, (letter, more, number) in enumerate(sizes):
            size = table[1 + place]
            wanted = number if letter is None else bound.setdefault(letter, size - more) + more
            if size != wanted:
                raise ValueError(f"{self.name}: {name} has size {size} in place {place}, not {wanted}{_where(bound)}")

    def _check_tables(self, spec: _Spec, tables: list[tuple[int, int, int, int, int]], bound: dict[str, int]) -> None:
        name, kind, optional, sizes = spec
        first = tables[0]
        if any(table[2] != first[2] or table[4] != first[4] for table in tables):
            raise ValueError(f"{self.name}: the tables of {name} differ in width or type")
        total = sum(table[1] for table in tables)
        self._check((name, kind[0], optional, sizes), (first[0], total, *first[2:]), bound)


_Spec = tuple[str, str, bool, list[tuple[str | None, int, int]]]


def _spec(text: str) -> _Spec:
    name, kind, *sizes = text.split()
    optional = kind.endswith("?")
    return name, kind.rstrip("?"), optional, [_size(size) for size in sizes]


def _size(text: str) -> tuple[str | None, int, int]:
    if text.isdigit():
        return None, 0, int(text)
    letter, _, more = text.partition("+")
    return letter, int(more or 0), 0


def _where(bound: dict[str, int]) -> str:
    sizes = ", ".join(f"{name} = {_NAMES[value] if name in 'xyz' else value}" for name, value in bound.items())
    return f", where {sizes}" if sizes else ""


_NO_DRAW = (0, 0, 0, 0, bits_of(1.0))


def draw_words(draw: Any) -> tuple[int, ...]:
    """A ``rng.Draw`` as the library takes it; None: nothing is dropped."""
    if draw is None:
        return _NO_DRAW
    return draw.seed, draw.epoch, draw.tag, draw.threshold, bits_of(draw.scale)
