"""Runs as they are compared: settings, summary and epochs of a run folder, what the run is called, and which settings tell runs
apart.

A run's ``config.yaml`` is read as plain values: what a setting names, such as a file with a dataset's function, may be gone.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sargnn.config.fields import as_mapping, brief, class_of, read_yaml
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, SargnnError
from sargnn.tracking.files import CONFIG, MetricsTail
from sargnn.tracking.find_runs import RUNS, find_runs, is_run, label_of, runs_in, sweeps_here
from sargnn.tracking.summary import FINISHED, Summary, read_summary

SEED = "seed"
IGNORED = (
    "run_name",
    "run_dir",
    "store_dir",
    "prepare.",
    "profile",
    "tracking.",
    "checkpoint.",
    "comm.timeout_s",
    "comm.max_restarts",
    "comm.port",
    "init_from",
    "batches.flows",
    "partitioner.threads",
)
"""Settings that never tell runs apart: names and places, what is sent and kept, what is done after a failure, how many threads
cut the graph. A key that ends in a dot stands for its whole group. Of ``init_from`` the parameters' content counts
(``init_digest``)."""
VERSIONS = ("sargnn", "python", "torch", "dgl", "numpy", "instructions", "pymetis")
"""Whose versions tell runs apart. The others send figures or read settings."""

Settings = dict[str, Any]
"""Dotted key -> plain value, with what a file of before a setting existed leaves out."""


def read_settings(path: Path) -> Settings:
    """Raises ``ConfigError`` naming the file, where it holds no mapping or lacks what names a run."""
    mapping = read_yaml(path, "A run's configuration")
    if not isinstance(mapping, dict):
        raise ConfigError("A run's configuration is no mapping of settings.", given=str(path), hint=brief(mapping))
    settings = flat(_defaults(mapping)) | flat(mapping)
    wanted: dict[str, tuple[type, ...]] = {key: (str,) for key in ("model.name", "mode.name", "dataset.name", "precision")}
    wanted |= {"world": (int,), SEED: (int,), "threads": (int, type(None))}
    for key, kinds in wanted.items():
        if not isinstance(settings.get(key), kinds):
            raise ConfigError(
                "A run's configuration is not whole.", given=str(path), hint=f"'{key}' is {brief(settings.get(key))}"
            )
    return settings


def flat(mapping: Mapping[Any, Any], prefix: str = "") -> Settings:
    """Dotted key -> value, groups inside groups likewise; without targets that are null."""
    settings: Settings = {}
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            settings |= flat(value, f"{prefix}{key}.")
        elif not (key == "target" and value is None):
            settings[f"{prefix}{key}"] = value
    return settings


def defaults_of(settings: Mapping[str, Any]) -> Settings:
    """What the settings' classes have by themselves for the options that these settings name."""
    mapping: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        group, dot, name = key.partition(".")
        if dot:
            mapping.setdefault(group, {})[name] = value
    return flat(_defaults(mapping))


def _defaults(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings' classes have for keys that a file may leave out; of groups from outside the package nothing."""
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(RunConfig):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = as_mapping(field.default) if dataclasses.is_dataclass(field.default) else field.default
        group = mapping.get(field.name)
        if isinstance(group, dict) and (cls := class_of(RunConfig, field.name, group)) is not None:
            given = {each.name: each.default for each in dataclasses.fields(cls)}
            defaults[field.name] = {key: value for key, value in given.items() if value is not dataclasses.MISSING}
    return defaults


def telling(settings: Settings, summary: Summary | None) -> Settings:
    """What tells a run from others, but for the seed: its settings, the dataset's content, the code, versions, the machine.

    Of what was left to the run (``kernel=auto``) what ran.
    """
    kept = {key: value for key, value in settings.items() if key != SEED and not is_ignored(key)}
    if summary is None:
        return kept
    kept |= {key: value for key, value in _ran(summary).items() if key in kept and value is not None}
    kept["processes"] = summary.processes if summary.processes != summary.world else None  # as ``null``: one for each worker
    if summary.kernel == "":  # of a model that aggregates nothing
        kept.pop("kernel.name", None)
    provenance: Settings = {"dataset_hash": summary.dataset_hash, "code": _short(summary.git_sha)}
    provenance |= {f"version of {name}": (summary.versions or {}).get(name) for name in VERSIONS}
    provenance |= {"cpu": summary.cpu, "cores": summary.cores}
    return kept | {key: value for key, value in provenance.items() if value is not None}


def _ran(summary: Summary) -> Settings:
    """The settings that a run may choose itself, as its workers had them; None where a summary does not say."""
    chosen = {"partitioner": summary.partitioner or {}, "preload": {"name": (summary.preload or {}).get("chosen")}}
    own = {"kernel.name": summary.kernel, "mode.name": summary.mode, "servers": summary.servers}
    return own | {f"{group}.{key}": value for group, values in chosen.items() for key, value in values.items()}


def is_ignored(key: str) -> bool:
    return any(key == ignored or (ignored.endswith(".") and key.startswith(ignored)) for ignored in IGNORED)


def _short(sha: str | None) -> str | None:
    return None if sha is None else sha[:9] + ("-dirty" if sha.endswith("-dirty") else "")


def find_differing(every: Sequence[Settings]) -> list[Settings]:
    """Of each run what not all have alike, in the order of the settings, by names that are short and mean one setting.

    Where the option of a group differs it is shown (``model=gat``); the group's other settings only where they differ between
    runs with the same option. The content of a dataset is shown only where its settings are the same.
    """
    keys = list(dict.fromkeys(key for settings in every for key in settings))
    groups = {_stem(key) for key in keys if _stem(key) != key}
    shown: list[Settings] = [{} for _ in every]
    for key in keys:
        group = key.partition(".")[0]
        by_option: dict[Any, list[int]] = {}
        for number, settings in enumerate(every):
            if key == "dataset_hash":
                option: Any = _text({name: value for name, value in settings.items() if name.startswith("dataset.")})
            else:
                option = settings.get(f"{group}.name") if group in groups and _stem(key) == key else None
            by_option.setdefault(option, []).append(number)
        for numbers in by_option.values():
            values = [every[number].get(key, _ABSENT) for number in numbers]
            if len({_text(value) for value in values}) > 1:
                for number, value in zip(numbers, values, strict=True):
                    if value is not _ABSENT:
                        shown[number][key] = value
    names = short_names(keys)
    return [{names[key]: value for key, value in settings.items()} for settings in shown]


_ABSENT = object()


def _text(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Key -> the group whose option it is, the part behind its last dot where no other key has it, else the whole key."""
    stems = {key: _stem(key) for key in keys}
    ends = Counter(stem.rpartition(".")[2] for stem in {**stems, SEED: SEED}.values())
    return {key: end if ends[end := stem.rpartition(".")[2]] == 1 else stem for key, stem in stems.items()}


def _stem(key: str) -> str:
    """``model`` of ``model.name``; any other key as it is."""
    return key.removesuffix(".name") if key.count(".") == 1 else key


def show_value(value: Any) -> str:
    """As the command line has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{','.join(map(show_value, value))}]" if isinstance(value, list) else str(value)


def show_settings(settings: Settings) -> list[str]:
    """``key=value`` of each; a version as ``torch 2.1``."""
    return [
        f"{key.removeprefix('version of ')} {value}" if key.startswith("version of ") else f"{key}={show_value(value)}"
        for key, value in settings.items()
    ]


NO_RUN = "there is no config.yaml"


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        name: among those compared (``name_runs``).
        folder: as it was named.
        settings: of ``config.yaml``.
        summary: None: there is none yet.
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
        """Of a run that has finished."""
        assert self.summary is not None
        return self.summary

    @property
    def seed(self) -> int:
        return int(self.settings[SEED])

    @property
    def world(self) -> int:
        return int(self.settings["world"])

    @cached_property
    def telling(self) -> Settings:
        return telling(self.settings, self.summary)

    @property
    def metric(self) -> str:
        return (self.summary and self.summary.metric) or "accuracy"

    @property
    def judged_on(self) -> tuple[str, str]:
        """Dataset and metric: runs are ranked among those that share both."""
        content = self.summary.dataset_hash if self.summary is not None else None
        return content or str(self.settings["dataset.name"]), self.metric

    @property
    def dataset(self) -> str:
        return (self.summary and self.summary.dataset) or str(self.settings["dataset.name"])


def read_run(folder: Path) -> Run:
    """Raises ``SargnnError`` naming the file that is missing, damaged or holds something else."""
    settings = read_settings(folder / CONFIG)
    return Run(folder.name, folder, settings, read_summary(folder), list(MetricsTail(folder).new_rows()))


@dataclass(frozen=True)
class LeftOut:
    folder: Path
    reason: str


def find_folders(words: Iterable[str]) -> tuple[list[Path], list[LeftOut]]:
    """The run folders that words name, each once; without words those in ``runs/``. And folders that hold no run. Raises
    ``ConfigError`` where a word names nothing."""
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
    """The finished runs, named; and those left out: unfinished ones, and ones with a damaged file."""
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
    sweeps = sweeps_here()
    hint = f"sargnn compare {sweeps[-1]}" if sweeps else "sargnn train makes one in runs/; or name run folders"
    given = (
        "; ".join(f"{skipped.folder} ({skipped.reason})" for skipped in out[:3]) + ("; ..." if len(out) > 3 else "")
        if out
        else None
    )
    return ConfigError("There is no finished run to compare.", given=given, hint=hint)


def name_runs(runs: Sequence[Run]) -> list[Run]:
    """With names that are all different: a run is called as its folder, a sweep's point by what it overrides; two of the same
    name by their last two folders, or else by the whole path."""
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
