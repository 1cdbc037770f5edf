"""Strategies by name: literal dicts of name -> "module:attribute", imported on use, so that nothing loads dgl unasked.

What lies outside the package is named by a target: ``FILE.py:NAME``, relative to the working folder, or
``package.module:NAME``. A file is loaded once in a process, as a module whose name holds the file's path; so objects of its
classes can be pickled and are found again in another process.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from sargnn.errors import ConfigError, nearest
from sargnn.interop.dgl import install_finder, missing_in

_PREFIX = "sargnn-file:"
_FORMS = "FILE.py:NAME or package.module:NAME"


def resolve(kind: str, table: Mapping[str, str], name: str, target: str | None = None) -> Any:
    """The object that ``table[name]`` points to, or that ``target`` or a ``name`` of its form names: ``FILE.py:NAME`` or
    ``package.module:NAME``. ``kind``: what the table holds ("mode").

    Raises ``ConfigError`` where the table has no such name (the nearest names are listed), or the target cannot be loaded.
    """
    if target is None and name not in table and is_target(name):
        target = name
    if target is not None:
        return _load_target(kind, absolute_target(kind, target))
    if name not in table:
        raise ConfigError(f"There is no {kind} '{name}'.", allowed=nearest(name, table))
    return load_attribute(table[name])


def load_attribute(reference: str) -> Any:
    """The object that "module:attribute" names, of this package; also an attribute of an attribute."""
    module, _, attribute = reference.partition(":")
    return attrgetter(attribute)(import_module(module))


def is_target(text: str) -> bool:
    """Whether a text looks like a target and not like a name."""
    return ":" in text


def file_of_target(value: Any) -> str | None:
    """The FILE of a setting's value that has the form ``FILE.py:NAME``."""
    place, _, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return place if place.endswith(".py") and name.isidentifier() else None


def absolute_target(kind: str, target: str) -> str:
    """The target with an absolute path, so that workers and jobs find the file from their own working folders. Raises
    ``ConfigError`` where it has another form, or the file does not exist.
    """
    place, _, name = target.rpartition(":")
    if not place or not name.isidentifier():
        called = name.partition("(")[0]
        hint = f"without parentheses: {place}:{called}" if place and called != name and called.isidentifier() else None
        raise ConfigError(f"The target of the {kind} cannot be understood.", given=target, allowed=_FORMS, hint=hint)
    if not place.endswith(".py"):
        if not all(part.isidentifier() for part in place.split(".")):
            raise ConfigError(f"The target of the {kind} cannot be understood.", given=target, allowed=_FORMS)
        return target
    path = Path(os.path.expanduser(place))
    try:
        path = path.resolve()
        exists = path.is_file()
    except (OSError, RuntimeError, ValueError):  # a name that no file can have, a loop of links
        exists = False
    if not exists:
        raise ConfigError(
            f"The target of the {kind} names a file that does not exist.",
            given=str(path),
            hint="a relative path starts at the working folder",
        )
    return f"{path}:{name}"


def describe_source(target: str) -> str:
    """The target's NAME (with its module, for an installed one) and 16 hex digits of the file's content, without its path.

    Of a file that is loaded, the content as it was loaded.
    """
    place, _, name = target.rpartition(":")
    module = sys.modules.get(_module_name(place) if place.endswith(".py") else place)
    digest: str | None = getattr(module, "__source_hash__", None)
    if digest is None:
        digest = _hash_of(_read_source(place))
    return f"{name if place.endswith('.py') else target} {digest}"


def _read_source(place: str) -> bytes:
    if not place.endswith(".py"):
        spec = find_spec(place)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            return b""
        place = spec.origin
    try:
        return Path(place).read_bytes()
    except OSError as error:
        raise ConfigError(f"A target's file cannot be read: {error.strerror}.", given=place) from error


def describe_file(path: str) -> str:
    """16 hex digits of a file's content, read in chunks. Raises ``OSError``."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()[:16]


def _hash_of(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:16]


def _module_name(path: str) -> str:
    """A dot would stand for a package."""
    return _PREFIX + path.replace("%", "%25").replace(".", "%2E")


class _FileLoader(Loader):
    """Runs a file's text as it is now; no compiled file is read or left beside it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def exec_module(self, module: ModuleType) -> None:
        source = Path(self.path).read_bytes()
        module.__dict__["__source_hash__"] = _hash_of(source)
        exec(compile(source, self.path, "exec", dont_inherit=True), module.__dict__)


class _FileFinder(MetaPathFinder):
    """Finds the modules of files by the path in their names, also for ``pickle``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        file = fullname[len(_PREFIX) :].replace("%2E", ".").replace("%25", "%")
        return spec_from_file_location(fullname, file, loader=_FileLoader(file))


sys.meta_path.append(_FileFinder())


def _load_target(kind: str, target: str) -> Any:
    place, _, name = target.rpartition(":")
    from_file = place.endswith(".py")
    install_finder()  # a user's code may import dgl, now or when it is called
    try:
        module = import_module(_module_name(place) if from_file else place)
    except (Exception, SystemExit) as error:
        if dgl_missing := missing_in(error, place_of(error, place) if from_file else target):
            raise dgl_missing from error
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if not from_file and missing is not None and (place == missing or place.startswith(f"{missing}.")):
            raise ConfigError(
                f"The target of the {kind} names a module that is not installed.",
                given=target,
                hint="install it, put its folder on PYTHONPATH, or name a file: FILE.py:NAME",
            ) from error
        raise ConfigError(
            f"The target of the {kind} cannot be loaded: {type(error).__name__}: {error}",
            given=f"{target}, {place_of(error, place)}",
        ) from error
    if not hasattr(module, name):
        own = [attribute for attribute, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise ConfigError(
            f"The target of the {kind} names nothing in '{place}'.", given=name, allowed=nearest(name, own) or "it defines none"
        )
    return getattr(module, name)


def place_of(error: BaseException, place: str) -> str:
    """File and line where a target of the file ``place`` failed: the last one of its own file, or where its syntax is wrong."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename} line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == place] or list(frames)
    return f"{own[-1].filename} line {own[-1].lineno}"
