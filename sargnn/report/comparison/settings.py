"""The settings of runs, and which of them tell runs apart.

A run's ``config.yaml`` is read as plain values: what a setting names, such as a file with a dataset's function, may be gone.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from sargnn.config.fields import as_mapping, brief, class_of, read_yaml
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.tracking.summary import Summary

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
    """A run's settings. Raises ``ConfigError`` naming the file, where it holds no mapping or lacks what names a run."""
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
    hints, defaults = get_type_hints(RunConfig), {}
    for field in dataclasses.fields(RunConfig):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = as_mapping(field.default) if dataclasses.is_dataclass(field.default) else field.default
        group = mapping.get(field.name)
        if isinstance(group, dict) and (cls := class_of(hints[field.name], field.metadata, group)) is not None:
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
    """Whether a setting never tells runs apart."""
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
    """As it is written on the command line."""
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
