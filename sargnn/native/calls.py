"""Writes the Python code that checks an entry's arguments, packs them and calls the library, from the entry's declaration.

A loop over the arguments would take longer than most calls. ``print(entry.text)`` shows the code of one.

The words of a table ``a`` are a_0 to a_4: address, rows, width, stride, type. Each letter of types and sizes is a variable, -1
until it is known: _E of E.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from sargnn.native.words import SOMEWHERE

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
