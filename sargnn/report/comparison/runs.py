"""Runs as they are compared: settings, summary and epochs of a run folder, and what the run is called."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sargnn.errors import ConfigError, SargnnError
from sargnn.report.comparison.settings import SEED, Settings, find_differing, read_settings, telling
from sargnn.tracking.files import CONFIG, MetricsTail
from sargnn.tracking.find_runs import RUNS, find_runs, is_run, label_of, runs_in, sweeps_here
from sargnn.tracking.summary import FINISHED, Summary, read_summary

NO_RUN = "there is no config.yaml"


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        name: what it is called among those compared (``name_runs``).
        folder: as it was named.
        settings: of ``config.yaml``.
        summary: None while the run has none.
        epochs: the lines of ``metrics.jsonl``.
    """

    name: str
    folder: Path
    settings: Settings
    summary: Summary | None
    epochs: list[dict[str, Any]]

    @property
    def status(self) -> str:
        """``finished``, or why it cannot be compared."""
        if self.summary is None:
            return "not over"
        return "no epochs" if self.summary.status == FINISHED and not self.epochs else self.summary.status

    @property
    def result(self) -> Summary:
        """The summary of a run that has finished."""
        assert self.summary is not None
        return self.summary

    @property
    def seed(self) -> int:
        """Of parameters and dropout."""
        return int(self.settings[SEED])

    @property
    def world(self) -> int:
        """How many workers."""
        return int(self.settings["world"])

    @cached_property
    def telling(self) -> Settings:
        """What tells it from other runs, but for the seed."""
        return telling(self.settings, self.summary)

    @property
    def metric(self) -> str:
        """What it was evaluated by."""
        return (self.summary and self.summary.metric) or "accuracy"

    @property
    def judged_on(self) -> tuple[str, str]:
        """Dataset and metric: runs are ranked among those that share both."""
        content = self.summary.dataset_hash if self.summary is not None else None
        return content or str(self.settings["dataset.name"]), self.metric

    @property
    def dataset(self) -> str:
        """What the dataset is called."""
        return (self.summary and self.summary.dataset) or str(self.settings["dataset.name"])


def read_run(folder: Path) -> Run:
    """Raises ``SargnnError`` naming the file that is missing, damaged or holds something else."""
    settings = read_settings(folder / CONFIG)
    return Run(folder.name, folder, settings, read_summary(folder), list(MetricsTail(folder).new_rows()))


@dataclass(frozen=True)
class LeftOut:
    """A folder that is not compared, and why."""

    folder: Path
    reason: str


def find_folders(words: Iterable[str]) -> tuple[list[Path], list[LeftOut]]:
    """The run folders that words name, each once; without words those in ``runs/``. And folders that hold no run.

    Raises:
        ConfigError: a word names nothing.
    """
    words = list(words)
    folders: list[Path] = []
    out: list[LeftOut] = []
    for word in words:
        try:
            folders += find_runs(word)
        except ConfigError:
            if word in ("", ".") or not Path(word).is_dir():
                raise
            out.append(LeftOut(Path(word), NO_RUN))
    if not words:
        folders = runs_in(RUNS)
        others = sorted(RUNS.iterdir()) if RUNS.is_dir() else []
        out = [LeftOut(path, NO_RUN) for path in others if path.is_dir() and not is_run(path) and path.name[0] != "."]
    once: dict[Path, Path] = {}
    for path in folders:
        once.setdefault(path.resolve(), path)
    return list(once.values()), out


def read_runs(folders: Iterable[Path]) -> tuple[list[Run], list[LeftOut]]:
    """The finished runs among folders, named; and those left out: unfinished ones, and ones with a damaged file."""
    runs, out = [], []
    for folder in folders:
        try:
            run = read_run(folder)
        except (SargnnError, OSError) as error:
            out.append(LeftOut(folder, " ".join(str(error).split())))
            continue
        if run.status == FINISHED:
            runs.append(run)
        else:
            out.append(LeftOut(folder, run.status))
    return name_runs(runs), out


def no_run_left(out: Sequence[LeftOut]) -> ConfigError:
    """The error where there is nothing to compare."""
    sweeps = sweeps_here()
    hint = f"sargnn compare {sweeps[-1]}" if sweeps else "sargnn train makes one in runs/; or name run folders"
    given = (
        "; ".join(f"{skipped.folder} ({skipped.reason})" for skipped in out[:3]) + ("; ..." if len(out) > 3 else "")
        if out
        else None
    )
    return ConfigError("There is no finished run to compare.", given=given, hint=hint)


def name_runs(runs: Sequence[Run]) -> list[Run]:
    """The runs with names that are all different.

    A run is called as its folder, a sweep's point by what it overrides; two of the same name by their last two folders, or else
    by the whole path.
    """
    kinds: list[Callable[[Run], str]] = [
        lambda run: label_of(run.folder) or (run.folder.name or run.folder.resolve().name),
        lambda run: "/".join(run.folder.resolve().parts[-2:]),
        lambda run: str(run.folder.resolve()),
    ]
    names = [""] * len(runs)
    todo = list(range(len(runs)))
    for kind in kinds:
        for number in todo:
            names[number] = kind(runs[number])
        counts = Counter(names)
        todo = [number for number in todo if counts[names[number]] > 1]
    return [dataclasses.replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def differences(runs: Sequence[Run], *, seed: bool = True) -> list[Settings]:
    """Of each run the settings that not all have alike (``find_differing``); ``seed``: also the seed."""
    return find_differing([({SEED: run.seed} if seed else {}) | run.telling for run in runs])
