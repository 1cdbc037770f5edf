"""What can be set, and answers to settings and options that do not exist: where they are, what is like them, what to write."""

from __future__ import annotations

import re
import shlex
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sargnn.cli.conf import EXAMPLES, OVERRIDING, WITH_ARGUMENTS, ConfFolders, in_a_file, show_path
from sargnn.cli.verb import Verb
from sargnn.cli.verbs import VERBS
from sargnn.config.fields import class_of, names_of
from sargnn.errors import MOST_SHOWN, ConfigError, SargnnError, nearest
from sargnn.resolve import load_attribute

_ALIKE, _PART_OF, _MISSPELT = 0.6, 0.8, 0.9
"""How like a key a word is, from 0 to 1: at all; it is a part of the key's name; it is the key but for a letter."""
_MOST_USED = ("arrays", "products_like")
"""Options to offer where several would do."""
_NOT_HERE = {
    **dict.fromkeys(
        ("batch", "batch_size", "batchsize", "bs"),
        ("the steps of an epoch are counted", "batches.steps=16 for sixteen optimizer steps an epoch"),
    ),
    **dict.fromkeys(
        ("gpu", "gpus", "cuda", "num_gpus"),
        ("each process computes on one GPU", "device=cuda processes=1 for one GPU, with world=N for N parts on it"),
    ),
}
"""What others have and this has not -> why, and what there is."""
_EVERY_VERB = [command for verb in VERBS.values() for command in (verb, *verb.verbs)]
_ALSO_CALLED = {
    **dict.fromkeys(("fanout", "num_neighbors", "num_neighbours", "neighbors", "neighbours"), "sample.fanouts"),
    "learning_rate": "optim.lr",
    **dict.fromkeys(("wd", "l2"), "optim.weight_decay"),
    **dict.fromkeys(("optimizer", "optimiser"), "optim"),
    **dict.fromkeys(("scheduler", "lr_scheduler"), "optim.schedule"),
    "grad_clip": "optim.clip",
    **dict.fromkeys(("hidden_size", "hidden_dim", "hidden_channels", "hid"), "model.hidden"),
    **dict.fromkeys(("layers", "n_layers", "depth"), "model.num_layers"),
    "num_heads": "model.heads",
    "aggr": "model.aggregator",
    "arch": "model",
    **dict.fromkeys(("data", "graph"), "dataset"),
    **dict.fromkeys(("workers", "num_workers", "world_size", "nproc", "num_parts", "parts"), "world"),
    "dtype": "precision",
    **dict.fromkeys(("n_epochs", "max_epochs"), "epochs"),
    "patience": "early_stopping",
    "random_seed": "seed",
    "num_threads": "threads",
    "name": "run_name",
    **dict.fromkeys(("output_dir", "out_dir", "save_dir", "log_dir", "checkpoint_dir"), "run_dir"),
}
"""What others call it -> what it is called here."""


def verb_of(config: str) -> Verb:
    """The verb that composes a primary file; ``train`` for one from elsewhere."""
    return next((verb for verb in _EVERY_VERB if verb.config == config and not verb.changes_a_run), VERBS["train"])


@dataclass(frozen=True)
class Known:
    """The settings of a verb, and what the command line chooses.

    Attributes:
        options: group -> its options, in order.
        chosen: group -> option.
        top: the settings that stand in no group.
        owners: key of a group's setting -> the options that have it.
    """

    config: str
    folders: ConfFolders
    options: dict[str, list[str]]
    chosen: dict[str, str]
    top: list[str]
    owners: dict[str, list[str]]

    @property
    def keys(self) -> list[str]:
        """Groups, settings, and settings in groups; those that the chosen options have first."""
        here = [key for key in self.owners if self.is_here(key)]
        return list(dict.fromkeys([*self.options, *self.top, *here, *self.owners]))

    def is_here(self, key: str) -> bool:
        """Whether it can be set as things are chosen."""
        return key not in self.owners or self.chosen.get(key.partition(".")[0]) in self.owners[key]

    def owner(self, key: str) -> str:
        """The option to choose for a setting: one that needs no further one, the most like the chosen one."""
        group = key.partition(".")[0]
        chosen = self.chosen.get(group, "")

        def rank(option: str) -> tuple[bool, float]:
            like = SequenceMatcher(None, chosen, option).ratio()
            return bool(self._needed(group, option, key)), -like if like >= _ALIKE else -float(option in _MOST_USED)

        return min(self.owners[key], key=rank)

    def _needed(self, group: str, option: str, key: str) -> list[str]:
        return [setting for setting in self.folders.needs(group, option) if setting != key]

    def words(self, key: str, value: str) -> str:
        """The words that set it, with the option that has it where another one is chosen."""
        words = [f"{key}={value}"]
        key = in_a_file(key)
        if not self.is_here(key):
            group, option = key.partition(".")[0], self.owner(key)
            needed = (
                f"{setting}={EXAMPLES.get(setting.rpartition('.')[2], 'VALUE')}" for setting in self._needed(group, option, key)
            )
            words = [f"{group}={option}", *needed, *words]
        return " ".join(map(shlex.quote, words))

    def argument(self, name: str) -> str | None:
        """``model.args.hidden`` for ``model.hidden``, where the chosen option takes arguments and has no setting like that."""
        group, _, last = name.partition(".")
        arguments = f"{group}.args"
        if (
            group not in WITH_ARGUMENTS
            or not last.isidentifier()
            or arguments not in self.owners
            or not self.is_here(arguments)
        ):
            return None
        own = [key for key in self.owners if key.startswith(f"{group}.") and self.is_here(key)]
        return None if get_close_matches(name, own, cutoff=_MISSPELT) else f"{arguments}.{last}"

    def called(self, name: str) -> list[str]:
        """The keys that a name means: itself, those whose last part it is, or what others call so."""
        if name in self.keys:
            return [name]
        last = name.rpartition(".")[2].casefold().replace("-", "_")
        whole = [key for key in self.keys if key.casefold() == name.casefold()]
        same = [key for key in self.keys if key.rpartition(".")[2].casefold() == last]
        also = [key for key in [_ALSO_CALLED.get(last, "")] if key in self.keys]
        return whole or same or also

    def options_called(self, word: str) -> list[str]:
        """``group=option`` for every option of this name."""
        return [
            f"{group}={name}" for group, names in self.options.items() for name in names if name.casefold() == word.casefold()
        ]


def read_known(config: str, overrides: Iterable[str], folders: ConfFolders, own: Iterable[str] = ()) -> Known:
    """What can be set, and what ``overrides`` choose. Files that cannot be read are left out.

    ``own``: settings that the verb reads itself.
    """
    groups = folders.groups(config)
    try:
        chosen = folders.choice(config, overrides).options
    except ConfigError:
        chosen = groups
    owners: dict[str, list[str]] = {}
    options = {group: list(folders.options(group)) for group in groups}
    for group, names in options.items():
        for name in names if group not in OVERRIDING else ():
            try:
                settings = folders.settings_of(group, name)
            except ConfigError:
                continue
            for key in settings:
                if key != f"{group}.name":
                    owners.setdefault(key, []).append(name)
    return Known(config, folders, options, chosen, [*own, *folders.settings(config)], owners)


def unknown_setting(
    config: str, name: str, overrides: Sequence[str], folders: ConfFolders, own: Iterable[str] = ()
) -> ConfigError:
    """The answer to a setting that the verb's configuration does not have as it is chosen; ``own`` as of ``read_known``."""
    known = read_known(config, overrides, folders, own)
    values = (override.partition("=")[2] for override in overrides if override.lstrip("+").partition("=")[0] == name)
    value = next(values, "") or "VALUE"
    what = f"There is no setting '{name}'."
    if (argument := known.argument(name)) is not None:
        group = name.partition(".")[0]
        what = f"'{name}' is no setting of {group}={known.chosen.get(group)}."
        return ConfigError(what, hint=shlex.quote(f"{argument}={value}"))
    if (owned := in_a_file(name)) in known.owners and not known.is_here(owned):
        group = name.partition(".")[0]
        having = known.owners[owned]
        listed = ", ".join(having[:MOST_SHOWN]) + (", ..." if len(having) > MOST_SHOWN else "")
        what = f"'{name}' belongs to {group}={listed}; chosen is {group}={known.chosen.get(group)}."
        return ConfigError(what, hint=known.words(name, value))
    last = name.rpartition(".")[2].casefold()
    if last in _NOT_HERE and not known.called(name):
        why, instead = _NOT_HERE[last]
        return ConfigError(f"There is no setting '{name}': {why}.", hint=instead if "world" in known.top else None)
    keys = [key for key in known.called(name) if key != name] or _near(name, known, _MISSPELT)
    others = []
    for verb in _EVERY_VERB if not keys else ():
        own_names = [setting.name for setting in verb.settings]
        if verb.config is not None and verb.config != config and not verb.changes_a_run:
            own_names += folders.settings(verb.config)
        if name in own_names:
            others.append(verb.name)
    if others:
        return _of_another_verb(name, value, others, _near(name, known, _PART_OF))
    keys = keys or _near(name, known, _ALIKE)
    if not keys:
        return ConfigError(what, hint=f"{verb_of(config).command} --help lists all groups and settings")
    shown = [key if known.is_here(key) else f"{key} (with {key.partition('.')[0]}={known.owner(key)})" for key in keys]
    hint = None
    if len(keys) == 1:  # only one thing can be meant
        options = known.options.get(keys[0])
        same = [option for option in options or () if option.casefold() == value.casefold()]
        hint = known.words(keys[0], value) if options is None else f"{keys[0]}={same[0] if same else 'OPTION'}"
    return ConfigError(what, allowed=shown[:MOST_SHOWN], hint=hint)


def _of_another_verb(name: str, value: str, verbs: Sequence[str], near: Sequence[str]) -> ConfigError:
    names = ", ".join([f"sargnn {verb}" for verb in verbs[:2]] + ["..."] * (len(verbs) > 2))
    what = f"There is no setting '{name}' here: it belongs to {names}."
    return ConfigError(what, allowed=near, hint=f"sargnn {verbs[0]} {shlex.quote(f'{name}={value}')}")


def _near(name: str, known: Known, cutoff: float) -> list[str]:
    """Keys that look like it, as a whole or in their last part, in its own group if it names one; the best ones only."""
    group, _, last = name.casefold().rpartition(".")

    def likeness(key: str) -> float:
        head, _, tail = key.rpartition(".")
        whole = SequenceMatcher(None, name.casefold(), key).ratio()
        if group not in ("", head):
            return whole
        part = _PART_OF if len(last) > 2 and last in tail.split("_") else 0.0
        return max(whole, part, SequenceMatcher(None, last, tail).ratio())

    scores = {key: likeness(key) for key in known.keys if key != name}
    best = max(scores.values(), default=0.0)
    close = [key for key, score in scores.items() if score >= max(cutoff, best - 0.12)]
    return sorted(close, key=lambda key: -scores[key])[:4]


def unknown_own_setting(verb: Verb, name: str, text: str = "") -> ConfigError:
    """The answer of a verb that composes nothing."""
    own = [setting.name for setting in verb.settings]
    what = f"There is no setting '{name}'."
    near = nearest(name, own)
    others = [other.name for other in VERBS.values() if name in [setting.name for setting in other.settings]]
    if others and len(near) == len(own):  # none is alike
        return _of_another_verb(name, text or "VALUE", others, ())
    return ConfigError(what, allowed=near, hint=None if near else f"{verb.command} --help")


def unknown_option(
    config: str | None, group: str, name: str, folders: ConfFolders, *, given: str | None = None, hint: str | None = None
) -> ConfigError:
    """The answer to an option that a group does not have.

    Args:
        config: the verb's primary file; None: it is not known.
        given: where it is named, if not on the command line.
        hint: what to do, if that is known.
    """
    options = list(folders.options(group))
    what = f"'{group}' has no option '{name}'."
    if hint is not None:
        return ConfigError(what, given=given, hint=hint)
    groups = folders.groups(config) if config else {}
    elsewhere = [other for other in groups if other != group and name in folders.options(other)]
    if elsewhere:
        named = " and of ".join(f"'{other}'" for other in elsewhere)
        what = f"'{group}' has no option '{name}': it is one of {named}."
        return ConfigError(what, given=given, hint=" or ".join(f"{other}={name}" for other in elsewhere))
    near = nearest(name, options)
    if config is not None and group == "dataset" and re.match(r"[.~]*/|.*/", name):
        return ConfigError(what, given=given, hint=f"dataset=arrays dataset.root={shlex.quote(name)}")
    if config is not None and (not near or len(near) == len(options)) and re.fullmatch(r"[\w-]{1,24}", name):
        listed = "" if near else f"{verb_of(config).command} {group} --help lists them; "
        hint = f"{listed}conf/{group}/{name}.yaml would be one of your own"
    return ConfigError(what, given=given, allowed=near, hint=hint)


def place_of(config: str, words: Iterable[str], message: str, folders: ConfFolders) -> str | None:
    """The user's file, with the line, that sets what a message is about; None where it is not one of theirs."""
    match = re.search(r"'([\w.]+)'", message)
    if folders.own is None or match is None:
        return None
    key = match.group(1)
    choice = folders.choice(config, words)
    if key in choice.given:
        return None
    for group in dict.fromkeys([*choice.named, key.partition(".")[0]]):
        for name in folders.named_options(group, choice.options.get(group, "")):
            path = folders.find(f"{group}/{name}")
            if path is None or not path.is_relative_to(folders.own):
                continue
            try:
                settings = folders.settings_of(group, name)
            except ConfigError:
                return show_path(path)
            if key in settings and settings[key].place:
                return settings[key].place
            if key.partition(".")[0] == group:
                return show_path(path)
    return None


def settings_class(config: str, group: str | None, words: Iterable[str], folders: ConfFolders) -> Any:
    """The dataclass of a verb's settings, or of the option of a group that ``words`` choose.

    Returns:
        None: there is none, or it is a user's own, which is not loaded for that.
    """
    top = folders.class_of_verb(config)
    if group is None or top is None:
        return top
    if group == "slurm":
        return load_attribute("sargnn.run.slurm:SlurmConfig")
    try:
        option = folders.choice(config, words).options.get(group, "")
        settings = folders.settings_of(group, option)
    except SargnnError:
        return None
    chosen = {key: settings[f"{group}.{key}"].value for key in ("name", "target") if f"{group}.{key}" in settings}
    return class_of(top, group, chosen)


def allowed_values(config: str, key: str, words: Iterable[str], folders: ConfFolders) -> list[str]:
    """The values that a setting may have, where they are few; else none.

    ``words``: the other words of the command line.
    """
    group, _, name = key.rpartition(".")
    settings_type = settings_class(config, group or None, words, folders)
    field = settings_type.__dataclass_fields__.get(name) if settings_type is not None else None
    if field is None:
        return []
    hint = get_type_hints(settings_type)[name]
    optional = ["null"] if type(None) in get_args(hint) else []
    if names := names_of(field.metadata):
        return [*names, *optional]
    plain = _plain(hint)
    if plain is bool:
        return ["true", "false", *optional]
    if get_origin(plain) is not Literal:
        return []
    return [str(literal).lower() if isinstance(literal, bool) else str(literal) for literal in get_args(plain)] + optional


def _plain(hint: Any) -> Any:
    """The type without ``None``."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(option for option in get_args(hint) if option is not type(None))
    return hint
