"""A run's own configuration again: with changes (``resume=RUN``), and as the command that repeats it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sargnn.cli.answers import read_known, unknown_setting
from sargnn.cli.command_line import words_of
from sargnn.cli.conf import MAPPINGS, OVERRIDING, ConfFolders, find_folders, in_a_file
from sargnn.config.fields import read_yaml
from sargnn.config.run import RunConfig, differing, load, parse
from sargnn.errors import ConfigError
from sargnn.report.runs import defaults_of
from sargnn.tracking.files import CONFIG
from sargnn.tracking.find_runs import find_run

_REFUSED = ("experiment", "debug", "run_dir", "run_name")


def read_resumed(
    overrides: Sequence[str], folders: ConfFolders | None = None, *, trains: bool = True
) -> tuple[RunConfig, Path] | None:
    """The configuration and the run folder; None where nothing is to be resumed.

    Args:
        folders: where options that are changed are looked for; None: as without ``--config-dir``.
        trains: it is to train on; then ``precision`` may change, and ``epochs`` where the learning rate does not depend on it.

    Raises ``ConfigError``: no such run, a setting that cannot be changed, or one that would change the losses.
    """
    named = [override.partition("=")[2].strip("'\"") for override in overrides if override.startswith("resume=")]
    if not named or named[-1] in ("", "null"):
        return None
    run_dir = find_run(named[-1])
    before = load(run_dir / CONFIG)
    mapping = read_yaml(run_dir / CONFIG, "A run's configuration")
    changes = [override for override in overrides if not override.startswith("resume=")]
    for change in changes:
        key = change.lstrip("+").partition("=")[0]
        if key in _REFUSED or key.startswith("hydra"):
            raise ConfigError("A resumed run keeps its folder and its experiment.", given=change)
        if key == "init_from":
            raise ConfigError(
                "A run that exists goes on from its own checkpoint; init_from is for a new one.",
                given=f"run {run_dir}, {change}",
                hint="name the run, or init_from, but not both",
            )
    _apply(mapping, changes, folders or find_folders())
    if not trains and not before.bounds_preload and not any(change.startswith("servers=") for change in changes):
        # Predictions are the same without servers: none where the world is no multiple of them.
        if isinstance(mapping["world"], int) and mapping["world"] % (mapping.get("servers") or 1):
            mapping["servers"] = None
            mapping["preload"] = {"name": "none", "max_hop": None, "fanout": None}
    moved = parse(mapping).config_hash == before.config_hash  # perhaps the same graph, in another place
    if not trains and names_dataset(changes) and not moved:
        _carry_over(mapping, read_yaml(run_dir / CONFIG, "A run's configuration"), changes)
    config = parse(mapping)
    compared = dataclasses.replace(before, epochs=config.epochs, precision=config.precision) if trains else before
    if not trains and names_dataset(changes):  # another graph
        compared = dataclasses.replace(compared, dataset=config.dataset)
    if config.config_hash != compared.config_hash:
        raise ConfigError(
            "A resumed run keeps what decides its losses.\n    " + "\n    ".join(differing(compared, config)),
            hint=f"world, mode, kernel, partitioner, threads, {'precision, ' * trains}checkpoint, tracking and comm may change,"
            " but not comm.wire",
        )
    if config.epochs != before.epochs and config.optim.depends_on_epochs:
        raise ConfigError(
            f"With optim.schedule={config.optim.schedule} every epoch's learning rate depends on the number of epochs, so the "
            "run cannot have another.",
            given=f"epochs={config.epochs} instead of {before.epochs}",
            hint=f"a new run from its parameters: init_from={run_dir}, with the dataset and the model named as for this one",
        )
    return config, run_dir


def names_dataset(changes: Sequence[str]) -> bool:
    return any(change.lstrip("+").partition("=")[0].partition(".")[0] == "dataset" for change in changes)


_CARRIED = (
    "add_self_loops",
    "loop_features",
    "edge_weights",
    "add_inverse_edges",
    "normalize_features",
    "homogenize",
    "edge_categories",
    "task",
)
"""What a dataset's settings say of how a model reads a graph."""


def _carry_over(mapping: dict[str, Any], trained: dict[str, Any], changes: Sequence[str]) -> None:
    """Another graph is read as the trained one was, but for what the command says, and is not split as that was."""
    given = {change.lstrip("+").partition("=")[0] for change in changes}
    dataset, before = mapping["dataset"], trained["dataset"]
    for key in _CARRIED:
        if f"dataset.{key}" not in given and key in before and key in dataset:
            dataset[key] = before[key]
    for key in ("split", "split_by", "split_at", "split_column"):
        if f"dataset.{key}" not in given and key in dataset:
            dataset[key] = None


def _apply(mapping: dict[str, Any], changes: Sequence[str], folders: ConfFolders) -> None:
    """A group that is chosen anew is as Hydra composes it, any other setting is changed in its place.

    What is not changed stays as the run has it, also where its options come from files that are not here now.
    """
    if not changes:
        return
    from sargnn.cli.compose import NOT_OF_A_RUN, compose_verb, read_overrides, says_how_labels_are_read

    of_labels = {text for text in changes if text.startswith("task=") and says_how_labels_are_read(text.partition("=")[2])}
    changes = [f"dataset.{text}" if text in of_labels else text for text in changes]  # as where a run is composed
    parsed = read_overrides(changes)
    groups_of_run = folders.groups("train")
    chosen = {override.get_key_element() for override in parsed} & groups_of_run.keys()
    keys: list[str] | None = None
    composed = [word for override in parsed if (word := str(override.input_line)).partition("=")[0].partition(".")[0] in chosen]
    if composed:
        fresh = compose_verb("train", composed, folders=folders)
        mapping |= {group: fresh[group] for group in chosen}
    for override in parsed:
        key = override.key_or_group
        *groups, leaf = key.split(".")
        if key in chosen or (groups and groups[0] in chosen):
            continue
        place: Any = mapping
        for group in groups:
            place = place.get(group) if isinstance(place, dict) else None
        known = isinstance(place, dict) and (
            leaf in place or override.is_force_add() or override.is_add() or in_a_file(key) in MAPPINGS
        )
        if not known:
            keys = keys or read_known("train", (), folders).keys
            if key in NOT_OF_A_RUN or key not in keys:
                settings = {group: mapping[group] for group in groups_of_run if isinstance(mapping.get(group), dict)}
                as_it_is = [f"{group}={values['name']}" for group, values in settings.items() if "name" in values]
                raise unknown_setting("train", key, [*as_it_is, *changes], folders)
        place = mapping
        for group in groups:
            place = place.setdefault(group, {})
        place[leaf] = override.value()


_FILLED_IN = ("run_dir", "init_digest")
"""Settings that a new run chooses itself."""
_VERB = "train"


def command_of(settings: Mapping[str, Any], folders: ConfFolders | None = None) -> str | None:
    """``sargnn train ...``, which composes to the same settings (dotted key -> value) but for the run folder.

    None where no option of a group is what the run had, such as one of another folder's ``conf/``.
    """
    folders = folders or find_folders()
    composed = {key: yaml.safe_load(setting.value) for key, setting in folders.settings(_VERB).items()}
    if composed.get("task") is None:  # then it is short for nothing, and what a run has is the default
        composed["task"] = RunConfig.task
    words = []
    for group, default in folders.groups(_VERB).items():
        if group in OVERRIDING:
            continue
        option = _find_option(folders, group, default, settings)
        if option is None:
            return None
        if option != default:
            words.append(f"{group}={option}")
        composed |= _settings_of(folders, group, option)
    unnamed = defaults_of(settings)
    for key, value in settings.items():
        if key in _FILLED_IN or (key in composed and composed[key] == value):
            continue
        is_argument = in_a_file(key) != key
        if not (key in composed or is_argument) and (value in (None, {}) or (key in unnamed and unnamed[key] == value)):
            continue  # what an option's file does not name is at its default
        prefix = "" if key in composed or is_argument else "++"
        words += [f"{prefix}{word}" for word in (words_of(key, value) if value != {} else [f"{key}={{}}"])]
    return shlex.join(["sargnn", _VERB, *words])


def _find_option(folders: ConfFolders, group: str, default: str, settings: Mapping[str, Any]) -> str | None:
    """The option with the group's name that needs the fewest other settings; the default one, or one of that name, first."""
    name = settings.get(f"{group}.name")
    candidates = []
    for option in folders.options(group):
        own = _settings_of(folders, group, option)
        if own.get(f"{group}.name") == name:
            wrong = sum(settings.get(key) != value for key, value in own.items())
            unknown = sum(key not in settings for key in own)
            candidates.append((unknown, wrong, option != default, option != name, option))
    best = min(candidates, default=None)
    return None if best is None or best[0] else best[-1]


def _settings_of(folders: ConfFolders, group: str, option: str) -> dict[str, Any]:
    values = {key: yaml.safe_load(setting.value) for key, setting in folders.settings_of(group, option).items()}
    return {key: value for key, value in values.items() if value != {}}
