"""Loss curves set against each other, and figures over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from sargnn.errors import ConfigError

TOLERANCES = {"fp64": 1e-8, "fp32": 1e-4}
"""The exactness contract, by precision: fp64 relative to each epoch's loss, fp32 to the first epoch's."""


@dataclass(frozen=True)
class Deviation:
    """How far a loss curve is from another one.

    Attributes:
        epochs: how many both have. bits_equal: whether those are the same to the last bit.
        relative: the largest |difference|, fp64 as a fraction of that epoch's loss, else of the first epoch's.
        epoch: where that is, from 1. tolerance: what the contract allows ``relative`` to be.
    """

    epochs: int
    bits_equal: bool
    relative: float
    epoch: int
    tolerance: float

    @property
    def within(self) -> bool:
        """Whether the contract holds."""
        return self.relative <= self.tolerance


def deviation(losses: Sequence[float], wanted: Sequence[float], precision: str) -> Deviation:
    """How far ``losses`` are from ``wanted``, over the epochs that both have.

    Raises:
        ConfigError: they have no epoch in common, or the contract says nothing of this precision.
    """
    if precision not in TOLERANCES:
        raise ConfigError("The exactness contract has no tolerance for this precision.", given=precision, allowed=TOLERANCES)
    pairs = list(zip(losses, wanted, strict=False))
    if not pairs:
        raise ConfigError("The loss curves have no epoch in common.")
    scales = [abs(want) if precision == "fp64" else abs(wanted[0]) for _, want in pairs]
    each = [_relative(one, want, scale) for (one, want), scale in zip(pairs, scales, strict=True)]
    largest = max(each)
    return Deviation(
        len(pairs), all(one == want for one, want in pairs), largest, each.index(largest) + 1, TOLERANCES[precision]
    )  # fmt: skip


def _relative(one: float, want: float, scale: float) -> float:
    """|one - want| / scale; infinite where one of them is not finite."""
    if not (math.isfinite(one) and math.isfinite(want)):
        return math.inf
    return 0.0 if one == want else abs(one - want) / scale if scale else math.inf


def mean_and_deviation(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Mean and sample standard deviation (0 of a single value); None where a value is missing."""
    found = [value for value in values if value is not None]
    if len(found) < len(values) or not found:
        return None
    return mean(found), stdev(found) if len(found) > 1 else 0.0
