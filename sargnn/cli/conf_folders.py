"""The configuration folders: groups, their options and settings, of the package and of the user.

A user's own folder, ``conf/`` in the working directory or the one that ``--config-dir`` names, adds options to the groups. What
a file's defaults list names is followed, so that settings of a shared base appear with the options that build on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from sargnn.cli.conf_files import ConfFile, FileSetting, read_file, show_path
from sargnn.cli.hydra_settings import refuse_hydra
from sargnn.errors import ConfigError, SargnnError


def conf_dir() -> Path:
    """The configuration folder: beside the package in a wheel, at the root of a checkout."""
    package = Path(__file__).parent.parent
    for candidate in (package / "conf", package.parent / "conf"):
        if candidate.is_dir():
            return candidate
    raise SargnnError("The configuration folder 'conf' is missing from this installation.")


OVERRIDING = ("experiment", "debug")
"""Groups whose options choose options of other groups and set their settings."""


WITH_ARGUMENTS = ("dataset", "model")
"""Groups with a setting ``args``, whatever names it holds: arguments of what a target names."""
MAPPINGS = (*(f"{group}.args" for group in WITH_ARGUMENTS), "optim.weight_decay_of")
"""Settings that hold whatever names they are given."""
EXAMPLES = {"root": "FOLDER", "target": "FILE.py:NAME"}
"""What a setting without a default looks like, by the end of its key."""


@dataclass(frozen=True)
class Option:
    """One option of a group. ``origin``: the user's file, empty for one of the package. ``fault``: why it cannot be read."""

    name: str
    path: Path
    sentence: str
    origin: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Choice:
    """What a command line chooses, before anything is composed.

    Attributes:
        options: group -> option, of all groups, with the defaults where nothing else is said.
        named: groups whose option the command line names, itself or by an experiment, in that order.
        given: key -> value that it sets itself. theirs: key -> value that its experiment sets.
    """

    options: dict[str, str]
    named: tuple[str, ...]
    given: dict[str, str]
    theirs: dict[str, str]


@dataclass(frozen=True)
class ConfFolders:
    """The package's configuration folder and the user's.

    Attributes:
        own: the user's folder, if there is one. given: ``--config-dir`` named it.
    """

    built_in: Path
    own: Path | None = None
    given: bool = False

    @property
    def arguments(self) -> list[str]:
        """What another command needs to find the same folders."""
        return ["--config-dir", str(self.own)] if self.own is not None and self.given else []

    def state(self) -> tuple[tuple[str, int, int], ...]:
        """By which one sees whether a file has changed: of each its path, when it was written (ns) and its bytes."""
        folders = [folder for folder in (self.built_in, self.own) if folder is not None]
        states = []
        for path in sorted(path for folder in folders for form in ("*.yaml", "*/*.yaml") for path in folder.glob(form)):
            with suppress(OSError):  # a link that leads nowhere
                stat = path.stat()
                states.append((str(path), stat.st_mtime_ns, stat.st_size))
        return tuple(states)

    def groups(self, config: str) -> dict[str, str]:
        """The groups of a primary file, with their default options (``null``: none)."""
        groups: dict[str, str] = {}
        for named in read_file(self.built_in / f"{config}.yaml").defaults:
            group = named.group.lstrip("/")
            if not group:
                groups |= self.groups(named.option)
            elif not group.startswith("hydra"):
                groups[group] = named.option
        return groups

    def settings(self, config: str) -> dict[str, FileSetting]:
        """The settings of a primary file itself, those of files that it builds on first."""
        by_key: dict[str, FileSetting] = {}
        for file in self._primaries(config):
            _put(by_key, (setting for setting in file.settings if not setting.key.startswith("hydra.")))
        return by_key

    def options(self, group: str) -> dict[str, Option]:
        """A group's options by name: the package's, then the user's."""
        return dict(self._read_options(group))

    def _read_options(self, group: str) -> Iterator[tuple[str, Option]]:
        for folder in (self.built_in, self.own):
            for path in sorted((folder / group).glob("*.yaml")) if folder is not None else ():
                if path.stem.startswith("_") or not path.is_file():
                    continue
                origin = show_path(path) if folder is self.own else ""
                try:
                    yield path.stem, Option(path.stem, path, read_file(path).sentence, origin)
                except ConfigError as error:
                    yield path.stem, Option(path.stem, path, "", origin, str(error))

    def settings_of(self, group: str, option: str) -> dict[str, FileSetting]:
        """What an option sets, with what it builds on, by dotted key; nothing for an option that is not there.

        Raises:
            ConfigError: a file that cannot be read.
        """
        by_key: dict[str, FileSetting] = {}
        for file, package in self._walk(f"{group}/{option}", group.replace("/", "."), ()):
            prefix = f"{package}." if package else ""
            _put(
                by_key,
                (
                    replace(setting, key=prefix + setting.key)
                    for setting in file.settings
                    if not setting.key.startswith("hydra.")
                ),
            )
        return by_key

    def needs(self, group: str, option: str) -> list[str]:
        """The settings of an option that must be given, by dotted key. Raises ``ConfigError`` for a file that is no YAML."""
        return [setting.key for setting in self.settings_of(group, option).values() if setting.value == "???"]

    def nested(self, groups: Iterable[str], options: dict[str, str] | None = None) -> dict[str, FileSetting]:
        """``group.key`` of the groups: of the options given, or of all. Files that cannot be read are left out."""
        by_key: dict[str, FileSetting] = {}
        for group in groups:
            if group in OVERRIDING:
                continue
            for option in [options[group]] if options and group in options else self.options(group):
                try:
                    settings = self.settings_of(group, option)
                except ConfigError:
                    continue
                _put(by_key, (setting for setting in settings.values() if setting.key != f"{group}.name"))
        return by_key

    def choice(self, config: str, words: Iterable[str]) -> Choice:
        """What ``words`` choose. Options that are not there are kept as they are given."""
        options = self.groups(config)
        chosen: dict[str, str] = {}
        given: dict[str, str] = {}
        for word in words:
            key, equals, value = word.lstrip("+").partition("=")
            if equals:
                (chosen if key in options else given)[key] = value
        named = [group for group in OVERRIDING if group in chosen]
        overridden: dict[str, str] = {}
        theirs: dict[str, str] = {}
        for group in named:
            for file, package in self._walk(f"{group}/{chosen[group]}", group, ()):
                choices = {default.group.lstrip("/"): default.option for default in file.defaults if default.override}
                overridden |= {name: option for name, option in choices.items() if name in options}
                if not package:
                    theirs |= {setting.key: setting.value for setting in file.settings}
        overridden |= chosen
        return Choice(options | overridden, tuple(dict.fromkeys([*named, *overridden])), given, theirs)

    def find(self, relative: str) -> Path | None:
        """A file by its path in either folder, without suffix."""
        for folder in (self.built_in, self.own):
            if folder is not None and _is_file(path := folder / f"{relative}.yaml"):
                return path
        return None

    def refuse_taken_names(self, groups: Iterable[str]) -> None:
        """Raises ``ConfigError`` where one of the user's files has the name of one of the package's."""
        if self.own is None:
            return
        folders = [*groups, ""]
        for path in sorted(path for group in folders for path in _files(self.own / group, deep=bool(group))):
            relative = path.relative_to(self.own)
            if (self.built_in / relative).is_file():
                raise ConfigError(
                    "A file has the name of one that sargnn has itself.",
                    given=show_path(path),
                    hint="give it another name; its defaults list can build on the one of sargnn; or choose --config-dir",
                )

    def place_of(self, config: str, words: Iterable[str], message: str) -> str | None:
        """The user's file, with the line, that sets what a message is about; None where it is not one of theirs."""
        match = re.search(r"'([\w.]+)'", message)
        if self.own is None or match is None:
            return None
        key = match.group(1)
        choice = self.choice(config, words)
        if key in choice.given:
            return None
        for group in dict.fromkeys([*choice.named, key.partition(".")[0]]):
            for name in self.named_options(group, choice.options.get(group, "")):
                path = self.own / group / f"{name}.yaml"
                if not _is_file(path):
                    continue
                try:
                    settings = self.settings_of(group, name)
                except ConfigError:
                    return show_path(path)
                if key in settings:
                    place = settings[key]
                    return f"{show_path(place.path)}, line {place.line}"
                if key.partition(".")[0] == group:
                    return show_path(path)
        return None

    def named_options(self, group: str, value: str) -> list[str]:
        """The options that a value names: one, or those of a sweep (``a,b``, ``choice(a,b)``, ``glob(a*,exclude=ab*)``)."""
        call = re.fullmatch(r"(glob|choice|shuffle|sort)\((.*)\)", value)
        if call is None or call.group(1) != "glob":
            return [option.strip() for option in (call.group(2) if call else value).split(",")]
        include, _, exclude = call.group(2).partition("exclude=")
        taken, left = (re.findall(r"[^\s,\[\]]+", text.removeprefix("include=")) for text in (include, exclude))
        options = self.options(group)
        return [
            option for option in options if any(fnmatch(option, p) for p in taken) and not any(fnmatch(option, p) for p in left)
        ]

    def files_that_choose(self, config: str, words: Iterable[str], group: str, option: str) -> list[Path]:
        """Files of the experiments that ``words`` name which choose this option."""
        choice = self.choice(config, words)
        return [
            file.path
            for name in choice.named
            if name in OVERRIDING
            for file, _ in self._walk(f"{name}/{choice.options[name]}", name, ())
            if any(default.group.lstrip("/") == group and default.option == option for default in file.defaults)
        ]

    def chosen_fault(self, config: str, words: Iterable[str]) -> ConfigError | None:
        """What is wrong with the first file that ``words`` choose and that cannot be read."""
        try:
            choice = self.choice(config, words)
            for group in choice.named:
                for option in self.named_options(group, choice.options[group]):
                    self.settings_of(group, option)
                    self._refuse_hydra(group, option)
        except ConfigError as error:
            return error
        return None

    def _refuse_hydra(self, group: str, option: str) -> None:
        """Raises ``ConfigError`` where a file sets what is Hydra's own and does nothing here."""
        for file, package in self._walk(f"{group}/{option}", group.replace("/", "."), ()):
            for setting in file.settings if not package else ():
                refuse_hydra(setting.key, setting.value, f"{setting.key} in {show_path(setting.path)}, line {setting.line}")

    def _primaries(self, config: str) -> Iterator[ConfFile]:
        """A primary file, behind those that it builds on."""
        file = read_file(self.built_in / f"{config}.yaml")
        for named in file.defaults:
            if not named.group:
                yield from self._primaries(named.option)
        yield file

    def _walk(self, relative: str, package: str, above: tuple[Path, ...]) -> Iterator[tuple[ConfFile, str]]:
        """A file and those that it builds on, each with its package, in the order in which later ones win."""
        path = self.find(relative)
        if path is None or path in above:
            return
        file = read_file(path)
        if file.package is not None:
            package = {"_global_": "", "_group_": relative.rpartition("/")[0].replace("/", ".")}.get(file.package, file.package)
        if file.own_first:
            yield file, package
        for named in file.defaults:
            if named.override or named.option in ("null", ""):
                continue
            target = f"{named.group}/{named.option}" if named.group else named.option
            inner = f"{relative.rpartition('/')[0]}/{target}" if not target.startswith("/") else target[1:]
            yield from self._walk(inner, _inner_package(package, target, named.package), (*above, path))
        if not file.own_first:
            yield file, package


def _inner_package(package: str, target: str, given: str | None) -> str:
    """Where the settings of a file stand that another one, of ``package``, names in its defaults list."""
    folder = target.rpartition("/")[0].strip("/").replace("/", ".")
    if target.startswith("/"):
        package, folder = ("", folder) if given is None else (package, folder)
    if given is None:
        return ".".join(part for part in (package, folder) if part)
    if given.startswith("_global_"):
        return given.removeprefix("_global_").lstrip(".")
    if given == "_here_":
        return package
    return ".".join(part for part in (package, folder if given == "_group_" else given) if part)


def _put(by_key: dict[str, FileSetting], settings: Iterable[FileSetting]) -> None:
    """Later values win; the comment of an earlier one stays where the later one has none."""
    for setting in settings:
        before = by_key.get(setting.key)
        by_key[setting.key] = (
            replace(setting, comment=before.comment) if before is not None and not setting.comment else setting
        )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or none at all
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _files(folder: Path, *, deep: bool) -> list[Path]:
    return sorted(path for path in (folder.rglob("*.yaml") if deep else folder.glob("*.yaml")) if path.is_file())


def built_in_folder() -> ConfFolders:
    """The package's folder alone."""
    return ConfFolders(conf_dir().resolve())


def find_folders(given: str | None = None) -> ConfFolders:
    """The folders of a command: the package's, and ``--config-dir`` or else ``conf/`` in the working directory.

    Raises:
        ConfigError: the folder given does not exist.
    """
    built_in = conf_dir().resolve()
    if given is None:
        own = Path.cwd() / "conf"
        # A checkout of sargnn has the package's configuration at this place.
        if not own.is_dir() or own.resolve() == built_in or (own.parent / "sargnn" / "cli" / "conf_folders.py").is_file():
            return ConfFolders(built_in)
        return ConfFolders(built_in, own)
    own = Path(os.path.expanduser(given))
    if not given or not _is_folder(own):
        raise ConfigError("The folder of --config-dir does not exist.", given=given or "nothing", hint="--config-dir FOLDER")
    return ConfFolders(built_in, None if own.resolve() == built_in else own.absolute(), given=True)
