"""What a study is: runs, and what is shown of them. A file says it, before anything runs.

``conf/figure/NAME.yaml`` is a figure of a paper: groups side by side, series in colours, values of x, and one run for each of
their combinations; panels say what of the runs is drawn. ``conf/race/NAME.yaml`` is a race: its series are ways to train, each
with the same budget and seeds, by how soon their validation metric reaches targets; ways that lose are shown as those that win.

Letters: G groups, S series, X values of x.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from sargnn.config.fields import AT_LEAST_ONE, POSITIVE, build, read_yaml
from sargnn.errors import ConfigError

ONE = ""
"""The label of the only group, series or value of x."""
_WORLD = "world"
_RENAMED = {"common": "settings", "ways": "series"}
"""What keys of a race were called once -> what they are called."""
LIKE = "like"
"""The key of a file that names another one of the same folder, and says what is different."""


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


@dataclass(frozen=True, kw_only=True)
class Study:
    """What figures and races have in common.

    Attributes:
        settings: words of ``sargnn train`` for all runs.
        series: label -> further words, in which ``{x}`` is the label of x.
        needs: beside this project.
    """

    title: str
    settings: list[str]
    series: dict[str, list[str]] = field(default_factory=lambda: {ONE: []})
    needs: str = "nothing else"


@dataclass(frozen=True, kw_only=True)
class FigureSpec(Study):
    """A figure.

    Attributes:
        paper: whose it is, and its number there.
        shows: a sentence.
        minutes: how long its runs take on two cores.
        panels: from top to bottom.
        differs: where runs here and the paper's differ, and why.
        kind: how it is drawn (``report.drawings``).
        world: workers; ``world=N`` changes it, and with it all that are given as shares of it.
        groups: label -> overrides, as ``series``.
    """

    paper: str
    shows: str
    minutes: float = field(metadata=POSITIVE)
    panels: list[Panel]
    differs: str
    kind: Literal["bars", "lines", "curves", "shares"] = "bars"
    world: int = field(default=1, metadata=AT_LEAST_ONE)
    groups: dict[str, list[str]] = field(default_factory=lambda: {ONE: []})
    x: Axis = field(default_factory=lambda: Axis("", {ONE: []}))

    def check(self) -> None:
        """Raises ``ConfigError`` for what does not fit together."""
        from sargnn.report.values import VALUES

        if sum(map(bool, (self.x.values, self.x.worlds, self.x.of_groups))) != 1:
            raise ConfigError("'x' has one of 'values', 'worlds' and 'of_groups'.")
        if self.x.of_groups and list(self.x.of_groups) != list(self.groups):
            raise ConfigError(
                "'x.of_groups' has values for each group.", given=list(self.x.of_groups), allowed=list(self.groups)
            )
        if not self.panels:
            raise ConfigError("A figure has at least one panel.")
        count = {group: len(self.x.of_groups.get(group) or self.x.values or self.x.worlds) for group in self.groups}
        if self.x.paper and {len(self.x.paper)} != set(count.values()):
            raise ConfigError("'x.paper' has a label for each value of x.", given=self.x.paper)
        for panel in self.panels:
            if panel.value not in VALUES:
                raise ConfigError("There is no such value of a run.", given=panel.value, allowed=list(VALUES))
            if panel.relative_to is not None and panel.relative_to not in self.series:
                raise ConfigError("'relative_to' names a series.", given=panel.relative_to, allowed=list(self.series))
            for group, of_group in panel.published.values.items():
                for series, numbers in of_group.items():
                    if group not in self.groups or series not in self.series or len(numbers) != count[group]:
                        raise ConfigError(
                            "Published numbers have a group, a series, and one for each value of x.",
                            given=f"{panel.value}: {group}, {series}: {numbers}",
                        )


@dataclass(frozen=True, kw_only=True)
class RaceSpec(Study):
    """A race. Its ``series`` are the ways.

    Attributes:
        targets: values of the validation metric.
        seeds: how many, from 0.
        seconds: of training that each run may take; null: the epochs of ``settings`` decide.
    """

    series: dict[str, list[str]]
    targets: list[float]
    seeds: int = field(default=3, metadata=AT_LEAST_ONE)
    seconds: float | None = field(default=None, metadata=POSITIVE)

    def check(self) -> None:
        """Raises ``ConfigError`` for a race without ways."""
        if not self.series:
            raise ConfigError("A race needs ways to train.", given="no ways")


S = TypeVar("S", FigureSpec, RaceSpec)


@dataclass(frozen=True)
class Cell:
    """One run of a study. ``point``: its overrides; ``seed``: of a race."""

    group: str
    series: str
    x: str
    point: tuple[str, ...]
    seed: int = 0


def read_spec(path: Path, kind: type[S], find: Callable[[str], Path | None] | None = None) -> S:
    """A study's file. One that is ``like`` another has its keys; its own take their place, its settings stand behind others.

    ``find``: of a name the file; None: it lies beside this one. Raises ``ConfigError``: naming the file and the first key that
    is wrong.
    """
    try:
        spec = build(kind, _mapping(path, find or (lambda name: path.with_name(f"{name}.yaml")), ()), "")
        spec.check()
    except ConfigError as error:
        raise ConfigError(f"A study's file cannot be used: {path}\n  {error}") from error
    return spec


def _mapping(path: Path, find: Callable[[str], Path | None], above: tuple[Path, ...]) -> Any:
    mapping = read_yaml(path, "A study")
    if not isinstance(mapping, dict):
        return mapping
    mapping = {_RENAMED.get(key, key): value for key, value in mapping.items()}
    if LIKE not in mapping:
        return mapping
    name = mapping.pop(LIKE)
    other = find(name) if isinstance(name, str) else None
    if other is None or not other.is_file() or other in (*above, path):
        raise ConfigError(f"'{LIKE}' names another study.", given=name)
    first = _mapping(other, find, (*above, path))
    if isinstance(own := mapping.get("settings", []), list):
        mapping["settings"] = [*first.get("settings", []), *own]
    return {key: value for key, value in (first | mapping).items() if value is not None}


def cells_of(study: FigureSpec | RaceSpec, overrides: Sequence[str] = ()) -> list[Cell]:
    """Its runs: of a figure group by group, at each x all series; of a race way by way.

    ``overrides``: settings of all runs beside its own; of a figure ``world=N`` is the largest number of workers. Raises
    ``ConfigError``: an override of what the study itself varies.
    """
    if isinstance(study, RaceSpec):
        return _of_race(study, overrides)
    world, given = study.world, []
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key != _WORLD:
            given.append(override)
        elif value.isdecimal() and int(value):
            world = int(value)
        else:
            raise ConfigError("'world' is the figure's largest number of workers.", given=override, allowed="1 and more")
    worlds = dict.fromkeys(max(1, round(share * world)) for share in study.x.worlds)
    of_all = study.x.values or {str(n): [f"world={n}"] for n in worlds}
    x = {group: study.x.of_groups.get(group, of_all) for group in study.groups}
    axes = (*study.groups.values(), *study.series.values(), *(words for own in x.values() for words in own.values()))
    varied = {_key(word) for words in axes for word in words}
    for override in given:
        if _key(override) in varied:
            raise ConfigError(
                "The figure itself varies this.", given=override, hint="leave it out; --dry-run shows the figure's runs"
            )
    return [
        Cell(group, series, label, _point([f"world={world}", *study.settings, *words, *own, *of_x, *given], label))
        for group, words in study.groups.items()
        for (label, of_x), (series, own) in itertools.product(x[group].items(), study.series.items())
    ]


def _of_race(race: RaceSpec, overrides: Sequence[str]) -> list[Cell]:
    if any(_key(word) == "seed" for word in (*race.settings, *overrides, *itertools.chain(*race.series.values()))):
        raise ConfigError("A race has its own seeds.", given="seed=", hint="'seeds' in the race's file says how many")
    limit = [] if race.seconds is None else [f"max_seconds={race.seconds:g}"]
    return [
        Cell(ONE, way, ONE, _point([*race.settings, *limit, *own, *overrides, f"seed={seed}"], ONE), seed)
        for way, own in race.series.items()
        for seed in range(race.seeds)
    ]


def _point(words: Iterable[str], x: str) -> tuple[str, ...]:
    """Of words with the same key the last one counts, in the place of the first."""
    return tuple({_key(word): word for word in (word.replace("{x}", x) for word in words)}.values())


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def place_of(name: str) -> tuple[str, str, int]:
    """A figure's place among others: its paper, figure or table, its number."""
    paper, _, kind = name.partition(".")
    number = "".join(character for character in kind if character.isdigit())
    return paper, kind.rstrip("0123456789"), int(number or 0)
