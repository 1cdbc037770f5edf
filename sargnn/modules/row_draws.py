"""Random numbers for rows, drawn by what the rows are: a node's original id, or both ends of an edge.

A function that a trial finds to be random (``trial.py``) has a rule here, or is refused. A rule computes the result of uniform
numbers, of which row i's depend on the seed, the epoch, the step, the number of the call in its forward pass and on row i's ids
alone: the same on any number of workers, and again when a pass is computed again.

Letters: N rows, W elements of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sargnn.modules.tag import Mark
from sargnn.rng import Draw, uniform_numbers


@dataclass
class RowNumbers:
    """Numbers for one call.

    Attributes:
        ids: int64 [N] each, original ids of the rows' nodes and zeros, or of the edges' ends.
        draw: gives the draw of the next call.
        shape: of the result.
        mark: where its rows are.
        dtype: of a result of fractions.
    """

    ids: Callable[[], tuple[Tensor, Tensor]]
    draw: Callable[[], Draw]
    shape: Sequence[int]
    mark: Mark
    dtype: torch.dtype

    def uniform(self, dims: int | None = None) -> Tensor:
        """Numbers from [0, 1) in the result's shape. dims: the same number along the others than the first so many."""
        sources, destinations = self.ids()
        shape, mark = [size if dims is None or at < dims else 1 for at, size in enumerate(self.shape)], self.mark
        others = [*shape[: mark.dim], *shape[mark.dim + 1 :]]
        width = mark.before * mark.parts * math.prod(others)
        table = uniform_numbers(sources, destinations, width, self.draw(), self.dtype)
        table = table.view(len(sources), mark.before, mark.parts, *others)
        return table.movedim((1, 0, 2), (mark.dim, mark.dim + 1, mark.dim + 2)).flatten(mark.dim, mark.dim + 2)

    def normal(self) -> Tensor:
        """Standard normal numbers (Box and Muller)."""
        return self.exponential().mul_(2).sqrt_() * (2 * math.pi * self.uniform()).cos_()

    def exponential(self) -> Tensor:
        """-log(1 - u)."""
        return torch.log1p(-self.uniform()).neg_()


DrawRule = Callable[..., Tensor]
"""(``RowNumbers``, the function's arguments ...) to its result."""


def _bernoulli(numbers: RowNumbers, input: Any, p: Any = None, *, generator: Any = None) -> Tensor:
    p = input if p is None else p
    return (numbers.uniform() < (p.detach() if isinstance(p, Tensor) else p)).to(numbers.dtype)


def _bernoulli_(numbers: RowNumbers, x: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    return _bernoulli(numbers, x, p)


def _normal(numbers: RowNumbers, mean: Any = 0.0, std: Any = 1.0, size: Any = None, **named: Any) -> Tensor:
    return numbers.normal() * std + mean


def _normal_(numbers: RowNumbers, x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return numbers.normal() * std + mean


def _uniform_(numbers: RowNumbers, x: Tensor, *given: float, generator: Any = None, **named: float) -> Tensor:
    low, high = (*given, *(named.get("from", 0.0), named.get("to", named.get("b", 1.0)))[len(given) :])
    low = named.get("a", low)
    return numbers.uniform() * (high - low) + low


def _whole(numbers: RowNumbers, low: int, high: int) -> Tensor:
    return (numbers.uniform() * (high - low)).floor() + low


def _randint(numbers: RowNumbers, *given: Any, **named: Any) -> Tensor:
    limits = [value for value in given if type(value) is int]
    low: Any
    high: Any
    low, high = (
        (named.get("low", 0), named.get("high"))
        if not limits
        else limits
        if len(limits) == 2
        else (named.get("low", 0), limits[0])
    )
    return _whole(numbers, low, high)


def _alpha_dropout(numbers: RowNumbers, input: Tensor, p: float = 0.5, *given: Any, dims: Any = None, **named: Any) -> Tensor:
    """a (x m - alpha (1 - m)) + a alpha p with m kept or not, alpha of SELU (Klambauer et al., 2017)."""
    alpha = 1.7580993408473766
    a = 1 / math.sqrt((alpha**2 * p + 1) * (1 - p))
    kept = (numbers.uniform(dims) >= p).to(input.dtype)
    return input * (kept * a) + (kept - 1) * (alpha * a) + alpha * a * p


def _feature_alpha_dropout(numbers: RowNumbers, input: Tensor, p: float = 0.5, *given: Any, **named: Any) -> Tensor:
    return _alpha_dropout(numbers, input, p, dims=2)


def _feature_dropout(numbers: RowNumbers, input: Tensor, p: float = 0.5, *given: Any, **named: Any) -> Tensor:
    """Whole rows of the dimensions behind the second one."""
    return input * ((numbers.uniform(2) >= p).to(input.dtype) / (1 - p))


def _rrelu(numbers: RowNumbers, input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *given: Any, **named: Any) -> Tensor:
    return torch.where(input >= 0, input, input * (numbers.uniform() * (upper - lower) + lower))


DRAWS: dict[str, DrawRule] = {
    **dict.fromkeys(("rand", "rand_like"), lambda numbers, *given, **named: numbers.uniform()),
    **dict.fromkeys(("randn", "randn_like"), lambda numbers, *given, **named: numbers.normal()),
    "bernoulli": _bernoulli,
    "bernoulli_": _bernoulli_,
    "normal": _normal,
    "normal_": _normal_,
    "uniform_": _uniform_,
    "exponential_": lambda numbers, x, lambd=1.0, generator=None: numbers.exponential() / lambd,
    "cauchy_": lambda numbers, x, median=0.0, sigma=1.0, generator=None: (
        median + sigma * (math.pi * (numbers.uniform() - 0.5)).tan()
    ),
    "log_normal_": lambda numbers, x, mean=1.0, std=2.0, generator=None: (numbers.normal() * std + mean).exp(),
    "geometric_": lambda numbers, x, p, generator=None: (numbers.exponential() / -math.log1p(-p)).floor() + 1,
    **dict.fromkeys(("randint", "randint_like"), _randint),
    "random_": _randint,
    "alpha_dropout": _alpha_dropout,
    "alpha_dropout_": _alpha_dropout,
    "feature_alpha_dropout": _feature_alpha_dropout,
    "feature_alpha_dropout_": _feature_alpha_dropout,
    "feature_dropout": _feature_dropout,
    "feature_dropout_": _feature_dropout,
    "rrelu": _rrelu,
    "rrelu_": _rrelu,
    "rrelu_with_noise": _rrelu,
}
"""By the function's name."""
