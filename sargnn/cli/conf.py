"""The configuration folders as they are written: groups, options, settings with their comments, of the package and of the user.

A setting of the package stands in its class, with what it starts from and what help says (``config.fields.starts_of``). A file
has what differs from that. Of which class its settings are, an option's ``name`` says, or a line ``# @fields CLASS``.

Hydra composes (``compose``), but it knows neither comments nor lines, and needs a twentieth of a second for the defaults of an
option: for all of them, which the answer to a misspelt setting looks through, six seconds. Help, completion and answers to
mistakes read the same files here, each with those that it builds on; a test holds them against what Hydra finds.

A user's own folder, ``conf/`` in the working directory or the one that ``--config-dir`` names, adds options to the groups.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from sargnn.config.fields import MUST_BE_GIVEN, class_of, starts_of, written
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, SargnnError
from sargnn.resolve import load_attribute

OVERRIDING = ("experiment", "debug")
"""Groups whose options choose options of other groups and set their settings."""
WITH_ARGUMENTS = ("dataset", "model", "optim")
"""Groups with a setting ``args``, whatever names it holds: arguments of what a target names."""
MAPPINGS = (*(f"{group}.args" for group in WITH_ARGUMENTS), "optim.weight_decay_of", "optim.lr_of")
"""Settings that hold whatever names they are given."""
EXAMPLES = {"root": "FOLDER", "target": "FILE.py:NAME"}
"""What a setting without a default looks like, by the end of its key."""


@dataclass(frozen=True)
class FileSetting:
    """A setting as a file has it, or a settings class.

    Attributes:
        key: dotted, as it is overridden on the command line.
        value: as it is written.
        comment: beside it, or above it.
        path: the file; None: the class has it.
        line: where in it.
    """

    key: str
    value: str
    comment: str
    path: Path | None = None
    line: int = 0

    @property
    def place(self) -> str:
        """File and line."""
        return f"{show_path(self.path)}, line {self.line}" if self.path is not None else ""


@dataclass(frozen=True)
class Named:
    """What a line of a defaults list names.

    Attributes:
        group: of a choice (``group: option``), as it is written; empty for a file that is built on.
        option: the choice, or the file's path without suffix, relative to the naming file's folder unless it starts with ``/``.
        package: after ``@``, if there is one.
        override: it replaces another file's choice.
        optional: the file may be missing.
    """

    group: str
    option: str
    package: str = ""
    override: bool = False
    optional: bool = False


@dataclass(frozen=True)
class ConfFile:
    """One file, read.

    Attributes:
        package: of its header ``# @package``.
        fields: of its header ``# @fields``: the class that has its settings, as "module:NAME"; empty: there is none.
        sentence: its first comment.
        defaults: its defaults list.
        own_first: whether its own settings come before those of the files that it names.
        settings: its own, with keys relative to its package.
    """

    path: Path
    package: str | None
    fields: str
    sentence: str
    defaults: tuple[Named, ...]
    own_first: bool
    settings: tuple[FileSetting, ...]


def read_file(path: Path) -> ConfFile:
    """Raises ``ConfigError`` with the line for what is no YAML, and for what is no mapping."""
    changed: tuple[int, ...] = ()
    with suppress(OSError, ValueError):  # reading says why
        changed = (path.stat().st_mtime_ns, path.stat().st_size)
    return _read(path, changed)


@functools.lru_cache(maxsize=1024)
def _read(path: Path, _changed: tuple[int, ...]) -> ConfFile:
    try:
        text = path.read_text()
        root = yaml.compose(text, yaml.SafeLoader)
        _refuse_twins(root)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"A configuration file is no YAML: {problem}.", given=f"{show_path(path)}{line}") from error
    except (OSError, ValueError) as error:
        problem = str(error).splitlines()[0]
        raise ConfigError(f"A configuration file cannot be read: {problem}.", given=show_path(path)) from error
    except RecursionError as error:
        raise ConfigError("A configuration file is nested too deeply.", given=show_path(path)) from error
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise ConfigError("A configuration file must hold settings.", given=show_path(path), allowed="lines of KEY: VALUE")
    lines = text.splitlines()
    comments = [line.lstrip("# ").strip() for line in lines if line.startswith("#")]
    headers = {comment.partition(" ")[0]: comment.partition(" ")[2].strip() for comment in comments if comment.startswith("@")}
    sentence = next((comment for comment in comments if comment and not comment.startswith("@")), "")
    named: list[Named] = []
    settings: list[FileSetting] = []
    for key, value in root.value if root is not None else ():
        if key.value == "defaults" and isinstance(value, yaml.SequenceNode):
            named = [entry for node in value.value for entry in _named(node)]
        elif isinstance(key, yaml.ScalarNode):
            settings += _leaves(key, value, "", lines, path, text)
    own_first = bool(named) and named[0].option == "_self_"
    defaults = tuple(entry for entry in named if entry.option != "_self_")
    package, fields = headers.get("@package"), headers.get("@fields", "")
    return ConfFile(path, package, fields, sentence, defaults, own_first, tuple(settings))


def _refuse_twins(node: yaml.Node | None) -> None:
    """Raises ``yaml.YAMLError`` for a key that stands twice in one mapping, which YAML itself would take."""
    if isinstance(node, yaml.MappingNode):
        keys = set()
        for key, value in node.value:
            if key.value in keys and isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem=f"found duplicate key {key.value}", problem_mark=key.start_mark)
            keys |= {key.value} if isinstance(key, yaml.ScalarNode) else set()
            _refuse_twins(value)


def _named(entry: yaml.Node) -> Iterator[Named]:
    if isinstance(entry, yaml.ScalarNode):
        option, _, package = entry.value.partition("@")
        yield Named("", option, package)
    elif isinstance(entry, yaml.MappingNode):
        for key, value in entry.value:
            *words, last = str(key.value).split() or [""]
            group, _, package = last.partition("@")
            for option in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                yield Named(group, str(option.value), package, "override" in words, "optional" in words)


def _leaves(
    key: yaml.Node, value: yaml.Node, prefix: str, lines: Sequence[str], path: Path, text: str
) -> Iterator[FileSetting]:
    name = f"{prefix}{key.value}"
    if isinstance(value, yaml.MappingNode) and value.value:
        for inner_key, inner_value in value.value:
            if isinstance(inner_key, yaml.ScalarNode):
                yield from _leaves(inner_key, inner_value, f"{name}.", lines, path, text)
        return
    start, end, line = value.start_mark, value.end_mark, key.start_mark.line
    written = " ".join(text[start.index : end.index].split()) or "null"
    rest = lines[end.line][end.column :] if end.line < len(lines) and end.line == line else ""
    if beside := re.match(r"\s*#\s*(.*)", rest):
        comment = beside.group(1).strip()
    else:  # the comment directly above, unless it is the one that the file begins with
        first = line
        while first > 0 and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        comment = " ".join(above.strip().lstrip("# ") for above in lines[first:line]) if first else ""
    yield FileSetting(name, written, comment, path, line + 1)


@dataclass(frozen=True)
class Option:
    """One option of a group.

    Attributes:
        sentence: what it is.
        origin: the user's file; empty for an option of the package.
        fault: why it cannot be read.
    """

    sentence: str
    origin: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Choice:
    """What a command line chooses, before anything is composed.

    Attributes:
        options: group -> option, of all groups, with the defaults where nothing else is said.
        named: groups whose option the command line names, itself or by an experiment, in that order.
        given: key -> value that it sets itself.
        theirs: key -> value that its experiment sets.
    """

    options: dict[str, str]
    named: tuple[str, ...]
    given: dict[str, str]
    theirs: dict[str, str]


@dataclass(frozen=True)
class ConfFolders:
    """The package's configuration folder and the user's.

    Attributes:
        own: the user's folder, if there is one.
        given: ``--config-dir`` named it.
    """

    built_in: Path
    own: Path | None = None
    given: bool = False

    @property
    def arguments(self) -> list[str]:
        """What another command needs to find the same folders."""
        return ["--config-dir", str(self.own)] if self.own is not None and self.given else []

    @property
    def both(self) -> tuple[Path, ...]:
        """The folders that there are."""
        return (self.built_in,) if self.own is None else (self.built_in, self.own)

    def state(self) -> tuple[tuple[str, int, int], ...]:
        """By which one sees whether a file has changed: of each its path, when it was written (ns) and its bytes."""
        states = []
        for path in sorted(path for folder in self.both for form in ("*.yaml", "*/*.yaml") for path in folder.glob(form)):
            with suppress(OSError):  # a link that leads nowhere
                stat = path.stat()
                states.append((str(path), stat.st_mtime_ns, stat.st_size))
        return tuple(states)

    def primary(self, config: str) -> Path:
        """A primary file; the package's comes before the user's."""
        return self.find(config) or self.built_in / f"{config}.yaml"

    def groups(self, config: str) -> dict[str, str]:
        """The groups of a primary file, with their default options (``null``: none)."""
        groups: dict[str, str] = {}
        for named in read_file(self.primary(config)).defaults:
            if not named.group:
                groups |= self.groups(named.option)
            elif not named.group.startswith("hydra"):
                groups[named.group] = named.option
        return groups

    def settings(self, config: str) -> dict[str, FileSetting]:
        """The settings of a primary file itself, those of its class and of files that it builds on first."""
        by_key: dict[str, FileSetting] = {}
        _put(by_key, _of_classes(self.starts(config, {})))
        for file in self._primary_files(config):
            _put(by_key, file.settings)
        return by_key

    def _primary_files(self, config: str) -> Iterator[ConfFile]:
        """A primary file, behind those that it builds on."""
        file = read_file(self.primary(config))
        for named in file.defaults:
            if not named.group:
                yield from self._primary_files(named.option)
        yield file

    def class_of_verb(self, config: str) -> Any:
        """The class of a primary file's settings, the last one of those that it builds on; None: none has one."""
        named = [file.fields for file in self._primary_files(config) if file.fields]
        return load_attribute(named[-1]) if named else None

    def starts(self, config: str, options: Mapping[str, str], task: str | None = None) -> dict[str, tuple[Any, str]]:
        """Dotted key -> what it starts from and what help says: what a verb's settings classes have.

        Args:
            options: group -> the option that is chosen.
            task: of the run; None: the usual one.
        """
        starts: dict[str, tuple[Any, str]] = {}
        groups = frozenset(self.groups(config))
        for file in self._primary_files(config):
            if file.fields:
                starts |= starts_of(load_attribute(file.fields), leave=groups, task=task)
        for group, option in options.items():
            starts |= self._starts_of(group, list(self.files(group, option)), task)
        return starts

    def _starts_of(
        self, group: str, files: Sequence[tuple[ConfFile, str]], task: str | None = None
    ) -> dict[str, tuple[Any, str]]:
        """Likewise of an option, given its files."""
        own = {setting.key: setting.value for file, _ in files for setting in file.settings if setting.value != "null"}
        cls = class_of(RunConfig, group, own)
        if cls is None and (bases := [file.fields for file, _ in files if file.fields]):
            cls = load_attribute(bases[-1])
        starts = starts_of(cls, own.get("name", ""), task=task) if cls else {}
        return {f"{group}.{key}": start for key, start in starts.items()}

    def options(self, group: str) -> dict[str, Option]:
        """A group's options by name: the package's, then the user's."""
        options: dict[str, Option] = {}
        for folder in self.both:
            for path in sorted((folder / group).glob("[!_]*.yaml")):
                origin = show_path(path) if folder is self.own else ""
                try:
                    options[path.stem] = Option(read_file(path).sentence, origin)
                except ConfigError as error:
                    options[path.stem] = Option("", origin, str(error))
        return options

    def settings_of(self, group: str, option: str) -> dict[str, FileSetting]:
        """What an option has, of its class and of files that it builds on, by dotted key; nothing for one that is not there.
        Raises ``ConfigError``: a file that cannot be read."""
        by_key: dict[str, FileSetting] = {}
        files = list(self.files(group, option))
        _put(by_key, _of_classes(self._starts_of(group, files)))
        for file, package in files:
            prefix = f"{package}." if package else ""
            _put(by_key, (replace(setting, key=prefix + setting.key) for setting in file.settings))
        return by_key

    def needs(self, group: str, option: str) -> list[str]:
        """The settings of an option that must be given, by dotted key. Raises ``ConfigError`` for a file that is no YAML."""
        return [setting.key for setting in self.settings_of(group, option).values() if setting.value == MUST_BE_GIVEN]

    def choice(self, config: str, words: Iterable[str]) -> Choice:
        """What ``words`` choose. Options that are not there are kept as they are given."""
        options = self.groups(config)
        chosen: dict[str, str] = {}
        given: dict[str, str] = {}
        for word in words:
            key, equals, value = word.lstrip("+").partition("=")
            if equals:
                (chosen if key in options else given)[key] = value
        overriding = [group for group in OVERRIDING if group in chosen]
        overridden: dict[str, str] = {}
        theirs: dict[str, str] = {}
        for group in overriding:
            for file, package in self.files(group, chosen[group]):
                overridden |= {named.group.lstrip("/"): named.option for named in file.defaults if named.override}
                if not package:
                    theirs |= {setting.key: setting.value for setting in file.settings}
        overridden = {group: option for group, option in overridden.items() if group in options} | chosen
        return Choice(options | overridden, tuple(dict.fromkeys([*overriding, *overridden])), given, theirs)

    def find(self, relative: str) -> Path | None:
        """A file by its path in either folder, without suffix."""
        for folder in self.both:
            with suppress(OSError, ValueError):  # a name that is too long, or none at all
                if (path := folder / f"{relative}.yaml").is_file():
                    return path
        return None

    def missing_bases(self, file: ConfFile) -> list[str]:
        """What a file's defaults list names and is not there, each as a path in a folder of configuration."""
        root = next(folder for folder in self.both if file.path.is_relative_to(folder))
        folder = file.path.relative_to(root).parent.as_posix()
        named = [named for named in file.defaults if not (named.override or named.optional or named.option in ("null", ""))]
        paths = [built_on(entry, folder, "")[0] for entry in named]
        return [path for path in paths if "${" not in path and self.find(path) is None]

    def named_options(self, group: str, value: str) -> list[str]:
        """The options that a value names: one, or those of a sweep (``a,b``, ``choice(a,b)``, ``glob(a*,exclude=ab*)``)."""
        call = re.fullmatch(r"(glob|choice|shuffle|sort)\((.*)\)", value)
        if call is None or call.group(1) != "glob":
            return [option.strip() for option in (call.group(2) if call else value).split(",")]
        include, _, exclude = call.group(2).partition("exclude=")
        taken, left = (re.findall(r"[^\s,\[\]]+", text.removeprefix("include=")) for text in (include, exclude))
        return [
            option
            for option in self.options(group)
            if any(fnmatch(option, p) for p in taken) and not any(fnmatch(option, p) for p in left)
        ]

    def files(self, group: str, option: str) -> Iterator[tuple[ConfFile, str]]:
        """An option's file and those that it builds on, each with its package, in the order in which later ones win."""
        yield from self._files(f"{group}/{option}", group.replace("/", "."), ())

    def _files(self, relative: str, package: str, above: tuple[Path, ...]) -> Iterator[tuple[ConfFile, str]]:
        path = self.find(relative)
        if path is None or path in above:
            return
        file = read_file(path)
        folder = relative.rpartition("/")[0]
        if file.package is not None:
            package = {"_global_": "", "_group_": folder.replace("/", ".")}.get(file.package, file.package)
        if file.own_first:
            yield file, package
        for named in file.defaults:
            if not named.override and named.option not in ("null", ""):
                inner, inner_package = built_on(named, folder, package)
                yield from self._files(inner, inner_package, (*above, path))
        if not file.own_first:
            yield file, package


def built_on(named: Named, folder: str, package: str) -> tuple[str, str]:
    """The file that a line of a defaults list names, and where its settings stand.

    Args:
        folder: of the naming file, in a folder of configuration.
        package: of the naming file.
    """
    target = f"{named.group}/{named.option}" if named.group else named.option
    below = target.rpartition("/")[0].strip("/").replace("/", ".")
    if target.startswith("/"):
        folder, package = "", package if named.package else ""
    inner = {"_here_": "", "_global_": "", "_group_": below, "": below}.get(named.package, named.package)
    if named.package.startswith("_global_"):
        package, inner = "", named.package.removeprefix("_global_").lstrip(".")
    return f"{folder}/{target}".strip("/"), ".".join(part for part in (package, inner) if part)


def _of_classes(starts: Mapping[str, tuple[Any, str]]) -> Iterator[FileSetting]:
    return (FileSetting(key, written(value), meaning) for key, (value, meaning) in starts.items())


def _put(by_key: dict[str, FileSetting], settings: Iterable[FileSetting]) -> None:
    """Later values win; the comment of an earlier one stays where the later one has none. Hydra's own are left out."""
    for setting in settings:
        before = by_key.get(setting.key)
        if not setting.key.startswith("hydra."):
            kept = before is not None and not setting.comment
            by_key[setting.key] = replace(setting, comment=before.comment) if before is not None and kept else setting


def in_a_file(key: str) -> str:
    """The key that files of options have for it: ``model.args`` for ``model.args.hidden``."""
    return next((mapping for mapping in MAPPINGS if key.startswith(f"{mapping}.")), key)


def show_path(path: Path) -> str:
    """Relative to the working folder where it lies in it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def conf_dir() -> Path:
    """The configuration folder: beside the package in a wheel, at the root of a checkout."""
    package = Path(__file__).parent.parent
    for candidate in (package / "conf", package.parent / "conf"):
        if candidate.is_dir():
            return candidate
    raise SargnnError("The configuration folder 'conf' is missing from this installation.")


def built_in_folder() -> ConfFolders:
    """The package's folder alone."""
    return ConfFolders(conf_dir().resolve())


def find_folders(given: str | None = None) -> ConfFolders:
    """The folders of a command: the package's, and ``--config-dir`` or else ``conf/`` in the working directory. Raises
    ``ConfigError``: the folder given does not exist."""
    built_in = conf_dir().resolve()
    if given is None:
        own = Path.cwd() / "conf"
        # A checkout of sargnn has the package's configuration at this place.
        if not own.is_dir() or own.resolve() == built_in or (own.parent / "sargnn" / "cli" / "verbs.py").is_file():
            return ConfFolders(built_in)
        return ConfFolders(built_in, own)
    own = Path(os.path.expanduser(given))
    if given:
        with suppress(OSError, ValueError):
            if own.is_dir():
                return ConfFolders(built_in, None if own.resolve() == built_in else own.absolute(), given=True)
    raise ConfigError("The folder of --config-dir does not exist.", given=given or "nothing", hint="--config-dir FOLDER")
