"""What the library is given, as its words: tables, a block's edges, draws, numbers; and the Python code that checks an entry's
arguments, packs them and calls the library, written from the entry's declaration.

A loop over the arguments would take longer than most calls. ``print(entry.text)`` shows the code of one. The words of a table
``a`` are a_0 to a_4: address, rows, width, stride, type. Each letter of types and sizes is a variable, -1 until it is known: _E
of E.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

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


WIDE = (0, 1, 0)
"""Type of what sums of rows are held in, by the type of the rows: fp32, fp64, bf16."""
_FIXED = {"f": 0, "d": 1, "h": 3, "i": 4, "l": 5, "b": 6, "k": 8, "u": 9}
_SIMPLE = {"int": ("q", "{}"), "float": ("d", "{}"), "edges": ("160s", "{}.packed"), "draw": ("5q", "*{}")}
"""Layout and words of what is no table."""


class _Argument(NamedTuple):
    word: str
    kind: str
    sizes: list[str]
    optional: bool

    @property
    def layout(self) -> str:
        return _SIMPLE[self.kind][0] if self.kind in _SIMPLE else "2q" if self.kind.endswith("s") else "5q"


def code_of_call(name: str, declared: tuple[str, ...]) -> tuple[str, str]:
    """A function's text, and the layout of its words as ``struct`` takes it: those of the C++ struct, and behind them those of
    each single table that was given for a list of tables."""
    arguments = [_Argument(word, kind.rstrip("?"), sizes, "?" in kind) for word, kind, *sizes in map(str.split, declared)]
    layout = "".join(argument.layout for argument in arguments)
    count = struct.calcsize(layout) // 8
    letters: dict[str, bool] = {}  # whether each is known, whichever arguments are None
    lines: list[str] = []
    words: list[str] = []
    behind: list[str] = []
    for argument in arguments:
        a = argument.word
        if argument.kind in _SIMPLE:
            words.append(_SIMPLE[argument.kind][1].format(a))
            if argument.kind == "edges":
                lines.append(f" _E = {a}.count")
                letters["E"] = True
            continue
        each = [f"{a}_{k}" for k in range(5)]
        missing = f"{' = '.join(each[:4])} = 0; {a}_4 = -1"
        load = list(_load(name, a, len(argument.sizes)))
        if argument.layout == "2q":
            place = f"{a}_at, {a}_count"
            load = [
                f"if type({a}) is list or type({a}) is tuple:",
                f" {a}_held, {a}_1, {a}_2, {a}_4 = _words_of_tables({a}, '{name}: {a}'); {a}_0 = {a}_3 = 0",
                f" {place} = {a}_held.buffer_info()[0], len({a})",
                "else:",
                *(f" {line}" for line in load),
                f" {place} = _at + {8 * (count + len(behind))}, 1",
            ]
            missing += f"; {place} = 0, 0"
            words.append(place)
            behind += each
        else:
            words += each
        load += _check(argument, letters)
        lines.append(f" if {a} is None: " + (missing if argument.optional else f"_wrong('{a}', 'is missing', {{}})"))
        lines += [" else:", *(f"  {line}" for line in load)]
    text = [
        f"def {name}({', '.join(argument.word for argument in arguments)}):",
        f" {' = '.join([f'_{letter}' for letter in letters] + ['_'])} = -1",
        " try: _words, _at = _free.pop()",
        " except IndexError: _words, _at = _room()",
        *lines,
        f" _pack(_words, 0, {', '.join(words + behind)})",
        f" _result = _call(_at, {count})",
        " _free.append((_words, _at))",
        " return _result if _result >= 0 else _failed(_result)",
    ]
    return "\n".join(text), layout + f"{len(behind)}q"


def _load(name: str, a: str, dimensions: int) -> Iterator[str]:
    """Sets a table's words: a tensor's here, other ones elsewhere."""
    each = ", ".join(f"{a}_{k}" for k in range(5))
    if dimensions == 0:
        yield f"{each} = _flat_words({a}, '{name}: {a}')"
        return
    yield f"if not isinstance({a}, _ndarray) and {a}.ndim == {dimensions} and {a}.is_cpu:"
    yield f" {a}_0 = {a}.data_ptr() or {SOMEWHERE}; {a}_4 = _codes[{a}.dtype]"
    if dimensions == 2:
        yield f" {a}_1, {a}_2 = {a}.shape; {a}_3, _step = {a}.stride()"
        yield f" if _step != 1 and {a}_2 > 1: _words_of({a}, '{name}: {a}')"  # raises
        yield f" if {a}_1 < 2: {a}_3 = {a}_2"
    else:
        yield f" {a}_1, = {a}.shape; {a}_2 = {a}_3 = 1"
        yield f" if not {a}.is_contiguous(): _words_of({a}, '{name}: {a}')"
    yield f"else: {each} = _words_of({a}, '{name}: {a}')"
    if dimensions == 1:
        yield f"if {a}_2 != 1 or {a}_3 != 1: _wrong('{a}', f'is no vector: width {{{a}_2}}, stride {{{a}_3}}', {{}})"


def _check(argument: _Argument, letters: dict[str, bool]) -> Iterator[str]:
    """Compares a table's type and sizes with what is declared and known."""
    a, kind = argument.word, argument.kind[0]
    other_type = f"_wrong('{a}', f'is {{_NAMES[{a}_4]}}, not {kind}', locals())"
    if kind in _FIXED:
        yield f"if {a}_4 != {_FIXED[kind]}: {other_type}"
    elif kind == "w":
        letters.setdefault("x", False)
        yield f"if {a}_4 != (_WIDE[_x] if _x >= 0 else {a}_4 & 1): {other_type}"
    elif kind != "*":
        yield f"if {a}_4 > 2: {other_type}"
        yield from _compare(kind, f"{a}_4", other_type, argument.optional, letters)
    for place, size in enumerate(argument.sizes, 1):
        other = f"_wrong('{a}', f'has size {{{a}_{place}}} in place {place - 1}, not {size}', locals())"
        if size.isdigit():
            yield f"if {a}_{place} != {size}: {other}"
        else:
            letter, _, more = size.partition("+")
            yield from _compare(letter, f"{a}_{place} - {more}" if more else f"{a}_{place}", other, argument.optional, letters)


def _compare(letter: str, value: str, other: str, optional: bool, letters: dict[str, bool]) -> Iterator[str]:
    if letters.get(letter):
        yield f"if {value} != _{letter}: {other}"
        return
    if letter in letters:  # known unless what it stood for was None
        yield f"if _{letter} < 0: _{letter} = {value}"
        yield f"elif {value} != _{letter}: {other}"
    else:
        yield f"_{letter} = {value}"
    letters[letter] = not optional
