"""What the library is given, as its words: tables, a block's edges, draws, numbers."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import numpy as np

_CODES = {"float32": 0, "float64": 1, "bfloat16": 2, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "bool": 6}
_CODES |= {"uint16": 7, "uint32": 8, "uint64": 9}
NAMES = {code: name for name, code in reversed(_CODES.items())}
"""Of types, by the library's code."""
SOMEWHERE = 64
"""The address of a table that has no numbers: 0 would say that there is no table."""
NO_TABLE = (0, 0, 0, 0, -1)


class _Codes(dict[Any, int]):
    def __missing__(self, dtype: Any) -> int:
        name = str(dtype).removeprefix("torch.")
        if name not in _CODES:
            raise ValueError(f"the library knows no {name}")
        self[dtype] = _CODES[name]
        return self[dtype]


codes = _Codes()
"""The library's code of a dtype, PyTorch's or NumPy's."""


def words_of(x: Any, name: str = "a table") -> tuple[int, int, int, int, int]:
    """A table, tensor or array, as the library takes it: address, rows, width, stride, type. A vector has width 1.

    Raises ``ValueError``, with the table's ``name``, where numbers of a row do not lie side by side, it has three dimensions or
    more, or is on a device.
    """
    shape = tuple(x.shape)
    if isinstance(x, np.ndarray):
        address = x.__array_interface__["data"][0] if x.size else SOMEWHERE
        strides = tuple(stride // x.itemsize for stride in x.strides)
    elif not x.is_cpu:
        raise ValueError(f"{name} is on {x.device}, not on the CPU")
    else:
        address, strides = x.data_ptr() or SOMEWHERE, x.stride()
    if len(shape) not in (1, 2):
        raise ValueError(f"{name} has {len(shape)} dimensions, not one or two: shape {shape}")
    if shape[-1] > 1 and strides[-1] != 1 and 0 not in shape:  # an array without numbers has strides of 0
        raise ValueError(f"{name} has rows whose numbers do not lie side by side: shape {shape}, strides {strides}")
    rows, width = shape if len(shape) == 2 else (shape[0], 1)
    return address, rows, width, strides[0] if len(shape) == 2 and rows > 1 else width, codes[x.dtype]


def flat_words(x: Any, name: str) -> tuple[int, int, int, int, int]:
    """A table of three dimensions or more as one vector. Raises ``ValueError`` where its numbers do not lie side by side."""
    if x.ndim < 3:
        return words_of(x, name)
    if not (x.flags.c_contiguous if isinstance(x, np.ndarray) else x.is_contiguous()):
        raise ValueError(f"{name} has numbers that do not lie side by side: shape {tuple(x.shape)}")
    return words_of(x.reshape(-1), name)


def words_of_tables(tables: Any, name: str) -> tuple[array[int], int, int, int]:
    """The words of several tables, and rows, width and type of all. Raises ``ValueError`` where these differ, or there is
    none.
    """
    words = [words_of(table, name) for table in tables]
    if len({(table[2], table[4]) for table in words}) != 1:
        given = ", ".join(f"{NAMES[table[4]]} of width {table[2]}" for table in words)
        raise ValueError(f"{name} needs tables of one width and type, not {given or 'none'}")
    return array("q", [word for table in words for word in table]), sum(table[1] for table in words), words[0][2], words[0][4]


class Edges:
    """A block's edges in one direction, as the library walks them. Raises ``ValueError`` where an array has another type.

    Attributes:
        arrays: boundaries, int64, of chunks of listed rows; the listed rows, int32, or None if all are; where each one's edges
            begin, int32; the rows at their other ends, int32. They must stay where they are.
        packed: their words.
    """

    __slots__ = ("arrays", "count", "packed")

    def __init__(self, bounds: Any, listed: Any, offsets: Any, others: Any) -> None:
        self.arrays = (bounds, listed, offsets, others)
        words = [NO_TABLE if x is None else words_of(x) for x in self.arrays]
        types = [table[4] for table in words]
        if types not in ([5, 4, 4, 4], [5, -1, 4, 4]):
            raise ValueError(
                f"edges are int64 and three times int32, not {', '.join(NAMES.get(code, 'None') for code in types)}"
            )
        if listed is not None and len(listed) + 1 != len(offsets):
            raise ValueError(f"{len(listed)} listed rows and {len(offsets)} offsets")
        self.count = int(words[3][1])
        self.packed = struct.pack("20q", *(word for table in words for word in table))

    @property
    def chunks(self) -> int:
        return len(self.arrays[0]) - 1


def bits_of(x: float) -> int:
    """A number as the library's words hold it."""
    return int(struct.unpack("q", struct.pack("d", x))[0])


_NO_DRAW = (0, 0, 0, 0, bits_of(1.0))


def draw_words(draw: Any) -> tuple[int, ...]:
    """A ``rng.Draw`` as the library takes it; None: nothing is dropped."""
    if draw is None:
        return _NO_DRAW
    return draw.seed, draw.epoch, draw.tag, draw.threshold, bits_of(draw.scale)
