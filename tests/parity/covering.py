"""Fewer cases than a full product, chosen so that every pair (or triple) of values still meets.

What goes wrong in a product goes wrong where two or three of its choices meet. ``spread`` marks the cases of a covering design
to be run by default and the others as ``long``: ``make test-full`` runs the whole product.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest


def covering(*axes: Sequence[Any], strength: int = 2) -> set[tuple[int, ...]]:
    """Indices into the axes of cases that between them have every combination of values of any ``strength`` axes.

    Greedy, always the same for the same axes: cases that add most come first.
    """
    return _covering(tuple(len(axis) for axis in axes), strength)


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


LONG = True
"""Whether ``spread`` has what is marked ``long``; a session that leaves it out does not make some 16,000 cases first."""


def spread(*axes: Sequence[Any], strength: int = 2) -> list[Any]:
    """The product of the axes for ``parametrize``, in its order; cases outside the covering design are ``long``.

    A value that is a tuple gives several arguments.
    """
    cases = product(*(range(len(axis)) for axis in axes)) if LONG else None
    return _parameters(axes, cases, covering(*axes, strength=strength))


def spread_within(*axes: Sequence[Any], strength: int = 2) -> list[Any]:
    """Every value of every axis; marked long, those of a covering design. The whole product would be ten thousand cases."""
    few = covering(*axes, strength=1)
    return _parameters(axes, sorted(few | covering(*axes, strength=strength)) if LONG else None, few)


def _parameters(
    axes: Sequence[Sequence[Any]], cases: Iterable[tuple[int, ...]] | None, chosen: set[tuple[int, ...]]
) -> list[Any]:
    """These cases, or the chosen ones; long where they are not chosen."""
    parameters = []
    for case in sorted(chosen) if cases is None else cases:
        values = [axis[place] for axis, place in zip(axes, case, strict=True)]
        flat = [argument for value in values for argument in (value if isinstance(value, tuple) else (value,))]
        marks = () if case in chosen else pytest.mark.long
        name = "-".join(str(getattr(argument, "id", argument)) for argument in flat)
        parameters.append(pytest.param(*flat, marks=marks, id=name))
    return parameters
