"""The border: what a call hands over, what it refuses."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sargnn import native
from sargnn.native import Edges, Entry, draw_words
from sargnn.rng import Draw, Purpose
from tests.native.blocks import matrix, random_edges, sum_rows


class Echo:
    """An entry without C++: keeps the words of its calls, and the tables that words point at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *declared: str, answer: int = 7) -> None:
        self.words: list[int] = []
        self.tables: list[int] = []

        def called(at: int, count: int) -> int:
            self.words = list((ctypes.c_int64 * count).from_address(at))
            if any("xs" in text.split()[1] for text in declared) and self.words[1]:
                self.tables = list((ctypes.c_int64 * (5 * self.words[1])).from_address(self.words[0]))
            return answer

        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(called)
        monkeypatch.setattr(native, "library", lambda of: SimpleNamespace(sargnn_echo=function))
        self.call = Entry("echo", *declared)


def word(x: float) -> int:
    return int(struct.unpack("q", struct.pack("d", x))[0])


def test_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Echo(monkeypatch, "count int", "scale float", "adds int", "draw draw")
    draw = Draw(seed=2**32 - 1, epoch=5, purpose=Purpose.DROPOUT, layer=2, p=0.5)
    assert echo.call(-3, 0.5, True, draw_words(draw)) == 7
    assert echo.words == [-3, word(0.5), 1, 2**32 - 1, 5, draw.tag, 2**31, word(2.0)]
    echo.call(np.int64(4), 1, False, draw_words(None))
    assert echo.words == [4, word(1.0), 0, 0, 0, 0, 0, word(1.0)]


TYPES = ["float32", "float64", "bfloat16", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("code, name", list(enumerate(TYPES)))
def test_types(monkeypatch: pytest.MonkeyPatch, code: int, name: str) -> None:
    echo = Echo(monkeypatch, "a * N", "b *")
    table = torch.zeros(4, dtype=getattr(torch, name))
    echo.call(table, table)
    assert echo.words == [table.data_ptr(), 4, 1, 1, code] * 2
    if name != "bfloat16":
        array = np.zeros(4, name)
        echo.call(array, array)
        assert echo.words == [array.ctypes.data, 4, 1, 1, code] * 2


def test_a_bool_is_a_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Echo(monkeypatch, "mask b N", "other b N")
    echo.call(torch.zeros(3, dtype=torch.bool), np.zeros(3, bool))
    assert echo.words[4] == echo.words[9] == 6


@pytest.mark.parametrize("numpy", [False, True])
def test_strides(monkeypatch: pytest.MonkeyPatch, numpy: bool) -> None:
    """A row may be a part of a wider one. Strides of what has one row or one column say nothing."""
    echo = Echo(monkeypatch, "a x N F")
    wide = torch.zeros(6, 10)
    cases = [
        (wide, 6, 10, 10),
        (wide[:, 3:7], 6, 4, 10),
        (wide[::2], 3, 10, 20),
        (wide[:, 4:5], 6, 1, 10),
        (wide[2:3, 3:7], 1, 4, 4),
        (wide.T[:1, :1], 1, 1, 1),
        (wide[:0], 0, 10, 10),
        (wide[:, :0], 6, 0, 10),
    ]
    for table, rows, width, stride in cases:
        echo.call(table.numpy() if numpy else table)
        assert echo.words[1:3] == [rows, width], table.stride()
        if table.numel():
            assert echo.words[0] == table.data_ptr() and echo.words[3] == stride, table.stride()


def test_an_empty_table_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of 0 says that there is none; a tensor without numbers has that address, too."""
    echo = Echo(monkeypatch, "a x? N")
    assert torch.zeros(0).data_ptr() == 0
    for table in (torch.zeros(0), np.zeros(0, np.float32)):
        echo.call(table)
        assert echo.words[0] != 0 and echo.words[1:] == [0, 1, 1, 0]
    echo.call(None)
    assert echo.words == [0, 0, 0, 0, -1]


def test_lists_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Echo(monkeypatch, "src xs? S F", "own f? S")
    first, second = torch.zeros(3, 4), torch.zeros(2, 8)[:, :4]
    echo.call(first, None)
    assert echo.words[1] == 1 and echo.tables == [first.data_ptr(), 3, 4, 4, 0]
    echo.call([first, second], torch.zeros(5))
    assert echo.words[1] == 2 and echo.tables == [first.data_ptr(), 3, 4, 4, 0, second.data_ptr(), 2, 4, 8, 0]
    echo.call(None, None)
    assert echo.words[:2] == [0, 0]
    with pytest.raises(ValueError, match="own has size 4 in place 0, not S, where .*S = 5"):
        echo.call([first, second], torch.zeros(4))


def test_flat_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three dimensions, where no size is declared, are one vector: memory is never copied."""
    echo = Echo(monkeypatch, "a x", "b l")
    table, ids = torch.zeros(2, 3, 4), np.zeros((2, 2, 2), np.int64)
    echo.call(table, ids)
    assert echo.words == [table.data_ptr(), 24, 1, 1, 0, ids.ctypes.data, 8, 1, 1, 5]
    for bad in (table[:, :2], table.numpy()[:, :2]):
        with pytest.raises(ValueError, match="echo: a .*side by side.*2, 2, 4."):
            echo.call(bad, ids)


def test_sizes_and_types_hang_together(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Echo(monkeypatch, "offsets i A+1", "rows x A F", "sums w A", "other y? A 3", "seen x? A F")
    bf16, fp64 = torch.bfloat16, torch.float64
    offsets, rows = torch.zeros(5, dtype=torch.int32), torch.zeros(4, 2, dtype=bf16)
    sums = torch.zeros(4)
    echo.call(offsets, rows, sums, None, None)
    echo.call(offsets, rows, sums, torch.zeros(4, 3, dtype=fp64), rows)
    with pytest.raises(ValueError, match="echo: rows has size 5 in place 0, not A, where A = 4, x = bfloat16"):
        echo.call(offsets, torch.zeros(5, 2, dtype=bf16), sums, None, None)
    with pytest.raises(ValueError, match="echo: sums is float64, not w, where A = 4, x = bfloat16, F = 2"):
        echo.call(offsets, rows, sums.double(), None, None)
    with pytest.raises(ValueError, match="echo: other has size 2 in place 1, not 3"):
        echo.call(offsets, rows, sums, torch.zeros(4, 2), None)
    with pytest.raises(ValueError, match="echo: seen is float32, not x"):
        echo.call(offsets, rows, sums, None, rows.float())
    with pytest.raises(ValueError, match="echo: other is int32, not y"):
        echo.call(offsets, rows, sums, torch.zeros(4, 3, dtype=torch.int32), None)


def test_letters_of_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first table that is there says what a letter is."""
    echo = Echo(monkeypatch, "a x? N", "b x? N", "c w N")
    echo.call(None, torch.zeros(3), torch.zeros(3))
    echo.call(None, None, torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ValueError, match="c has size 4 in place 0, not N, where .*N = 3"):
        echo.call(None, torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="c is int64, not w"):
        echo.call(None, None, torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(
    "table, problem",
    [
        (None, "a is missing"),
        (torch.zeros(4, 2).T, "echo: a .*strides"),
        (torch.zeros(2, 8)[:, ::2], "echo: a .*strides"),
        (torch.zeros(2, 2, 2), "a .*3 dimensions"),
        (torch.tensor(1.0), "a .*0 dimensions"),
        (torch.zeros(2, 4, device="meta"), "meta"),
        (torch.zeros(2, 4, dtype=torch.float16), "float16"),
        (np.zeros((2, 4), np.complex64), "complex64"),
        (np.zeros((4, 2), np.float32).T, "echo: a .*strides"),
    ],
)
def test_tables_that_are_refused(monkeypatch: pytest.MonkeyPatch, table: Any, problem: str) -> None:
    echo = Echo(monkeypatch, "a x N F")
    with pytest.raises(ValueError, match=problem):
        echo.call(table)
    assert not echo.words


@pytest.mark.parametrize("vector", [torch.zeros(8)[::2], torch.zeros(4, 2), torch.zeros(4, 2)[:, :1], np.zeros(8)[::2]])
def test_vectors_that_are_refused(monkeypatch: pytest.MonkeyPatch, vector: Any) -> None:
    with pytest.raises(ValueError, match="echo: a"):
        Echo(monkeypatch, "a x N").call(vector)


def test_tables_of_a_list_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Echo(monkeypatch, "src xs S F")
    for tables in ([], [torch.zeros(2, 3), torch.zeros(2, 4)], [torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float64)]):
        with pytest.raises(ValueError, match="echo: src .*one width"):
            echo.call(tables)


def test_arguments_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even that of a letter, or of what a call is made of."""
    echo = Echo(monkeypatch, "x x N F", "call i N", "words int", "codes float", "at y? F")
    echo.call(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32), 1, 2.0, None)
    assert echo.words[10:12] == [1, word(2.0)]


def test_a_number_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"echo\(\) missing 1 required positional argument: 'b'"):
        Echo(monkeypatch, "a int", "b int").call(1)


@pytest.mark.parametrize("answer, problem", [(-1, "other words"), (-2, "rows of this type"), (-9, "with -9")])
def test_a_call_that_fails(monkeypatch: pytest.MonkeyPatch, answer: int, problem: str) -> None:
    with pytest.raises(ValueError, match=f"echo.*{problem}"):
        Echo(monkeypatch, "a int", answer=answer).call(1)


def test_the_library_counts_words() -> None:
    with pytest.raises(ValueError, match="sums .*other words"):
        Entry("sums", "a int")(1)


def test_edges_are_checked() -> None:
    def int32(count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int32)

    bounds = torch.tensor([0, 2])
    assert Edges(bounds, int32(2), int32(3), int32(9)).count == 9
    with pytest.raises(ValueError, match="int64 and three times int32, not int64, None, int64, int32"):
        Edges(bounds, None, torch.zeros(3, dtype=torch.int64), int32(0))
    with pytest.raises(ValueError, match="int64 and three times int32, not int32, "):
        Edges(int32(2), None, int32(3), int32(0))
    with pytest.raises(ValueError, match="3 listed rows and 3 offsets"):
        Edges(bounds, int32(3), int32(3), int32(0))


@pytest.mark.parametrize("width", [1, 15, 16, 63, 64, 65])
def test_rows_of_several_tables_are_rows_of_one(width: int) -> None:
    edges = random_edges(40, 30, 300)
    src = torch.randn(30, width, generator=torch.Generator().manual_seed(0))
    wanted = sum_rows(edges, src)
    wide = torch.zeros(10, width + 3)
    wide[:, 1 : width + 1] = src[12:22]
    tables = [src[:12], wide[:, 1 : width + 1], src[22:22], src[22:]]
    assert torch.equal(sum_rows(edges, tables), wanted)
    torch.testing.assert_close(wanted.double(), matrix(edges, 30) @ src.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 16, 63, 65])
def test_rows_that_are_not_aligned(width: int, dtype: torch.dtype) -> None:
    """Rows begin at any number, not only where a vector would."""
    edges = random_edges(40, 30, 300)
    src = torch.randn(30, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    wanted = sum_rows(edges, src)
    for shift in (1, 3):
        memory = torch.full((30 * width + shift + 64,), float("nan"), dtype=dtype)
        moved = memory[shift : shift + 30 * width].view(30, width)
        moved.copy_(src)
        assert torch.equal(sum_rows(edges, moved), wanted)
