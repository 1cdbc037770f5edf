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
    b k u       uint8 or bool; uint32; uint64
    *           any type
    xs          a list of tables of rows, numbered one after another (S: of all of them), or a single one; ys likewise
    int float   a number; True and False are 1 and 0
    edges       what ``Edges`` holds, E edges; draw: what ``draw_words`` gives

Sizes: letters, alike wherever they stand in a call; A+1; a number. A vector has one, a table two; none: any length, and a table
of three dimensions or more is taken as one vector. A question mark behind the type: the argument may be None. Tensors of a CPU
and NumPy's arrays are taken alike, tensors faster.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import struct
from array import array
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from sargnn.errors import SargnnError
from sargnn.native.build import AGAIN, ISA, SANITIZED, SOURCES, digest_of_sources, lacks, library_path, names_here, usable
from sargnn.native.words import NAMES, WIDE, Edges, code_of_call, codes, draw_words, flat_words, words_of, words_of_tables

__all__ = ["Edges", "Entry", "chosen", "describe", "draw_words", "library", "num_threads", "set_threads"]


def library(name: str | None = None) -> ctypes.CDLL:
    """The library for this processor, or for the one that ``SARGNN_ISA`` names; or the one of this ``name``.

    Raises ``SargnnError`` where there is none, or it is older than its sources.
    """
    return _load(name or chosen())


@functools.cache
def _load(name: str) -> ctypes.CDLL:
    path, again = library_path(name), f"{AGAIN} {name}"
    if not path.exists():
        raise SargnnError("The package's compiled code is missing.", given=path, hint=again)
    loaded = ctypes.CDLL(str(path))
    loaded.sargnn_sources.restype = ctypes.c_char_p
    if SOURCES.exists() and loaded.sargnn_sources().decode() != digest_of_sources():
        raise SargnnError("The package's compiled code is older than its sources.", given=path, hint=again)
    loaded.sargnn_set_threads(ctypes.c_int64(_usual_threads()))
    return loaded


def _usual_threads() -> int:
    """As PyTorch has them: OMP_NUM_THREADS, else the usable cores."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(given) if given.isdigit() else len(os.sched_getaffinity(0))


@functools.cache
def chosen() -> str:
    """The name of the library that is used: the widest that this processor can run, or what ``SARGNN_ISA`` says. Raises
    ``SargnnError`` where that, or any, cannot run here.
    """
    wanted, can_run = os.environ.get(ISA), usable()
    if wanted and wanted not in [*names_here(), SANITIZED]:
        raise SargnnError(f"{ISA} names no library of this kind of machine.", given=wanted, allowed=can_run)
    if wanted and wanted != SANITIZED and lacks(wanted):
        raise SargnnError(f"This processor cannot run {ISA}={wanted}: it lacks {', '.join(lacks(wanted))}.", allowed=can_run)
    if not can_run:
        given = f"{platform.system()} on {platform.machine()}"
        raise SargnnError(
            "The package's compiled code cannot run here.", given=given, allowed="Linux on x86-64-v2 or 64-bit Arm"
        )
    return wanted or can_run[-1]


def describe() -> str:
    """Which library is used, and why no wider one."""
    if os.environ.get(ISA):
        return f"{chosen()}, which {ISA} asks for"
    lacking = [f"{name} needs {', '.join(lacks(name))}" for name in names_here() if lacks(name)]
    return "; ".join([chosen(), *lacking])


def set_threads(count: int) -> None:
    """How many threads the library's functions use. Results do not depend on it."""
    library().sargnn_set_threads(ctypes.c_int64(count))


def num_threads() -> int:
    return int(library().sargnn_threads())


class Entry:
    """A function of the library: see the module's text.

    Args:
        name: its name, without the library's prefix.
        declared: what it takes, in the order of the C++ struct: arguments with commas between them, in one text or several.
        of: the library's name; None: the one that is chosen.
    """

    def __init__(self, name: str, *declared: str, of: str | None = None) -> None:
        self.name, self._of = name, of
        self.declared = tuple(text.strip() for some in declared for text in some.split(","))
        self._call: Callable[..., int] | None = None

    def __call__(self, *arguments: Any) -> int:
        """What the function returns. Raises ``ValueError`` where an argument is not what was declared."""
        return (self._call or self._first_call())(*arguments)

    @property
    def text(self) -> str:
        """The Python code of a call."""
        return code_of_call(self.name, self.declared)[0]

    def _first_call(self) -> Callable[..., int]:
        text, layout = code_of_call(self.name, self.declared)
        call = getattr(library(self._of), f"sargnn_{self.name}")
        call.argtypes, call.restype = (ctypes.c_void_p, ctypes.c_int64), ctypes.c_int64
        packer = struct.Struct(layout)

        def room() -> tuple[array[int], int]:
            words = array("q", bytes(packer.size))
            return words, words.buffer_info()[0]

        # Threads may be in calls at the same time, each with words of its own; one that has returned leaves them to the next.
        names = {"call": call, "pack": packer.pack_into, "free": [], "room": room, "wrong": self._wrong, "failed": self._failed}
        names |= {"NAMES": NAMES, "WIDE": WIDE, "codes": codes, "ndarray": np.ndarray}
        names |= {"words_of": words_of, "flat_words": flat_words, "words_of_tables": words_of_tables}
        space: dict[str, Any] = {f"_{name}": value for name, value in names.items()}  # arguments may have any other name
        exec(compile(text, f"<call of {self.name}>", "exec"), space)
        made: Callable[..., int] = space[self.name]
        self._call = made
        return made

    def _wrong(self, argument: str, problem: str, known: dict[str, int]) -> NoReturn:
        letters = {name[1]: value for name, value in known.items() if len(name) == 2 and name[0] == "_" and value >= 0}
        shown = ", ".join(f"{letter} = {NAMES[value] if letter in 'xyz' else value}" for letter, value in letters.items())
        raise ValueError(f"{self.name}: {argument} {problem}{', where ' if shown else ''}{shown}")

    def _failed(self, result: int) -> NoReturn:
        problem = {-1: "takes other words than are declared", -2: "is not there for rows of this type"}
        raise ValueError(f"{self.name} {problem.get(result, f'failed with {result}')}")
