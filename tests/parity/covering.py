"""Fewer cases than a full product, chosen so that every pair (or triple) of values still meets.

What goes wrong in a product goes wrong where two or three of its choices meet, and who wants products whole makes ten thousands
of cases of which each meets nothing new: random ones (``tests/generated``) find more in the same time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest


class Axis(list[Any]):
    """Values of which ``make test`` takes only some, where another test there meets them all.

    Attributes:
        first: those that it takes.
    """

    def __init__(self, values: Iterable[Any], first: Collection[Any]) -> None:
        super().__init__(values)
        self.first = [value for value in self if value in first]
        assert len(self.first) == len(first), f"{first} are not all in {self}"


def covering(*axes: Sequence[Any], strength: int = 2) -> set[tuple[int, ...]]:
    """Indices into the axes of cases that between them have every combination of values of any ``strength`` axes.

    Greedy, always the same for the same axes: cases that add most come first.
    """
    return _covering(tuple(len(axis) for axis in axes), strength)


def covering_first(*axes: Sequence[Any], strength: int) -> set[tuple[int, ...]]:
    """The same of the values that ``make test`` takes."""
    places = [[axis.index(one) for one in axis.first] if isinstance(axis, Axis) else range(len(axis)) for axis in axes]
    chosen = covering(*places, strength=strength)
    return {tuple(own[i] for own, i in zip(places, case, strict=True)) for case in chosen}


@cache
def _covering(sizes: tuple[int, ...], strength: int) -> set[tuple[int, ...]]:
    """Of axes of these sizes. Each case is a row of what it meets, one number for each combination at each place."""
    places = list(combinations(range(len(sizes)), min(strength, len(sizes))))
    cases = list(product(*map(range, sizes)))
    random.Random(0).shuffle(cases)
    table = np.array(cases)
    meets = np.empty((len(cases), len(places)), np.int64)
    start = 0
    for place, axes in enumerate(places):
        own = [sizes[axis] for axis in axes]
        meets[:, place] = start + np.ravel_multi_index(tuple(table[:, axes].T), own)
        start += math.prod(own)
    new = np.ones(start, bool)
    chosen: set[tuple[int, ...]] = set()
    for wanted in range(len(places), 0, -1):
        for case in np.flatnonzero(new[meets].sum(axis=1) >= wanted):  # later ones of these may add less by then
            if new[meets[case]].sum() >= wanted:
                new[meets[case]] = False
                chosen.add(cases[case])
    return chosen


def only(chosen: Collection[Any], everything: Iterable[Any]) -> list[Any]:
    """All of them for ``parametrize``; those that are not chosen are long."""
    return [pytest.param(value, marks=() if value in chosen else pytest.mark.long) for value in everything]


LONG = True
"""Whether ``spread`` has what is marked ``long``; a session that leaves it out need not make it first."""


def spread(*axes: Sequence[Any], strength: int = 1) -> list[Any]:
    """Cases for ``parametrize``: every combination of values of any ``strength`` axes; marked long, those of one axis more.

    A value that is a tuple gives several arguments. Of an ``Axis`` some values are long, too.
    """
    few = covering_first(*axes, strength=strength)
    every = few | covering(*axes, strength=strength) | covering(*axes, strength=strength + 1) if LONG else few
    parameters = []
    for case in sorted(every):
        values = [axis[place] for axis, place in zip(axes, case, strict=True)]
        flat = [argument for value in values for argument in (value if isinstance(value, tuple) else (value,))]
        name = "-".join(str(getattr(argument, "id", argument)) for argument in flat)
        parameters.append(pytest.param(*flat, marks=() if case in few else pytest.mark.long, id=name))
    return parameters


def first_of(first: list[Any], everything: list[Any]) -> list[Any]:
    """Cases for ``parametrize``: the first ones, and marked long those that are only among all."""
    known = {case.id for case in first}
    others = [case for case in everything if case.id not in known] if LONG else []
    return [*first, *(pytest.param(*case.values, marks=pytest.mark.long, id=case.id) for case in others)]
