"""Loss curves set against each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sargnn.config.losses import describe
from sargnn.config.run import differing, load
from sargnn.errors import ConfigError
from sargnn.report.comparison.runs import Run
from sargnn.tracking.files import CONFIG

TOLERANCES = {"fp64": 1e-8, "fp32": 1e-4, "mixed": 1e-3, "bf16": 2e-2}
"""The exactness contract, by precision: fp64 relative to each epoch's loss, others to the first epoch's. Where messages are
rounded, it is that of what they are rounded to."""


@dataclass(frozen=True)
class Deviation:
    """How far a loss curve is from another one.

    Attributes:
        epochs: how many both have.
        bits_equal: whether those are the same to the last bit.
        relative: the largest |difference|, fp64 as a fraction of that epoch's loss, else of the first epoch's.
        epoch: where that is, from 1.
        tolerance: what the contract allows ``relative`` to be.
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
    each = [_relative(loss, want, scale) for (loss, want), scale in zip(pairs, scales, strict=True)]
    largest = max(each)
    return Deviation(
        len(pairs), all(loss == want for loss, want in pairs), largest, each.index(largest) + 1, TOLERANCES[precision]
    )


def _relative(loss: float, want: float, scale: float) -> float:
    """|loss - want| / scale; infinite where one of them is not finite."""
    if not (math.isfinite(loss) and math.isfinite(want)):
        return math.inf
    return 0.0 if loss == want else abs(loss - want) / scale if scale else math.inf


def loss_notes(runs: Sequence[Run]) -> list[str]:
    """A line for each setting that changed the losses of runs although nothing else was asked for, with their names."""
    names: dict[str, list[str]] = {}
    for run in runs:
        for setting in run.result.losses_depend_on or ():
            names.setdefault(describe(setting), []).append(run.name)
    return [f"{'all runs' if len(named) == len(runs) > 1 else ', '.join(named)}: {line}" for line, named in names.items()]


DECIDES_NO_CURVE = ("epochs:", "model.order:")


def losses_equal(runs: Sequence[Run]) -> tuple[bool, list[str]]:
    """Whether each run's losses are within the exactness contract of the first one's, and what to say of each.

    Raises:
        ConfigError: fewer than two runs, or runs whose settings that decide losses differ.
    """
    if len(runs) < 2:
        raise ConfigError("Losses are compared between finished runs.", given=f"{len(runs)}", allowed="at least 2")
    wanted = runs[0]
    first = load(wanted.folder / CONFIG)
    fine, lines = True, []
    for run in runs[1:]:
        changed = [change for change in differing(first, load(run.folder / CONFIG)) if not change.startswith(DECIDES_NO_CURVE)]
        if changed:
            raise ConfigError(
                "Runs differ in what decides their losses.",
                given=f"{run.folder}: {'; '.join(changed)}",
                hint=f"compare it with runs of the settings of {wanted.folder}",
            )
        rounded = first.comm.wire != "exact" and first.precision != "fp64"
        distance = deviation(run.result.losses, wanted.result.losses, first.comm.wire if rounded else first.precision)
        fine &= distance.within
        how = "the same to the last bit"
        if not distance.bits_equal:
            of = "its" if first.precision == "fp64" else "the first"
            within = f"{'within' if distance.within else 'BEYOND'} {distance.tolerance:.0e}"
            how = f"largest difference {distance.relative:.2e} of {of} loss, in epoch {distance.epoch}, {within}"
        lines.append(f"{_named(run)}: {distance.epochs} epochs, {how}")
    lines.append(f"losses set against {_named(wanted)}: {'equal' if fine else 'NOT equal'}")
    return fine, lines


def _named(run: Run) -> str:
    return f"{run.name} ({run.settings['mode.name']}, world {run.world})"
