"""Groups of runs that differ in nothing but the seed. A mean is taken over one group's seeds, never over anything else."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from sargnn.report.comparison.figures import BY_KEY, Spread, figures_of, over_seeds
from sargnn.report.comparison.runs import Run, differences
from sargnn.report.comparison.settings import Settings, show_settings


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone, each seed once.

    Attributes:
        name: that of its only run, or of its runs without the seed. members: in the order of their seeds.
        differs: the settings that other groups do not share. repeat: of runs with the same settings and seed the how manieth.
    """

    name: str
    members: tuple[Run, ...]
    differs: Settings = field(default_factory=dict)
    repeat: int = 1

    @property
    def first(self) -> Run:
        """What the members have alike can be read from it."""
        return self.members[0]

    @property
    def seeds(self) -> list[int]:
        """Of the members."""
        return [run.seed for run in self.members]

    @property
    def label(self) -> str:
        """Its settings that differ, or its name where there are none."""
        return ", ".join(show_settings(self.differs)) or self.name

    @cached_property
    def values(self) -> dict[str, list[float | None]]:
        """Every figure's values, one per member."""
        every = [figures_of(run) for run in self.members]
        return {key: [figures[key] for figures in every] for key in BY_KEY}

    @cached_property
    def figures(self) -> dict[str, Spread | None]:
        """Every figure over the seeds."""
        return {key: over_seeds(values) for key, values in self.values.items()}


def make_groups(runs: Sequence[Run]) -> list[Group]:
    """Groups in the order of their first runs. Runs that have the seed in common too are no more seeds: each starts a group."""
    places: dict[tuple[str, int], list[Run]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for run in runs:
        key = json.dumps(run.telling, sort_keys=True, default=str)
        seen[key, run.seed] += 1
        places.setdefault((key, seen[key, run.seed]), []).append(run)
    members = [tuple(sorted(alike, key=lambda run: run.seed)) for alike in places.values()]
    differing = differences([alike[0] for alike in members], seed=False)
    groups = [
        Group("", alike, differs | ({"repeat": repeat} if repeat > 1 else {}), repeat)
        for alike, differs, (_, repeat) in zip(members, differing, places, strict=True)
    ]
    return _named(groups)


def _named(groups: Sequence[Group]) -> list[Group]:
    names = [group.first.name if len(group.members) == 1 else _without_seed(group.first) for group in groups]
    counts = Counter(names)
    names = [name if counts[name] == 1 else f"{name} ({group.label})" for name, group in zip(names, groups, strict=True)]
    return [replace(group, name=name) for group, name in zip(groups, names, strict=True)]


def _without_seed(run: Run) -> str:
    rest = re.sub(r"-s\d+(-\d+)?$|\s*\bseed=\d+", "", run.name).strip()
    return rest or f"{run.settings['model.name']}-{run.settings['mode.name']}-w{run.world}"
