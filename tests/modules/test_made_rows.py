"""Tensors made with a graph's number of rows have these rows: dropped by original ids, and never random otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sargnn.errors import ConfigError
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
RANDOM: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(COUNT, 1),
    "randn": lambda: torch.randn((COUNT,)),
    "randint": lambda: torch.randint(0, 5, (COUNT,)),
}


@pytest.mark.parametrize("case", MADE)
def test_rows(case: str) -> None:
    make, wanted = MADE[case]
    with calls_on():
        made = make()
    assert rows_of(made) == wanted


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_refused(name: str) -> None:
    with (
        calls_on(),
        pytest.raises(ConfigError, match=f"{name} draws numbers for the rows of this worker.*\n.*test_made_rows.py"),
    ):
        RANDOM[name]()


def test_counts_compare_with_zero_for_all_workers_and_with_each_other_for_this_one() -> None:
    none, some = Count(0, 9, "edges"), Count(4, 9, "edges")
    assert none != 0 and none > 0 and bool(none) and Count(0, 0, "edges") == 0
    assert none == Count(0, 9, "edges") and none != some and none < some and some >= none
    assert some == 4 == some and not some < 4
