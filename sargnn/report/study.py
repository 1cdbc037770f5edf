"""What a figure is: its runs, what is shown of each, and what the paper published.

A figure is a YAML file, ``conf/figure/NAME.yaml``: groups side by side, series in colours, values of x, and one run for each of
their combinations. Panels say what of the runs is drawn.

Letters: G groups, S series, X values of x.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sargnn.config.fields import AT_LEAST_ONE, POSITIVE, build, read_yaml
from sargnn.errors import ConfigError

ONE = ""
"""The label of the only group, series or value of x."""
_WORLD = "world"


@dataclass(frozen=True)
class Published:
    """What the paper gives.

    Attributes:
        values: group -> series -> one number for each value of x; null: not given. Of curves and shares: their last one.
        unit: where it is not that of the figures here, such as ``GB``.
        about: what it was measured on, and where the numbers stand.
    """

    values: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    unit: str | None = None
    about: str = ""


@dataclass(frozen=True)
class Panel:
    """One value of the runs.

    Attributes:
        value: its name in ``report.values.VALUES``.
        title: above it; null: the value's own.
        relative_to: the series whose value is 1 in each group at each x; null: as measured.
        log: whether its axis is logarithmic.
        published: the paper's.
    """

    value: str
    title: str | None = None
    relative_to: str | None = None
    log: bool = False
    published: Published = field(default_factory=Published)


@dataclass(frozen=True)
class Axis:
    """The values of x.

    Attributes:
        name: what they are.
        values: label -> overrides.
        worlds: instead of values, numbers of workers: as shares of ``world``.
        of_groups: instead of both, each group's own values: group -> label -> overrides.
        paper: what the paper has in their places; []: the same labels.
    """

    name: str
    values: dict[str, list[str]] = field(default_factory=dict)
    worlds: list[float] = field(default_factory=list)
    of_groups: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    paper: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FigureSpec:
    """A figure.

    Attributes:
        paper: whose it is, and its number there.
        title: of the picture.
        shows, needs: a sentence each.
        minutes: how long its runs take on two cores.
        kind: how it is drawn (``report.drawings``).
        world: workers; ``world=N`` changes it, and with it all that are given as shares of it.
        settings: overrides of all runs.
        groups, series: label -> overrides, in which ``{x}`` is the label of x.
        x: the third axis.
        panels: from top to bottom.
        differs: where runs here and the paper's differ, and why.
    """

    paper: str
    title: str
    shows: str
    needs: str
    minutes: float = field(metadata=POSITIVE)
    kind: Literal["bars", "lines", "curves", "shares"]
    world: int = field(metadata=AT_LEAST_ONE)
    settings: list[str]
    panels: list[Panel]
    differs: str
    groups: dict[str, list[str]] = field(default_factory=lambda: {ONE: []})
    series: dict[str, list[str]] = field(default_factory=lambda: {ONE: []})
    x: Axis = field(default_factory=lambda: Axis("", {ONE: []}))


@dataclass(frozen=True)
class Cell:
    """One run of a figure, in its place; ``point``: its overrides."""

    group: str
    series: str
    x: str
    point: tuple[str, ...]


def read_spec(path: Path) -> FigureSpec:
    """A figure's file. Raises ``ConfigError`` naming the file and the first key that is wrong."""
    try:
        spec = build(FigureSpec, read_yaml(path, "A figure"), "")
        _check(spec)
    except ConfigError as error:
        raise ConfigError(f"A figure's file cannot be used: {path.name}\n  {error}") from error
    return spec


def _check(spec: FigureSpec) -> None:
    from sargnn.report.values import VALUES

    if sum(map(bool, (spec.x.values, spec.x.worlds, spec.x.of_groups))) != 1:
        raise ConfigError("'x' has one of 'values', 'worlds' and 'of_groups'.")
    if spec.x.of_groups and list(spec.x.of_groups) != list(spec.groups):
        raise ConfigError("'x.of_groups' has values for each group.", given=list(spec.x.of_groups), allowed=list(spec.groups))
    if not spec.panels:
        raise ConfigError("A figure has at least one panel.")
    count = {group: len(spec.x.of_groups.get(group) or spec.x.values or spec.x.worlds) for group in spec.groups}
    if spec.x.paper and {len(spec.x.paper)} != set(count.values()):
        raise ConfigError("'x.paper' has a label for each value of x.", given=spec.x.paper)
    for panel in spec.panels:
        if panel.value not in VALUES:
            raise ConfigError("There is no such value of a run.", given=panel.value, allowed=list(VALUES))
        if panel.relative_to is not None and panel.relative_to not in spec.series:
            raise ConfigError("'relative_to' names a series.", given=panel.relative_to, allowed=list(spec.series))
        for group, of_group in panel.published.values.items():
            for series, numbers in of_group.items():
                if group not in spec.groups or series not in spec.series or len(numbers) != count[group]:
                    raise ConfigError(
                        "Published numbers have a group, a series, and one for each value of x.",
                        given=f"{panel.value}: {group}, {series}: {numbers}",
                    )


def cells_of(spec: FigureSpec, overrides: Sequence[str] = ()) -> list[Cell]:
    """Its runs, group by group, at each x all series.

    Args:
        overrides: settings of all runs beside its own; ``world=N`` is the largest number of workers.

    Raises:
        ConfigError: an override of what the figure itself varies.
    """
    world, given = spec.world, []
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key != _WORLD:
            given.append(override)
        elif value.isdecimal() and int(value):
            world = int(value)
        else:
            raise ConfigError("'world' is the figure's largest number of workers.", given=override, allowed="1 and more")
    worlds = dict.fromkeys(max(1, round(share * world)) for share in spec.x.worlds)
    of_all = spec.x.values or {str(n): [f"world={n}"] for n in worlds}
    x = {group: spec.x.of_groups.get(group, of_all) for group in spec.groups}
    axes = (*spec.groups.values(), *spec.series.values(), *(words for own in x.values() for words in own.values()))
    varied = {_key(word) for words in axes for word in words}
    for override in given:
        if _key(override) in varied:
            raise ConfigError(
                "The figure itself varies this.", given=override, hint="leave it out; --dry-run shows the figure's runs"
            )
    cells = []
    places = [(group, *pair) for group in spec.groups for pair in itertools.product(x[group].items(), spec.series.items())]
    for group, (label, of_x), (series, of_series) in places:
        words = [f"world={world}", *spec.settings, *spec.groups[group], *of_series, *of_x, *given]
        words = [word.replace("{x}", label) for word in words]
        last = {_key(word): word for word in words}  # the last one of each key counts, in the place of the first
        cells.append(Cell(group, series, label, tuple(last.values())))
    return cells


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def place_of(name: str) -> tuple[str, str, int]:
    """Where a figure's name puts it among others: its paper, figure or table, its number."""
    paper, _, kind = name.partition(".")
    number = "".join(character for character in kind if character.isdigit())
    return paper, kind.rstrip("0123456789"), int(number or 0)
