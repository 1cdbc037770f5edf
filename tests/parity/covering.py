"""Fewer cases than a full product, chosen so that every pair (or triple) of values still meets.

What goes wrong in a product goes wrong where two or three of its choices meet. ``spread`` marks the cases of a covering design
to be run by default and the others as ``long``: ``make test-full`` runs the whole product.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(*axes: Sequence[Any], strength: int = 2) -> set[tuple[int, ...]]:
    """Indices into the axes of cases that between them have every combination of values of any ``strength`` axes.

    Greedy, always the same for the same axes: cases that add most come first.
    """
    places = list(combinations(range(len(axes)), min(strength, len(axes))))
    cases = list(product(*(range(len(axis)) for axis in axes)))
    random.Random(0).shuffle(cases)
    met: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    chosen: set[tuple[int, ...]] = set()
    for wanted in range(len(places), 0, -1):
        for case in cases:
            adds = {(place, tuple(case[axis] for axis in place)) for place in places} - met
            if len(adds) >= wanted:
                met |= adds
                chosen.add(case)
    return chosen


def spread(*axes: Sequence[Any], strength: int = 2) -> list[Any]:
    """The product of the axes for ``parametrize``, in its order; cases outside the covering design are ``long``.

    A value that is a tuple gives several arguments.
    """
    chosen = covering(*axes, strength=strength)
    cases = []
    for case in product(*(range(len(axis)) for axis in axes)):
        values = [axis[place] for axis, place in zip(axes, case, strict=True)]
        flat = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
        marks = () if case in chosen else pytest.mark.long
        cases.append(pytest.param(*flat, marks=marks, id="-".join(str(getattr(one, "id", one)) for one in flat)))
    return cases
