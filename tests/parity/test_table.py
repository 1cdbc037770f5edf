"""Nothing joins the package without a case in the parity tests, and the fewer cases that stand for a product cover it."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.parity import cases
from tests.parity.covering import covering


def test_every_key_of_every_table_has_its_case() -> None:
    assert cases.without_case() == []


@pytest.mark.parametrize("kind", cases.TABLES)
def test_what_has_no_case_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, own = cases.TABLES[kind]
    assert all(isinstance(one, dict) for one in (table, own))
    first = next(iter(own))
    monkeypatch.setitem(cases.TABLES, kind, ({**table, "toy": "toy:Toy"}, {key: own[key] for key in own if key != first}))
    assert sorted(cases.without_case()) == sorted([f"{kind} '{first}'", f"{kind} 'toy'"])


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_of_so_many_axes_is_met(strength: int) -> None:
    axes = [range(4), range(3), range(2), range(3)]
    chosen = covering(*axes, strength=strength)
    for some in combinations(range(4), strength):
        wanted = set(product(*(axes[one] for one in some)))
        assert {tuple(case[one] for one in some) for case in chosen} == wanted
    assert len(chosen) <= (6, 18, 54)[strength - 1] < 72
