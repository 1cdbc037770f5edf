"""Tensors made with a graph's number of rows have these rows; and what the number of rows is to who calculates with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sargnn.modules.tag import Count, Rows, rows_of
from tests.modules.fake import calls_on

EDGES = Rows("edges", 1, 2)
COUNT = Count(4, 9, "edges", EDGES)
ALL = Count(4, 9, "edges")
MADE: dict[str, tuple[Callable[[], Tensor], Rows | None]] = {
    "ones": (lambda: torch.ones(COUNT, 1), EDGES),
    "of a tuple": (lambda: torch.zeros((COUNT, 2)), EDGES),
    "by name": (lambda: torch.ones(size=(COUNT,)), EDGES),
    "filled": (lambda: torch.full((COUNT,), 3.0), EDGES),
    "like another": (lambda: torch.ones(2).new_zeros(COUNT, 3), EDGES),
    "and moved": (lambda: torch.ones(COUNT, 1).double() * 2, EDGES),
    "in another place": (lambda: torch.ones(2, COUNT), None),
    "of a fixed size": (lambda: torch.ones(4, 1), None),
    "of several types": (lambda: torch.ones(ALL, 1), None),
    "numbers below it": (lambda: torch.randint(COUNT, (3,)), None),
    "random, of a fixed size": (lambda: torch.rand(4, 1), None),
}


@pytest.mark.parametrize("case", MADE)
def test_rows(case: str) -> None:
    make, wanted = MADE[case]
    with calls_on():
        made = make()
    assert rows_of(made) == wanted


def test_counts_compare_and_calculate_for_all_workers() -> None:
    none, some = Count(0, 9, "edges", EDGES), Count(4, 9, "edges", EDGES)
    assert none != 0 and none > 0 and bool(none) and Count(0, 0, "edges") == 0 and none == some == 9 and not some < 9
    assert some / 3 == 3.0 and 18 / some == 2.0 and some % 2 == 1 and float(some) == 9.0 and some**2 == 81
    twice = 2 * some + 1
    assert (
        twice.own == 9 and int(twice) == twice.total == 19 and twice.of == (EDGES, 2, 1) and (twice - some).of == (EDGES, 1, 1)
    )
    assert ((some * 6) // 3).of == (EDGES, 2, 0) and some != Count(4, 8, "nodes", Rows("nodes"))
