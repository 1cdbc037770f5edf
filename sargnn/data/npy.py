"""The header of a ``.npy`` file, which may be anything."""

from __future__ import annotations

import tokenize
from typing import IO

import numpy as np
from numpy.lib import format as npy_format


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the array that follows, which is in C order and holds no Python objects.

    Raises:
        ValueError: no header, or that of another array.
    """
    try:
        version = npy_format.read_magic(file)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (tokenize.TokenError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise ValueError("its header is damaged") from error
    if dtype.hasobject or (fortran and len(shape) > 1):
        raise ValueError(f"an array of {dtype} {list(shape)}, Fortran order: {fortran}, is in a form that is not read")
    if any(length < 0 for length in shape):
        raise ValueError(f"its shape is {list(shape)}")
    return shape, dtype
